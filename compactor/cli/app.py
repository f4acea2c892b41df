"""The command line: its commands and their options. What they do is in ``commands``, one module each."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from importlib import metadata
from typing import Annotated

import typer

from memory.errors import ContextError

from ..config import CompactorConfig, ConfigError
from . import demo_screen, pressure_script, replay_report, script, session_commands
from .chat import Chat, endpoint
from .conversation_screen import ConversationScreen
from .demo import Demo
from .preset import Preset
from .pressure import Pressure
from .replay import Setup
from .resume import begin, memory_at, where
from .session_commands import AsJson, Store
from .stage import Stage
from .terminal import CannotRun, event_log, one_line, screen, shown_live
from .transcripts import joined, read


class Log(StrEnum):
    JSON = "json"
    CONSOLE = "console"


class By(StrEnum):
    EXTRACTIVE = "extractive"
    OPENAI = "openai"


#: The model of an endpoint where none is named.
MODEL = "gpt-5-mini"

LogEvents = Annotated[
    Log | None, typer.Option("--log-events", help="Write each event to standard error, as JSON or for reading.")
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="The endpoint's address, usually ending in /v1.  [default: OPENAI_BASE_URL]"),
]
Budget = Annotated[int, typer.Option(min=1, metavar="TOKENS", help="No prompt is longer.")]
Threshold = Annotated[int, typer.Option(min=0, metavar="N", help="Compact when more than N rounds are not compacted.")]
Retain = Annotated[int, typer.Option(min=0, metavar="N", help="The newest N rounds stay as they are.")]
PromptOption = Annotated[
    str, typer.Option(metavar="NAME|FILE", help="How to ask for a summary: a shipped prompt, or a YAML file.")
]

app = typer.Typer(
    name="compactor",
    help="Background compaction for long LLM conversations: the chat never waits, the prompt always fits, nothing is"
    " lost.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it needs half the lines
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(_version())
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(short_help="Watch two agents work while their histories are compacted.")
def demo(
    pressure: Annotated[
        bool, typer.Option("--pressure", help="One agent with huge results instead, and with all strategies.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000,
            metavar="N",
            help=f"How many there are.  [default: {script.LENGTH}, or {pressure_script.LENGTH} with --pressure]",
        ),
    ] = None,
    pace: Annotated[
        float | None,
        typer.Option(min=0, max=60, metavar="SECONDS", help="A round's length.  [default: 0.3 on a terminal or 0.05]"),
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The same as --pace 0.")] = False,
    latency: Annotated[
        float | None,
        typer.Option(
            min=0, max=60, metavar="SECONDS", help="How long a summary takes at least.  [default: 2.5 x pace, up to 1]"
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="For the figures in printed tables.")] = 0,
    as_json: AsJson = False,
    log: LogEvents = None,
) -> None:
    """Watch two agents work through a long task while their histories are compacted.

    Needs no key and no network. A planner and a code interpreter make a sales forecast; each has a compactor thread and
    a prompt of its own. Summaries are extracted offline, and a wait is added to each that a model would take.

    With --pressure, one agent looks into an outage instead: results of thousands of tokens, dozens of calls in a round,
    an id that it has to read back, and never a prompt of more than 4,000 tokens. Shows what each strategy saved.
    """
    console = screen()
    live = not as_json and shown_live(console, log)
    pace = 0.0 if fast else pace if pace is not None else 0.3 if live else 0.05
    latency = latency if latency is not None else min(1.0, max(0.1, 2.5 * pace))
    staged: Stage = (Pressure if pressure else Demo)(latency, seed, event_log(log))
    count = rounds if rounds is not None else pressure_script.LENGTH if pressure else script.LENGTH
    with staged as playing:
        if live:
            demo_screen.play_live(playing, count, pace, console)
        else:
            demo_screen.play_plainly(playing, count, pace, None if as_json else console)
        if as_json:
            typer.echo(json.dumps(playing.figures(), indent=2))
        else:
            demo_screen.summary(playing, console)


@app.command(short_help="Put a transcript of yours through a compactor.")
def replay(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON or JSONL in OpenAI's chat format; - is standard input.")
    ],
    each: Annotated[bool, typer.Option("--each/--joined", help="Each conversation by itself, or all as one.")] = True,
    summarizer: Annotated[By, typer.Option(help="Who summarises: offline, or a model.")] = By.EXTRACTIVE,
    model: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Who summarises, and whose tokens are counted.  [default: {MODEL}]",
            show_default=False,
        ),
    ] = "",
    base_url: BaseUrl = None,
    preset: Annotated[
        Preset | None,
        typer.Option(help="A bundle of strategies that users of other systems know, with --budget as its max_token."),
    ] = None,
    prompt: PromptOption = "assistant",
    budget: Budget = 8_000,
    threshold: Threshold = 10,
    retain: Retain = 3,
    show: Annotated[bool, typer.Option("--show", help="Print the last prompt, its texts shortened.")] = False,
    as_json: AsJson = False,
    log: LogEvents = None,
) -> None:
    """Put a transcript of yours through a Memory and a compactor, and see what is saved.

    The file holds one conversation or many: a list of messages, {"messages": [...]}, a list of these, or one message or
    conversation a line. With --joined every message stays as it stands, a later conversation's system message too.

    Goes message by message, with a prompt composed for each answer in the file. A compaction is due after --threshold
    rounds, or at three quarters of --budget; a --preset has its own strategies, and knows itself when they are due. The
    compactor is waited for after each message: so with the extractive summarizer the figures, but for times, are the
    same at every run.

    Shows what each strategy saved, and what prompts still had to have shortened to fit. All prompts are counted anew,
    and looked through for tool calls without their results and for the newest user message.
    """
    if preset is not None:
        _refuse_with_preset(context, "prompt", "threshold", "retain")
    conversations = read(file)
    if not each:
        conversations = [joined(conversations)]
    asked = endpoint(model or MODEL, base_url).summarizer if summarizer is By.OPENAI else None
    config = _config(prompt, budget, threshold, retain, model)
    setup = Setup(config, budget, asked, event_log(log), preset=preset or "")
    errors = screen(sys.stderr)
    results = replay_report.replay_all(conversations, setup, errors if shown_live(errors, log) else None)
    if as_json:
        typer.echo(json.dumps(replay_report.document(file, results, setup, joined=not each), indent=2))
        return
    console = screen()
    if show:
        replay_report.show_prompt(results, console)
    replay_report.table(results, console)


@app.command(short_help="Chat with a model, and see what is compacted as it happens.")
def chat(
    model: Annotated[str, typer.Option(metavar="NAME", help="Who answers, and summarises.")] = MODEL,
    base_url: BaseUrl = None,
    system: Annotated[str, typer.Option(metavar="TEXT", help="A system message.", show_default=False)] = "",
    summarizer: Annotated[By, typer.Option(help="Who summarises: the model, or this machine.")] = By.OPENAI,
    prompt: PromptOption = "assistant",
    budget: Budget = 8_000,
    threshold: Threshold = 10,
    retain: Retain = 3,
    store: Store = None,
    session: Annotated[
        str | None, typer.Option(metavar="NAME", help="The session in the store to go on with, or to begin.")
    ] = None,
    log: LogEvents = None,
) -> None:
    """Chat with any OpenAI-compatible endpoint, and see what is compacted as it happens.

    The key is read from OPENAI_API_KEY; a server of your own needs none. In the chat, /help lists the commands.

    With --store the chat is kept there, and goes on another time with --session. Without --session, or without a
    store, a new one begins.
    """
    source = endpoint(model, base_url)
    config = _config(prompt, budget, threshold, retain, model)
    with memory_at(store, session) as memory:
        begin(memory, system)
        dialogue = ConversationScreen(screen(), screen(sys.stderr))
        dialogue.emit(f"{source}; /help lists the commands")
        if store:
            dialogue.emit(where(memory))
        extractive = summarizer is By.EXTRACTIVE
        Chat(source, dialogue, config, budget, memory, extractive=extractive, hooks=event_log(log)).run()


app.add_typer(session_commands.app)


def _refuse_with_preset(context: typer.Context, *names: str) -> None:
    """Refuse options that a preset has a value of its own for; the defaults are not the user's wish."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and not source.name.startswith("DEFAULT"):
            raise CannotRun(f"--{name} is for the default strategies, and --preset has its own; leave one of them out")


def _config(prompt: str, budget: int, threshold: int, retain: int, model: str) -> CompactorConfig:
    try:
        return CompactorConfig(
            threshold=threshold,
            retain_recent=retain,
            prompt_template_path=prompt,
            max_tokens=budget,
            target_tokens=max(32, min(1_000, budget // 8)),  # of a small prompt a summary takes a small share
            model=model,
        )
    except ConfigError as error:  # which names fields; here only --prompt can be wrong
        raise CannotRun("; ".join(wrong for _, wrong in error.problems)) from error


def _version() -> str:
    try:
        return f"compactor {metadata.version('context-compactor')}"
    except metadata.PackageNotFoundError:  # run from a source tree
        return "compactor (not installed)"


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line on *args* and exit: 0, or 2 with one line on standard error, or 130 when interrupted."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a sign that the terminal has not is no reason to end
    raise SystemExit(_exit_code(args))


def _exit_code(args: Sequence[str] | None) -> int:
    try:
        code = app(args if args is None else list(args), prog_name="compactor", standalone_mode=False)
        sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except ContextError as error:
        return _refuse(str(error))
    except OSError as error:
        return _without_output(error)
    except Exception as error:
        # typer's own errors, whose class depends on its version: a wrong option or value.
        if not hasattr(error, "format_message"):
            raise
        return _refuse(f"{error.format_message().rstrip('.')}. Try --help.")
    return code if isinstance(code, int) else 0


def _refuse(message: str) -> int:
    with contextlib.suppress(OSError):
        print(f"compactor: {one_line(message)}", file=sys.stderr)  # noqa: T201
    return 2


def _without_output(error: OSError) -> int:
    """Return 1: nobody reads the output any more (``| head``), which is nothing to complain of, or the disk is full."""
    with contextlib.suppress(OSError, ValueError):
        # What is still buffered would be complained of when the interpreter exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno not in (errno.EPIPE, errno.EINVAL):  # EINVAL is what Windows says of a closed pipe
        _refuse(f"the output cannot be written ({error.strerror})")
    return 1
