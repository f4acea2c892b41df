"""The commands ``demo``, ``replay`` and ``chat``, all options, and ``main``."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from memory.arguments import ConfigError
from memory.errors import ContextError
from memory.events import EventHook

from .._interrupt import end_interrupted, remove_hook
from ..config import CompactorConfig
from . import archive_commands, serve, session_commands, worker
from . import replay as replays
from .chat import Chat, add_system_message, describe_resumed, find_endpoint, open_memory
from .demo import draw_screen, play_as_lines, play_on_screen, print_guarantees, print_summary, print_tables
from .evaluate import command as evaluate_command
from .page import open_page
from .scenario import INCIDENT, SALES_FORECAST, Demo, Scenario
from .session_commands import AsJson, BaseUrl, LogEvents, Prompt, Store, make_config, make_option
from .sessions import read_name
from .terminal import (
    CommandError,
    ConversationScreen,
    Interrupts,
    can_redraw,
    make_console,
    make_event_hooks,
    make_one_line,
    name_options,
)

DEFAULT_MODEL = "gpt-5-mini"


def _make_number_option(text: str, minimum: int = 0, maximum: int | None = None, metavar: str = "N") -> Any:
    return typer.Option(min=minimum, max=maximum, metavar=metavar, help=text)


def _make_seconds_option(text: str) -> Any:
    return _make_number_option(text, 0, 60, "SECONDS")


By = Literal["extractive", "openai"]
Preset = Literal["auto_context", "selective", "memory_with_compress", "context_offload"]
Budget = Annotated[int, _make_number_option("Maximum prompt tokens.", 1, metavar="TOKENS")]
Threshold = Annotated[int, _make_number_option("Compact when more than N rounds are not compacted.")]
Retain = Annotated[int, _make_number_option("Number of newest rounds to leave as they are.")]
_BUDGET_HELP = (
    "Maximum prompt tokens.  [default: the longest conversation's system messages and a quarter of the rest,"
    f" up to {replays.MAX_BUDGET:,}]"
)
Html = Annotated[str | None, make_option("FILE", "Write what is shown as one page, too.", "--html")]
_DEFAULT_ROUNDS = f"[default: {SALES_FORECAST.length}, or {INCIDENT.length} with --pressure]"

app = typer.Typer(
    name="compactor",
    help="Background compaction for long LLM conversations: the chat never waits, the prompt always fits, nothing is"
    " lost.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help takes half the lines
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def show_help_or_version(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        try:
            typer.echo(f"compactor {metadata.version('context-compactor')}")
        except metadata.PackageNotFoundError:  # run from a source tree
            typer.echo("compactor (not installed)")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("demo", short_help="Watch two agents work while their histories are compacted.")
def play_demo(
    pressure: Annotated[
        bool, typer.Option("--pressure", help="Play one agent with huge results and all strategies instead.")
    ] = False,
    rounds: Annotated[int | None, _make_number_option(f"Number of rounds.  {_DEFAULT_ROUNDS}", 1, 10_000)] = None,
    pace: Annotated[
        float | None, _make_seconds_option("Length of a round.  [default: 0.3 on a terminal, else 0.05]")
    ] = None,
    fast: Annotated[bool, typer.Option("--fast", help="The same as --pace 0.")] = False,
    latency: Annotated[
        float | None, _make_seconds_option("Time added to each summary.  [default: 2.5 x pace, up to 1]")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the made-up figures.")] = 0,
    html: Html = None,
    price: Annotated[str, typer.Option(metavar="MODEL", help="Model whose prices are paid.")] = "gpt-4.1-mini",
    as_json: AsJson = False,
    log: LogEvents = None,
) -> None:
    """Watch two agents work through a long task, with and without compaction in the background.

    Needs no key and no network. A planner and a code interpreter make a sales forecast. The same conversation goes to
    agents that send all they have and stop to summarise when the window is full. Summaries are extracted offline on
    both sides, after a wait as long as a model would take. At the end both answer a question about the second round.

    With --pressure, one agent investigates an outage: results of thousands of tokens, dozens of calls in a round, an id
    that it has to read back, and never a prompt of more than 4,000 tokens. Shows the savings of each strategy.
    """
    console, hooks = make_console(), make_event_hooks(log)
    redraws = not as_json and can_redraw(console, hooks)
    pace = 0.0 if fast else pace if pace is not None else 0.3 if redraws else 0.05
    latency = latency if latency is not None else min(1.0, max(0.1, 2.5 * pace))
    scenario = INCIDENT if pressure else SALES_FORECAST
    count = rounds if rounds is not None else scenario.length
    demo = _make_demo(scenario, latency, seed, hooks, price)
    with open_page(html, scenario.command) as page, demo, Interrupts() as interrupts:
        if redraws:
            play_on_screen(demo, count, pace, console, interrupts)
        else:
            play_as_lines(demo, count, pace, None if as_json else console, interrupts)
        if page is not None:
            page.print(draw_screen(demo, count, page, page.height), Text())
            print_tables(demo, page)
    if as_json:
        typer.echo(json.dumps(demo.compute_figures(), indent=2))
        return
    if not redraws:
        print_summary(demo, console)
    else:
        if scenario.recalls:
            print_guarantees(demo, console)
        console.print(draw_screen(demo, count, console, console.height - 2))  # with the line below and a prompt
    console.print("Your conversation: compactor replay FILE. With a model: compactor chat --help.")


def _make_demo(scenario: Scenario, latency: float, seed: int, hooks: Sequence[EventHook], model: str) -> Demo:
    try:
        return Demo(scenario, latency, seed, hooks, model=model)
    except ConfigError as error:  # only --price can be wrong
        raise CommandError(name_options(f"--price: {error.problems[0][1]}")) from error


@app.command(short_help="Replay a transcript of yours through a compactor.")
def replay(
    context: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="JSON or JSONL in OpenAI's chat format; - is standard input.")
    ],
    each: Annotated[
        bool, typer.Option("--each/--joined", help="Replay each conversation by itself, or all as one.")
    ] = True,
    summarizer: Annotated[By, typer.Option(help="Summarise offline, or with a model.")] = "extractive",
    model: Annotated[
        str, make_option("NAME", f"Model that summarises, and whose tokens are counted.  [default: {DEFAULT_MODEL}]")
    ] = "",
    base_url: BaseUrl = None,
    preset: Annotated[
        Preset | None,
        typer.Option(help="Strategies that users of other systems know, with --budget as their max_token."),
    ] = None,
    prompt: Prompt = "assistant",
    budget: Annotated[int | None, _make_number_option(_BUDGET_HELP, 1, metavar="TOKENS")] = None,
    threshold: Threshold = 10,
    retain: Retain = 3,
    show: Annotated[bool, typer.Option("--show", help="Print the last prompt, with its texts shortened.")] = False,
    as_json: AsJson = False,
    html: Html = None,
    log: LogEvents = None,
) -> None:
    """Replay a transcript of yours through a Memory and a compactor, and see the savings.

    The file holds one conversation or many: a list of messages, {"messages": [...]}, a list of these, or one message or
    conversation a line. --joined keeps every message, also the system messages of later conversations.

    Composes a prompt for each answer in the file. A compaction is due after --threshold rounds, or at three quarters of
    the budget; a --preset has its own strategies and triggers. The replay waits for the compactor after each message,
    so that with the extractive summarizer all figures but times are the same at every run.

    Shows the savings of each strategy, and how prompts still had to be shortened to fit. All prompts are counted anew,
    and checked for tool calls without results and for the newest user message.
    """
    if preset is not None:
        for name in ("prompt", "threshold", "retain"):  # a preset has its own; a default is not the user's choice
            source = context.get_parameter_source(name)
            if source is not None and not source.name.startswith("DEFAULT"):
                reason = "is for the default strategies, and --preset has its own"
                raise CommandError(f"--{name} {reason}; leave one of them out")
    conversations = replays.read_transcript(file)
    if not each:
        conversations = [replays.join_conversations(conversations)]
    client = find_endpoint(model or DEFAULT_MODEL, base_url)[0] if summarizer == "openai" else None
    with open_page(html, f"compactor replay {file}") as page:
        size, results = budget or replays.choose_budget(conversations, model), None
        while results is None:
            config = _make_config(prompt, size, threshold, retain, model)
            replayer = replays.Replay(config, size, client, make_event_hooks(log), preset or "")
            try:
                results = replayer.run_all(conversations, make_console(sys.stderr))
            except replays.BudgetTooSmall:
                if budget is not None:
                    raise
                size += max(size // 4, 1)
        figures = [one for one, _ in results]
        for console in filter(None, (page, None if as_json else make_console())):
            if show:
                replays.print_last_prompt(results, console)
            replays.print_report(figures, size, console, is_chosen=budget is None)
        if as_json:
            typer.echo(json.dumps(replayer.make_document(file, figures, joined=not each), indent=2))


@app.command(short_help="Chat with a model, and watch the compaction.")
def chat(
    model: Annotated[str, typer.Option(metavar="NAME", help="Model that answers and summarises.")] = DEFAULT_MODEL,
    base_url: BaseUrl = None,
    system: Annotated[str, make_option("TEXT", "System message.")] = "",
    summarizer: Annotated[By, typer.Option(help="Summarise with the model, or offline.")] = "openai",
    prompt: Prompt = "assistant",
    budget: Budget = 8_000,
    threshold: Threshold = 10,
    retain: Retain = 3,
    store: Store = None,
    session: Annotated[
        str | None, make_option("NAME", "Session in the store, resumed if it exists.", callback=read_name)
    ] = None,
    log: LogEvents = None,
) -> None:
    """Chat with any OpenAI-compatible endpoint, and watch its compaction as it happens.

    Reads the key from OPENAI_API_KEY; a server of your own needs none. In the chat, /help lists the commands.

    With --store the chat is kept, and --session resumes it another time. Without --session a new one begins.
    """
    client, answer, address = find_endpoint(model, base_url)
    config = _make_config(prompt, budget, threshold, retain, model)
    with open_memory(store, session) as memory:
        add_system_message(memory, system)
        dialogue = ConversationScreen(make_console(), make_console(sys.stderr))
        dialogue.emit(f"{model} at {address}; /help lists the commands")
        if store:
            dialogue.emit(describe_resumed(memory))
        chosen = client if summarizer == "openai" else None
        Chat(dialogue, memory, config, budget, chosen, answer, make_event_hooks(log)).run()


app.add_typer(evaluate_command.app)
app.add_typer(session_commands.app)
app.add_typer(archive_commands.app)
app.add_typer(serve.app)
app.add_typer(worker.app)


def _make_config(prompt: str, budget: int, threshold: int, retain: int, model: str) -> CompactorConfig:
    target = max(32, min(1_000, budget // 8))  # a small prompt needs a small summary
    return make_config(
        prompt, threshold=threshold, retain_recent=retain, max_tokens=budget, target_tokens=target, model=model
    )


def main() -> None:
    """Run the command line and exit.

    The exit code is 0; 2 with one line on standard error if the command cannot run; 130 with one line if interrupted;
    1 if the output cannot be written, and if ``health`` finds something wrong.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # print a replacement for what the terminal cannot show
    raise SystemExit(_run())


def _run() -> int:
    try:
        remove_hook()
        code = app(prog_name="compactor", standalone_mode=False)
        if sys.stdout is not None:  # it may be closed: a service's, or that of pythonw
            sys.stdout.flush()
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except ContextError as error:
        return _complain(str(error), 2)
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            # Otherwise the interpreter complains at exit about what is still buffered.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno in (errno.EPIPE, errno.EINVAL):  # the reader is gone (`| head`); Windows says EINVAL
            return 1
        return _complain(f"the output cannot be written ({error.strerror})", 1)
    except Exception as error:
        # Typer's own errors, whose class depends on its version: a wrong option or value.
        if not hasattr(error, "format_message"):
            raise
        return _complain(f"{error.format_message().rstrip('.')}. Try --help.", 2)
    if code == 130:  # some versions of Typer return this for Ctrl-C instead of raising
        return _complain("interrupted", 130)
    return code if isinstance(code, int) else 0


def _complain(message: str, code: int) -> int:
    if code == 130:
        end_interrupted()  # taking an interpreter down lasts, and a second Ctrl-C would end it otherwise
    with contextlib.suppress(OSError):
        print(f"compactor: {make_one_line(message)}", file=sys.stderr)  # noqa: T201
    return code
