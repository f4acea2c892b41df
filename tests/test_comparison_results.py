"""What is told of a run: money, tables, the picture."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from comparison_parts import small

from benchmarks.comparison.model_server import Answered, Outage
from benchmarks.comparison.money import LISTS, cost_of
from benchmarks.comparison.playing import Outcome
from benchmarks.comparison.plot import plotted
from benchmarks.comparison.report import cpu_table, least_table, numbers, quantile, related, table, waiting, words_table
from benchmarks.comparison.shapes import shape_of


def test_what_requests_cost_follows_the_prices() -> None:
    """Cached and written input, output; a summarizer that continues writes to the cache; what failed costs nothing."""
    log = [
        Answered("agent", 1, 1_000, 400, 10, 0.0),
        Answered("summarizer", 1, 500, 0, 20, 0.0),
        Answered("summarizer", 1, 500, 300, 20, 0.0),
        Answered("summarizer", 1, 500, 0, 0, 0.0, status=500),
    ]
    cost = cost_of(log, LISTS[2].prices)
    assert cost.agent_input == pytest.approx(400 * 0.1 + 600 * 1.25)
    assert cost.agent_output == 50
    assert cost.summarizer_input == pytest.approx(500 + 300 * 0.1 + 200 * 1.25)
    assert cost.summarizer_output == 200
    assert cost.total == cost.agent_input + cost.agent_output + cost.summarizer_input + cost.summarizer_output


def outcome_of(name: str, log: list[Answered], **more: Any) -> Outcome:
    return Outcome(
        **{
            "name": name,
            "version": "1",
            "settings": "",
            "background": False,
            "held": (0.001, 0.002, 6.5),
            "busy": (0.001,) * 3,
            "cpu": (0.001,) * 3,
            "log": tuple(log),
            "costs": tuple(cost_of(log, one.prices) for one in LISTS),
            "over_budget": 0,
            "failed": (),
            "facts_in_prompt": 2,
            "facts_kept": 3,
            "depths": {"KEY-001": 1, "KEY-002": 2},
            "measures": {},
        }
        | more
    )


@pytest.mark.slow
def test_a_table_has_a_row_for_each() -> None:
    """With as many cells as the head; who was played with several lengths of changes stands in a table of those."""
    scenario = small(3)
    log = [Answered("agent", 1, 2_000, 1_024, 50, 1.0), Answered("summarizer", 1, 900, 0, 400, 6.3)]
    base = outcome_of("no compaction", log[:1])
    outcomes = {"nothing": base, "ours:default": outcome_of("ours, by default", log), "x": outcome_of("x<y", log)}
    rows = related([{"label": label} | numbers(scenario, one) for label, one in outcomes.items()])
    assert related(rows[1:])[0]["relative"] is None
    assert rows[0]["relative"] == [1.0] * len(LISTS)
    assert (rows[1]["depth"], rows[1]["held_p50"], rows[1]["held_p99"]) == (1.5, 0.002, 6.5)
    failing = replace(scenario, outage=Outage(1, 2, "fails"))
    assert numbers(failing, outcome_of("a", log))["until_again"] is None
    later = [*log, Answered("summarizer", 5, 900, 0, 400, 6.3)]
    assert numbers(failing, outcome_of("a", later))["until_again"] == 3
    several = [row | {"change_words": 100, "by_words": {"50": row, "400": row}} for row in rows[1:2]]
    printed = words_table([*several, rows[2]]).splitlines()
    assert printed[0].endswith("| 50 | 100 | 400 |")
    assert [line.count("|") for line in printed] == [5, 5, 5]
    assert "(1.5)" in printed[-1]
    assert words_table(rows) == ""
    printed = table(failing, rows).splitlines()
    assert {line.count("|") for line in printed if line.startswith("|")} == {17}
    assert "| 2.00 ms | 6.5 s |" in printed[-2]


def drawn(*told: tuple[str, float, float]) -> ET.Element:
    """Return the picture of those of such names, relative costs and seconds held up."""
    rows = [
        {"name": name, "relative": [cost] * 3, "held_total": held, "facts_in_prompt": 4, "facts": 5}
        for name, cost, held in told
    ]
    return ET.fromstring(plotted("how they <do>", [*rows, {"relative": None}]))  # noqa: S314  (made here)


def parts_of(picture: ET.Element, tag: str) -> list[ET.Element]:
    return [element for element in picture.iter() if element.tag.endswith(f"}}{tag}")]


def test_the_picture_has_a_line_for_each_the_cheapest_first() -> None:
    """With what it cost, waited for and still tells; ours are marked, and a scale of powers is called that."""
    picture = drawn(("no compaction", 1.0, 0.001), ("x<y", 0.5, 100.0), ("ours, by default", 0.4, 0.1))
    lines = parts_of(picture, "g")
    assert [[text.text for text in parts_of(line, "text")] for line in lines] == [
        ["ours, by default", "0.40", "100 ms", "4 of 5"],
        ["x<y", "0.50", "100 s", "4 of 5"],
        ["no compaction", "1.00", "1.00 ms", "4 of 5"],
    ]
    assert [line.get("class") for line in lines] == ["ours", None, None]
    widths = [float(parts_of(line, "rect")[0].get("width", 0)) for line in lines]
    assert widths == pytest.approx([widths[2] * cost for cost in (0.4, 0.5, 1.0)], abs=0.1)
    tenth, hundred, least = (float(parts_of(line, "circle")[0].get("cx", 0)) for line in lines)
    assert (hundred - tenth) / 3 == pytest.approx((tenth - least) / 2, abs=0.1)
    texts = {text.text for text in parts_of(picture, "text")}
    assert {"how they <do>", "cost, no compaction = 1", "chat loop held up in all, log scale"} <= texts
    assert {"0.5", "1 ms", "1 s", "1,000 s"} <= texts


def test_nothing_in_the_picture_stands_on_something_else() -> None:
    """However many there are, and close to each other: texts of one line end before the next begins, within the
    picture; and the ground is painted, in light and in dark."""
    picture = drawn(*((f"ours, in the {place}th way of many", 0.4 + place / 9_000, 0.2) for place in range(30)))
    *_, width, height = map(float, picture.get("viewBox", "").split())
    lines: dict[float, list[tuple[float, float]]] = {}
    for text in parts_of(picture, "text"):
        x, long = float(text.get("x", 0)), 7 * len(text.text or "")
        begins = x - long * {"start": 0, "middle": 0.5, "end": 1}[text.get("text-anchor", "")]
        lines.setdefault(float(text.get("y", 0)), []).append((begins, begins + long))
    heights = sorted(lines)
    assert all(after - before >= 16 for before, after in pairwise(heights))
    assert heights[-1] < height
    for spans in lines.values():
        assert all(end < begin for (_, end), (begin, _) in pairwise(sorted(spans)))
        assert min(spans)[0] >= 0
        assert max(spans)[1] <= width
    style = parts_of(picture, "style")[0].text or ""
    assert style.count(".ground") == 2
    assert "prefers-color-scheme: dark" in style


def test_without_the_control_there_is_no_picture() -> None:
    """Costs are relative to it."""
    with pytest.raises(ValueError, match="nothing to plot"):
        drawn()


def test_what_ours_cost_stands_beside_the_least() -> None:
    """For the sizes that were met; for a run that compacted nothing there is none."""
    scenario = small(3)
    agent = Answered("agent", 1, 2_000, 1_024, 50, 1.0)
    for cached, style in ((0, "separate"), (640, "continue")):
        log = [agent, Answered("summarizer", 1, 900, cached, 400, 6.3)]
        outcome = outcome_of("ours", log, measures={"retained": 700.0})
        met = shape_of(scenario, outcome)
        assert met is not None
        assert (met.style, met.sizes.delta, met.sizes.retained) == (style, 400, 700)
        row = {"relative": None} | numbers(scenario, outcome) | {"least": [met.told(one.prices) for one in LISTS]}
        assert least_table([row]).count("|") == 3 * 12
    assert shape_of(scenario, outcome_of("ours", [agent])) is None


def test_times_are_written_as_people_do() -> None:
    """And a quantile is one of the values."""
    assert [waiting(seconds) for seconds in (0.000_012, 0.0123, 0.123, 6.44, 189.2)] == [
        "0.01 ms",
        "12.3 ms",
        "123 ms",
        "6.4 s",
        "189 s",
    ]
    assert [quantile([3, 1, 2], share) for share in (0.5, 0.99, 0.0)] == [2, 3, 1]
    printed = cpu_table((10, 100), [{"name": "a", "cpu": {"10": 0.001}, "seconds": 2.0, "reached": 50}])
    assert "| a | 1.00 ms | – | 2.0 s for 50 |" in printed
