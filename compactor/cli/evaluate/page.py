"""The report as one HTML page: figures, and each summary beside its source.

All text is escaped, and the page allows no script, no picture and no address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from ...events import escape_controls
from ..page import make_page
from .report import (
    AFTER,
    Measurement,
    Report,
    describe_nothing,
    describe_size,
    list_account,
    list_summary_figures,
)
from .retention import KINDS
from .runner import Source

_STYLE = """\
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 90rem; padding: 0 1rem;
  color: #222; background: #fff; }
p { overflow-wrap: anywhere; }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { border-bottom: 1px solid #ccc; padding: .2rem .8rem; text-align: right; vertical-align: top; }
th:first-child, td:first-child { text-align: left; white-space: pre-wrap; }
summary { cursor: pointer; padding: .3rem 0; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; background: #f6f6f6; padding: .8rem; }
mark { background: #fbb; color: inherit; }
.lost { color: #a00; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; }
  th, td { border-color: #444; }
  .text { background: #262626; }
  mark { background: #733; }
  .lost { color: #f88; }
}
"""


def make_report_page(report: Report, results: Iterable[tuple[Source, Sequence[Measurement]]]) -> str:
    """Return the page of *report*, with the summaries of its first method."""
    return make_page("What survives", _STYLE, "\n".join((*_render_figures(report), *_render_summaries(results))))


def _render_figures(report: Report) -> Iterator[str]:
    yield "<h1>What survives</h1>"
    settings = ", ".join(f"{name}: {value}" for name, value in report.settings.items() if value not in (None, ""))
    yield f"<p>{_render_text(settings)}</p>"
    if report.stop_reason:
        yield f'<p class="lost">Not everything was measured: {_render_text(report.stop_reason)}.</p>'
    if reason := describe_nothing(report):
        yield f'<p class="lost">Nothing was measured: {_render_text(reason)}.</p>'
    yield f"<p>{_render_text(describe_size(report))}. Percent of what was said that survives:</p>"
    names = (f'<th colspan="{len(AFTER)}">{_render_text(method.name)}</th>' for method in report.methods)
    yield f"<table><tr><th></th>{''.join(names)}</tr>"
    yield _render_row("after so many compactions", (str(after) for _ in report.methods for after in AFTER))
    for kind, label in KINDS.items():
        found = [method.retention.get(kind, {}) for method in report.methods]
        if any(found):
            shares = (shares.get(one) for shares in found for one in AFTER)
            yield _render_row(
                label, ("-" if share is None or share.percent is None else f"{share.percent:.0f}" for share in shares)
            )
    means = (method.compute_mean(one) for method in report.methods for one in AFTER)
    yield _render_row("mean of kinds", ("-" if mean is None else f"{mean:.0f}" for mean in means))
    for label, figures in list_summary_figures(report):
        cells = "".join(f'<td colspan="{len(AFTER)}">{_render_text(figure)}</td>' for figure in figures)
        yield f"<tr><td>{label}</td>{cells}</tr>"
    yield "</table>"
    if report.account is not None:
        yield "<table>"
        for label, value in list_account(report.account):
            yield _render_row(label, [f"{value:,}" if isinstance(value, int) else str(value)])
        yield "</table>"


def _render_summaries(results: Iterable[tuple[Source, Sequence[Measurement]]]) -> Iterator[str]:
    for source, measured in results:
        yield f"<h2>{_render_text(source.name)}</h2>"
        for number, one in enumerate(measured, 1):
            lost = [(item, after) for item, after, stands in one.items if not stands]
            end = one.compaction.end
            rounds = f"round {end}" if one.start == end else f"rounds {one.start} to {end}"
            title = f"Compaction {number}, {rounds}"
            counts = f"{len(one.items) - len(lost)} of {len(one.items)} stand" if one.items else "nothing is asked for"
            invented = f", {len(one.invented)} invented" if one.invented else ""
            yield f"<details><summary>{title}: {counts}{invented}</summary>"
            yield '<div class="beside"><div><h3>Newly covered</h3>'
            for covered in range(one.start, end + 1):
                yield f'<p>Round {covered}</p><div class="text">{_render_text(source.texts[covered - 1])}</div>'
            yield "</div><div><h3>Summary</h3>"
            yield f'<div class="text">{_mark(one.compaction.summary, one.invented)}</div>'
            if one.invented:
                yield f"<p>Nobody said: <mark>{'</mark> <mark>'.join(map(_render_text, one.invented))}</mark></p>"
            if lost:
                yield "<h3>Lost</h3><table><tr><th>what</th><th>round</th><th>after</th><th>as it was said</th></tr>"
                for item, after in lost:
                    text = f"{item.name}: {item.text}" if item.name and item.name != item.text else item.text
                    yield _render_row(KINDS[item.kind], (str(item.round), str(after), text), "lost")
                yield "</table>"
            yield "</div></div></details>"


def _render_row(label: str, cells: Iterable[str], style: str = "") -> str:
    tds = "".join(f"<td>{_render_text(cell)}</td>" for cell in (label, *cells))
    return f'<tr class="{style}">{tds}</tr>' if style else f"<tr>{tds}</tr>"


def _mark(text: str, names: Sequence[str]) -> str:
    """Return *text* escaped, with *names* marked in it."""
    if not names:
        return _render_text(text)
    longest_first = "|".join(map(re.escape, sorted(names, key=len, reverse=True)))
    parts = re.split(rf"(?<!\w)({longest_first})(?!\w)", text, flags=re.IGNORECASE)
    return "".join(
        f"<mark>{_render_text(part)}</mark>" if index % 2 else _render_text(part) for index, part in enumerate(parts)
    )


def _render_text(text: str) -> str:
    return escape(escape_controls(text))
