"""The command ``evaluate``: its options, its printed tables and its files."""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from memory.events import EventHook

from ... import strategies
from ...cost.prices import Prices
from ...summarizers.extractive import ExtractiveSummarizer
from ...tokens import get_counter
from ..chat import find_endpoint
from ..exchange import write_atomically
from ..replay import NamedConversation, read_transcript
from ..session_commands import BaseUrl, LogEvents, Prompt, make_config, make_option
from ..terminal import CommandError, make_console, make_event_hooks, make_one_line, render_quantity, show_progress
from .metered import MeteredSummarizer, PriceFunction, ResponseCache, find_price, make_price, rehearse
from .page import make_report_page
from .report import (
    AFTER,
    Measurement,
    Report,
    describe_dollars,
    find_failures,
    measure,
    parse_limits,
    print_comparison,
    print_report,
    read_earlier,
    sum_method,
)
from .runner import Compaction, EvaluationRunner, Source, cut_text, summarize_offline

_OFFLINE = "offline"
_OPENAI = "https://api.openai.com/v1"
_ANSWERS = "answers.jsonl"
#: A rejected compaction must not make the compactor summarise offline: its model is what is evaluated.
_NEVER = 1_000_000

app = typer.Typer()


@app.command(short_help="Measure what survives in summaries of your transcripts.")
def evaluate(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Transcripts, as replay reads them.")],
    model: Annotated[str, make_option("NAME", "Model to evaluate.  [default: the offline summarizer]")] = "",
    base_url: BaseUrl = None,
    prompt: Prompt = "assistant",
    strategy: Annotated[
        Literal["compact_rounds", "compact_view", "compact_notes"] | None,
        make_option("NAME", "compact_rounds, compact_view or compact_notes.  [default: compact_notes with a model]"),
    ] = None,
    target: Annotated[int, typer.Option(min=32, metavar="TOKENS", help="Desired length of a summary.")] = 1_000,
    compactions: Annotated[
        int, typer.Option(min=1, max=100, metavar="N", help="Maximum parts of a conversation; each is compacted.")
    ] = max(AFTER),
    to_json: Annotated[
        str | None, make_option("FILE", "Write the figures as JSON; - is standard output.", "--json")
    ] = None,
    to_html: Annotated[
        str | None, make_option("FILE", "Write a page with the summaries beside their sources.", "--html")
    ] = None,
    compare: Annotated[str | None, make_option("FILE", "Compare with this earlier --json.")] = None,
    fail_under: Annotated[
        list[str] | None, make_option("NAME=PERCENT", "Exit with 1 if a figure is lower, as in retention=80.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it will cost, and ask nobody.")] = False,
    max_spend: Annotated[float | None, make_option("DOLLARS", "Stop before more is spent in this run.")] = None,
    price: Annotated[
        str | None, make_option("IN,OUT", "Dollars per million input and output tokens.  [default: the model's]")
    ] = None,
    answers: Annotated[
        str | None,
        make_option(
            "FILE", "Keep the paid answers here.  [default: beside --json or --html, or evaluate.answers.jsonl]"
        ),
    ] = None,
    log: LogEvents = None,
) -> None:
    """Measure what survives of your own transcripts in the summaries of a model, a prompt, or the offline summarizer.

    Takes each conversation through a compactor, in up to --compactions parts of equal length, and looks for what was
    said 1, 5 and 20 compactions ago: ids, numbers, paths, instructions, prohibitions, tool outcomes, newest values.
    Beside that stand the offline summarizer, the first and the last words, all at the same length.

    With --model, the transcripts go to the named endpoint and nowhere else; the key is read from OPENAI_API_KEY. Each
    answer is kept in a file as it arrives, so an interrupted run goes on where it ended, and pays for nothing twice.

    --fail-under takes retention, ids, numbers, paths, instructions, prohibitions, outcomes or newest, after the most
    compactions or as in ids@5; grounded (names that somebody said); accepted (answers); format (edits of notes).
    """
    if compare is not None and to_json == "-":
        raise CommandError("--compare would mix a table with the JSON; pass --json FILE, or leave --compare out")
    limits = parse_limits(fail_under or ())
    strategy = strategy or ("compact_notes" if model else "compact_rounds")  # as a compactor does by itself
    earlier = read_earlier(compare) if compare is not None else None
    sources, transcripts = _read_sources(files, compactions)
    _check_outputs([path for path in (to_json, to_html, answers) if path not in (None, "-")], files)
    config = make_config(prompt, retain_recent=0, target_tokens=target, model=model, circuit_breaker_failures=_NEVER)
    settings: dict[str, Any] = {
        "model": model or _OFFLINE,
        "endpoint": None,
        "prompt": prompt,
        "prompt_sha256": _hash(config.prompt.content),
        "strategy": strategy,
        "target_tokens": target,
        "compactions": compactions,
    }
    metered = _find_model(model, base_url, price, max_spend, dry_run=dry_run)
    if metered is not None:
        settings["endpoint"] = metered.endpoint
        metered.max_spend = max_spend
        beside = next((f"{path}." for path in (to_json, to_html) if path not in (None, "-")), "evaluate.")
        metered.file = ResponseCache(Path(answers or f"{beside}{_ANSWERS}"), read_only=dry_run)
    hooks = make_event_hooks(log)
    all_hooks = [*hooks, metered.record_event] if metered else hooks
    runner = EvaluationRunner(config, getattr(strategies, strategy), metered or ExtractiveSummarizer(), all_hooks)
    if dry_run:
        _print_cost(metered, runner, sources)
        return
    results = _run_all(runner, sources, metered, hooks)
    report, measured = _make_report(settings, transcripts, sources, results, runner, metered)
    if to_html is not None:
        _write(to_html, make_report_page(report, zip(sources, measured, strict=True)))
    if to_json == "-":
        typer.echo(report.to_json())
    else:
        if to_json is not None:
            _write(to_json, f"{report.to_json()}\n")
        print_report(report, make_console())
        if earlier is not None:
            print_comparison(report, earlier, make_console())
    failures = find_failures(report, limits)
    for failure in failures:
        make_console(sys.stderr).print(f"compactor: {make_one_line(failure)}", soft_wrap=True)
    if failures or report.stop_reason:
        raise typer.Exit(1)


def _read_sources(files: Sequence[str], compactions: int) -> tuple[list[Source], dict[str, str]]:
    """Return the conversations in *files*, and the SHA-256 of the messages in each file."""

    def make_name(path: str, conversation: NamedConversation) -> str:
        return make_one_line(f"{Path(path).name}: {conversation[0]}", 80)

    read = {path: read_transcript(path) for path in files}
    sources = [
        Source.from_conversation(make_name(path, one), one, compactions) for path, many in read.items() for one in many
    ]
    found = [source for source in sources if source.rounds]
    if not found:
        raise CommandError("these transcripts hold no round; give some in which a user asks and an assistant answers")
    return found, {path: _hash(json.dumps(many, sort_keys=True)) for path, many in read.items()}


def _find_model(
    model: str, base_url: str | None, price: str | None, max_spend: float | None, *, dry_run: bool
) -> MeteredSummarizer | None:
    """Return the model that is asked, or with *dry_run* its stand-in; None: no model is asked."""
    if max_spend is not None and not 0 <= max_spend < math.inf:
        raise CommandError("--max-spend takes dollars, from 0 on")
    if not model:
        for name, value in (("--base-url", base_url), ("--max-spend", max_spend), ("--price", price)):
            if value is not None:
                raise CommandError(f"{name} is for a model; name one with --model, or leave {name} out")
        return None
    paid = _read_price(price) if price is not None else find_price(model)
    if max_spend is not None and paid is None:
        raise CommandError(
            f"nobody here knows what {make_one_line(model, 60)} costs, so --max-spend cannot hold; give --price, as in"
            " --price 0.25,2"
        )
    count = get_counter(model)
    if dry_run and not (base_url or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_KEY")):
        return MeteredSummarizer(rehearse, count, paid, _OPENAI, model)  # what it costs is known without a key
    client, _, address = find_endpoint(model, base_url)
    return MeteredSummarizer(rehearse if dry_run else client, count, paid, address, model)


def _read_price(text: str) -> PriceFunction:
    try:
        read, written = (float(part) for part in text.split(","))
        return make_price(Prices(cached_input=1.0, output=written / read, per_token=read / 1_000_000))
    except (ValueError, ZeroDivisionError):
        raise CommandError(
            f"--price takes dollars per million input and output tokens, the first above 0, as in 0.25,2, not '{text}'"
        ) from None


def _check_outputs(paths: Sequence[str], files: Sequence[str]) -> None:
    """Raise ``CommandError`` if one of *paths* lies in no folder, is a transcript, or is named twice: better now than
    after paying for answers."""
    taken = {os.path.realpath(one) for one in files if one != "-"}
    for path in paths:
        try:
            can_be = Path(path).parent.is_dir() and not Path(path).is_dir()
            real_path = os.path.realpath(path)
        except (OSError, ValueError):
            can_be = False
        if not can_be:
            raise CommandError(f"{path}: cannot be written; give a file in a folder that exists")
        if real_path in taken:
            raise CommandError(f"{path}: is a transcript or another report and would be overwritten; give another file")
        taken.add(real_path)


def _write(path: str, text: str) -> None:
    with write_atomically(path, "the paid answers are kept: give another path") as file:
        file.write(text)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _print_cost(metered: MeteredSummarizer | None, runner: EvaluationRunner, sources: Sequence[Source]) -> None:
    """Print the cost of a run, estimated by one with a stand-in for the model."""
    console = make_console()
    if metered is None:
        console.print("No model is asked, so it costs nothing.")
        return
    for source in sources:
        runner.run(source)
    read, written = metered.usage_now["input_tokens"], metered.usage_now["output_tokens"]
    console.print(f"{render_quantity(metered.calls, 'call')} to {make_one_line(metered.endpoint)}")
    cost = describe_dollars(metered.compute_cost(metered.usage_now))
    console.print(f"about {read:,} input and {written:,} output tokens: {cost}")
    if metered.reused:
        console.print(f"{render_quantity(metered.reused, 'answer')} paid for already and not asked for again")
    attempts = runner.config.summary_attempts
    if metered.kinds["changes"]:
        attempts = 1 + 2 * attempts  # edits of notes, which are asked for once; notes on the new rounds; all notes
    console.print(
        f"Up to {attempts} times as much if answers are rejected and asked for again; more if a model thinks first."
    )


def _run_all(
    runner: EvaluationRunner, sources: Sequence[Source], metered: MeteredSummarizer | None, hooks: Sequence[EventHook]
) -> list[list[Compaction]]:
    """Return the compactions of each of *sources*, with a progress bar on a terminal."""
    total = sum(len(source.ends) for source in sources)
    with show_progress("evaluating", total, "compactions", make_console(sys.stderr), hooks) as step:
        return [runner.run(source, step) if not (metered and metered.stop_reason) else [] for source in sources]


def _make_report(
    settings: dict[str, Any],
    transcripts: dict[str, str],
    sources: Sequence[Source],
    results: Sequence[Sequence[Compaction]],
    runner: EvaluationRunner,
    metered: MeteredSummarizer | None,
) -> tuple[Report, list[list[Measurement]]]:
    """Return the figures of *results* and of the baselines, and for each source the items that its summaries keep."""
    baselines: dict[str, Callable[[Source, Sequence[Compaction]], Sequence[Compaction]]] = {}
    if metered is not None:
        baselines[_OFFLINE] = partial(summarize_offline, runner=runner)
    baselines |= {"first words": partial(cut_text, last=False), "last words": partial(cut_text, last=True)}
    pairs = list(zip(sources, results, strict=True))
    measured = [measure(source, one, quotes=False) for source, one in pairs]
    methods = [sum_method(settings["model"], list(chain.from_iterable(measured)), quotes=False)]
    for name, make_baseline in baselines.items():
        quotes = name != _OFFLINE
        found = (measure(source, make_baseline(source, one), quotes=quotes) for source, one in pairs)
        methods.append(sum_method(name, list(chain.from_iterable(found)), quotes=quotes))
    report = Report(
        settings,
        transcripts,
        len(sources),
        sum(len(source.rounds) for source in sources),
        sum(source.tokens for source in sources),
        methods,
        metered.make_account() if metered is not None else None,
        metered.stop_reason if metered is not None else "",
    )
    return report, measured
