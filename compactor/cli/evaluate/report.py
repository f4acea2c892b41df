"""The figures of an evaluation: as records, as JSON, as tables, and beside those of an earlier run."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import BaseModel, ValidationError
from rich.box import SIMPLE
from rich.console import Console

from ...tokens import count_tokens
from ..terminal import NARROW, CommandError, make_one_line, make_table, render_quantity
from .retention import KINDS, Item, Said, SummaryWords
from .runner import Compaction, Source

#: Numbers of compactions after which it is looked for what was said.
AFTER = (1, 5, 20)
#: Figures beside retention, in percent: names that somebody said, answers that passed, edits of notes in their form.
_OTHERS = ("grounded", "accepted", "format")
NAMES = (
    *(f"{name}{after}" for name in ("retention", *KINDS) for after in ("", *(f"@{one}" for one in AFTER))),
    *_OTHERS,
)


@dataclass(frozen=True, slots=True)
class Share:
    """A number of things, and of how many."""

    part: int = 0
    of: int = 0

    def __add__(self, other: Share) -> Share:
        return Share(self.part + other.part, self.of + other.of)

    @property
    def percent(self) -> float | None:
        """None if there is nothing to measure."""
        return round(100 * self.part / self.of, 1) if self.of else None


@dataclass(frozen=True)
class Measurement:
    """One summary: the items that it keeps and loses, and the names that it makes up."""

    compaction: Compaction
    #: The first round that the compaction before it did not cover.
    start: int
    #: What was said so many compactions ago, counting this one; whether it stands.
    items: Sequence[tuple[Item, int, bool]]
    #: Identifiers and numbers that no summary before it had: how many, and those that nobody said.
    named: int
    invented: tuple[str, ...]


@dataclass(frozen=True)
class Method:
    """One way to summarise, over all conversations."""

    name: str
    #: By kind, and by the number of compactions.
    retention: Mapping[str, Mapping[int, Share]]
    #: Identifiers and numbers that nobody said, of all; None: it only quotes.
    invented: Share | None
    compactions: int
    #: Mean length of a summary.
    summary_tokens: float

    def compute_mean(self, after: int) -> float | None:
        """Return the mean of all kinds' percentages: hundreds of numbers do not outweigh three prohibitions."""
        found = [
            percent for shares in self.retention.values() if (percent := shares.get(after, Share()).percent) is not None
        ]
        return round(fmean(found), 1) if found else None


@dataclass(frozen=True)
class Report:
    """The figures of one run. It holds no text of a conversation. The first method is the one that is evaluated."""

    settings: Mapping[str, Any]
    #: SHA-256 of the messages in each file.
    transcripts: Mapping[str, str]
    conversations: int
    rounds: int
    tokens: int
    methods: Sequence[Method]
    #: The model's work, as ``MeteredSummarizer.make_account`` returns it.
    account: Mapping[str, Any] | None = None
    #: Why not everything was measured; empty: it was.
    stop_reason: str = ""
    #: Percentages by their ``NAMES``; None: there was nothing to measure.
    figures: Mapping[str, float | None] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "figures", dict(_list_figures(self.methods[0], self.account)))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)


class EarlierReport(BaseModel):
    """The part of an earlier report that is compared."""

    settings: dict[str, Any]
    transcripts: dict[str, str]
    figures: dict[str, float | None]
    account: dict[str, Any] | None = None


def read_earlier(path: str) -> EarlierReport:
    """Return the report in the file at *path*. Raises ``CommandError`` if it is none."""
    try:
        return EarlierReport.model_validate_json(Path(path).read_bytes())
    except (OSError, ValueError) as error:  # a ValidationError is one, and quotes the file
        reason = (
            f"{error.error_count()} faults" if isinstance(error, ValidationError) else getattr(error, "strerror", "")
        )
        raise CommandError(
            f"{path}: is no report of evaluate ({reason or 'unreadable'}); give a file of --json"
        ) from None


def measure(source: Source, compactions: Sequence[Compaction], *, quotes: bool) -> list[Measurement]:
    """Return the items of *source* that each of *compactions* keeps. With *quotes* nothing can be invented."""
    # By the first compaction that covers them, the positions of items.
    covered: defaultdict[int, list[int]] = defaultdict(list)
    ends = [one.end for one in compactions]
    for position, item in enumerate(source.items):
        covered[bisect_left(ends, item.round)].append(position)
    measured: list[Measurement] = []
    known: set[str] = set()
    said = Said(source.system)
    for number, compaction in enumerate(compactions):
        words, start = SummaryWords(compaction.summary), measured[-1].compaction.end + 1 if measured else 1
        asked = sorted((position, after) for after in AFTER for position in covered.get(number + 1 - after, ()))
        items = [
            (item, after, words.keeps(item))
            for position, after in asked
            if (item := source.items[position]).until is None or item.until > compaction.end
        ]
        named, invented = frozenset[str](), tuple[str, ...]()
        if not quotes:
            said.add(source.texts[start - 1 : compaction.end])
            named, invented = said.find_invented(compaction.summary, known)
            known |= named
        measured.append(Measurement(compaction, start, items, len(named), invented))
    return measured


def sum_method(name: str, summaries: Sequence[Measurement], *, quotes: bool) -> Method:
    """Return the figures of a method from all of its *summaries*."""
    kept: defaultdict[str, defaultdict[int, Share]] = defaultdict(lambda: defaultdict(Share))
    for summary in summaries:
        for item, after, stands in summary.items:
            kept[item.kind][after] += Share(int(stands), 1)
    invented = Share(sum(len(one.invented) for one in summaries), sum(one.named for one in summaries))
    lengths = [count_tokens(one.compaction.summary) for one in summaries]
    retention = {kind: dict(sorted(kept[kind].items())) for kind in KINDS if kind in kept}
    return Method(name, retention, None if quotes else invented, len(summaries), fmean(lengths) if lengths else 0.0)


def _list_figures(method: Method, account: Mapping[str, Any] | None) -> Iterator[tuple[str, float | None]]:
    for name in ("retention", *KINDS):
        shares = method.retention.get(name, {})
        found = {
            after: method.compute_mean(after) if name == "retention" else shares.get(after, Share()).percent
            for after in AFTER
        }
        yield name, next((value for value in reversed(found.values()) if value is not None), None)
        for after, value in found.items():
            yield f"{name}@{after}", value
    invented = method.invented.percent if method.invented is not None else None
    yield "grounded", None if invented is None else round(100 - invented, 1)
    answers = account["answers"] if account else 0
    yield "accepted", Share(answers - sum(account["rejected"].values()), answers).percent if account else None
    yield "format", Share(**account["format"]).percent if account else None


# --- tables -----------------------------------------------------------------------------------------------------------


def print_report(report: Report, console: Console) -> None:
    """Print the shares that survive, by kind and method, and the model's work."""
    first = report.methods[0]
    rows: list[tuple[object, ...]] = []
    for kind in (one for one in KINDS if one in first.retention):
        shares = [[one.retention.get(kind, {}).get(after, Share()) for after in AFTER] for one in report.methods]
        kept = (_render_cells(share.percent for share in of_method) for of_method in shares)
        rows.append((KINDS[kind], _render_cells(share.of for share in shares[0]), *kept))
    rows.append(("mean of kinds", "", *(_render_cells(map(one.compute_mean, AFTER)) for one in report.methods)))
    rows += [(label, "", *cells) for label, cells in list_summary_figures(report)]
    columns = ("", "asked for", *(make_one_line(one.name, 24) for one in report.methods))
    style = NARROW | {"box": SIMPLE}
    after = f"{', '.join(map(str, AFTER[:-1]))} and {AFTER[-1]}"
    console.print(
        f"{describe_size(report)}.\nPercent of what was said that stands after {after} compactions:", soft_wrap=True
    )
    console.print(make_table(columns, rows, **style))
    if report.account is not None:
        console.print(make_table(("", ""), list(list_account(report.account)), show_header=False, **style))
    if report.stop_reason:
        console.print(f"Not everything was measured: {report.stop_reason}.", soft_wrap=True)
    if reason := describe_nothing(report):
        console.print(f"Nothing was measured: {reason}.", soft_wrap=True)


def describe_size(report: Report) -> str:
    size = f"{render_quantity(report.conversations, 'conversation')}, {render_quantity(report.rounds, 'round')}"
    compactions = render_quantity(report.methods[0].compactions, "compaction")
    return f"{size}, {render_quantity(report.tokens, 'token')}; {compactions}"


def list_summary_figures(report: Report) -> Iterator[tuple[str, list[str]]]:
    """Yield what is said of each method's summaries as a whole, as rows of a table."""
    yield "invented", [_render_percent(one.invented.percent if one.invented else None) for one in report.methods]
    yield "tokens, mean", [f"{one.summary_tokens:,.0f}" for one in report.methods]


def print_comparison(report: Report, earlier: EarlierReport, console: Console) -> None:
    """Print the figures of *report* beside those of an *earlier* one, and other differences."""
    rows = []
    for name, now in report.figures.items():
        before = earlier.figures.get(name)
        if ("@" not in name or name.startswith("retention")) and (before is not None or now is not None):
            difference = "-" if before is None or now is None else f"{now - before:+.1f}"
            rows.append((name, _render_percent(before), _render_percent(now), difference))
    if report.account is not None and earlier.account is not None:
        for name in ("answers", "input_tokens", "output_tokens", "dollars", "seconds"):
            before, now = earlier.account.get(name), report.account[name]
            if isinstance(before, (int, float)) and now is not None:
                rows.append((name, f"{before:,.6g}", f"{now:,.6g}", f"{now - before:+,.6g}"))
    console.print(make_table(("figure", "before", "now", "difference"), rows))
    for name in sorted({*earlier.settings, *report.settings}):
        before, now = earlier.settings.get(name), report.settings.get(name)
        if before != now:
            console.print(make_one_line(f"{name}: {before} before, {now} now", 200), soft_wrap=True)
    if sorted(earlier.transcripts.values()) != sorted(report.transcripts.values()):
        console.print("The transcripts are not the same: these figures cannot be compared.", soft_wrap=True)


def list_account(account: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield a model's work as rows of a table."""
    yield "answers", account["answers"]
    yield "answers rejected", sum(account["rejected"].values())
    for check, count in account["rejected"].items():
        yield f"  {check}", count
    yield "calls without an answer", account["failed"]
    if account["format"]["of"]:
        yield "edits of notes with the right form", "{part:,} of {of:,}".format_map(account["format"])
    yield "prohibitions lost and put back", account["restored"]
    about = " (in part counted here)" if account["estimated"] else ""
    yield f"input tokens{about}", account["input_tokens"]
    yield "input tokens from the cache", account["cached_tokens"]
    yield f"output tokens{about}", account["output_tokens"]
    yield "cost of all answers", describe_dollars(account["dollars"])
    yield f"paid now, for {render_quantity(account['calls_now'], 'call')}", describe_dollars(account["dollars_now"])
    yield "seconds waited for answers", f"{account['seconds']:,.1f}"


def describe_nothing(report: Report) -> str:
    """Return why there is no summary to measure; "" if there is one."""
    if report.methods[0].compactions:
        return ""
    answers = report.account["answers"] if report.account is not None else 0
    return f"of {render_quantity(answers, 'answer')}, none was accepted" if answers else "no summary was made"


def describe_dollars(dollars: float | None) -> str:
    return "price unknown" if dollars is None else f"${dollars:,.4f}"


def _render_cells(values: Any) -> str:
    return " ".join(f"{'-' if value is None else f'{value:.0f}':>3}" for value in values)


def _render_percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def parse_limits(limits: Sequence[str]) -> dict[str, float]:
    """Return the figures and minima in ``NAME=PERCENT`` texts. Raises ``CommandError`` for anything else."""
    found: dict[str, float] = {}
    for text in limits:
        name, _, number = text.partition("=")
        try:
            found[name] = float(number)
        except ValueError:
            raise CommandError(f"--fail-under takes NAME=PERCENT, as in retention=80, not '{text}'") from None
        if name not in NAMES or not 0 <= found[name] <= 100:
            known = ", ".join(("retention", *KINDS, *_OTHERS))
            raise CommandError(f"--fail-under has {known}, each up to 100, perhaps with @1, @5 or @20; not '{text}'")
    return found


def find_failures(report: Report, limits: Mapping[str, float]) -> list[str]:
    """Return a line for each of *limits* that the figures of *report* are below; and if little or nothing was measured
    of a model, one that says so."""
    failures = [
        f"{name} is {value:g}, below {minimum:g}"
        for name, minimum in limits.items()
        if (value := report.figures[name]) is not None and value < minimum
    ]
    if report.stop_reason and limits:
        failures.append(f"not everything was measured: {report.stop_reason}")
    elif report.account is not None and limits and (reason := describe_nothing(report)):
        failures.append(f"nothing was measured: {reason}")
    return failures
