"""What commands say of what was saved: counts by strategy and by level, and checks that look for themselves."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

import pytest
from chats import calls, result
from rich.console import Console

from compactor import (
    CompactedMessage,
    CompactorConfig,
    ContextCompactor,
    Discarded,
    Evaluated,
    Exhausted,
    Failed,
    Prompt,
    Published,
    Reduced,
    Reduction,
    Report,
    Reverted,
    Started,
    Stopped,
    StrategyFailed,
    View,
    compact_rounds,
    compose,
    count_prompt,
    count_tokens,
)
from compactor import ShortenedPart as Shortened
from compactor.cli.savings import (
    LEVELS,
    NO_SAVING,
    NO_WORK,
    Figures,
    StatsCollector,
    add_figures,
    count_levels,
    count_open_calls,
    count_orphaned_calls,
    describe_event,
    is_verbatim,
    make_level_table,
    make_strategy_table,
)
from compactor.testing import ScriptedSummarizer
from memory import Memory

ASKED = {"role": "user", "content": "Which?"}


# -- checks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "wrong"),
    [
        ([], 0),
        ([ASKED, calls("a", "b"), result("b"), result("a"), ASKED], 0),
        ([calls("a", "a"), result("a"), result("a"), ASKED], 0),
        ([ASKED, calls("a", "b"), result("a")], 0),  # the other may come yet
        ([ASKED, calls("a", "b"), result("a"), ASKED], 1),
        ([ASKED, calls("a"), ASKED, result("a")], 2),  # parted
        ([ASKED, result("a")], 1),
        ([calls("a"), result("a"), result("a")], 1),
        ([calls("a"), calls("b"), result("b")], 1),
        ([{"role": "user", "content": "", "tool_calls": [{"id": "x"}]}, {"role": "assistant", "tool_calls": [7]}], 0),
    ],
)
def test_calls_parted_from_their_results_are_counted(messages: list[Mapping[str, Any]], wrong: int) -> None:
    """As a provider would refuse them: a call without its results at once, a result without its call."""
    assert count_orphaned_calls(messages) == wrong


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        ([], 0),
        ([result("a")], 0),
        ([ASKED], 0),
        ([calls("a", "b")], 2),
        ([calls("a", "b"), result("b")], 1),
        ([calls("a"), result("a")], 0),
        ([calls("a"), result("b")], 1),
        ([calls("a"), ASKED], 0),
    ],
)
def test_calls_that_wait_at_the_end_are_counted(messages: list[Mapping[str, Any]], calls: int) -> None:
    assert count_open_calls(messages) == calls


def test_a_message_is_whole_only_as_it_was_said() -> None:
    assert is_verbatim(ASKED, [calls("a"), dict(ASKED)])
    assert not is_verbatim(ASKED, [{"role": "user", "content": "Whi"}])
    assert not is_verbatim(ASKED, [])


def test_an_earlier_message_that_says_the_same_does_not_stand_for_the_newest() -> None:
    """Users say "yes" many times; the one that is answered now must be there itself."""
    yes, no, told = ({"role": "user", "content": text} for text in ("yes", "no", "[told by nobody]"))
    assert is_verbatim(yes, [yes, calls("a"), no, yes, told], [yes, no])
    assert not is_verbatim(yes, [yes, calls("a"), no, told], [yes, no])


def test_tokens_are_those_that_compose_counts() -> None:
    """Two ways to the same number: what is counted anew can be held against what compose promises."""
    memory = Memory()
    for message in (ASKED, calls("a"), result("a", "seven"), {"role": "assistant", "content": "The seventh."}):
        memory.append(message)
    prompt = compose(memory, budget=1000)
    assert count_prompt(prompt.messages, count_tokens) == prompt.tokens


# -- savings ----------------------------------------------------------------------------------------------------------


def test_figures_add_up_by_name_in_the_order_they_come() -> None:
    """Also those in mappings; what is no number is left out."""
    sums: Figures = {}
    add_figures(sums, {"name": "d1", "rounds": 1, "strategies": {"a": {"overlays": 1, "background_seconds": 0.5}}})
    add_figures(sums, {"rounds": 2, "strategies": {"b": {"overlays": 4}, "a": {"overlays": 2}}})
    assert sums == {"rounds": 3, "strategies": {"a": {"overlays": 3, "background_seconds": 0.5}, "b": {"overlays": 4}}}
    assert list(sums["strategies"]) == ["a", "b"]


def test_a_watch_counts_what_each_strategy_saved() -> None:
    """Each overlay and each request counts for the strategy that its event names; those without any have zeros."""
    memory = Memory()
    for number in range(5):
        round_ = memory.create_round(f"Question {number}? " + "Tell me all there is to be told of it. " * 20)
        memory.add_post(round_, send_from="P", send_to="User", message=f"Item {number}: " + "so it is. " * 150)
        memory.finish_round(round_)

    def lightest(view: View) -> list[Reduction]:
        round_ = view.get_round(0)
        return [Reduction.over(round_, [round_.post_list[0]], "offloaded", "Item 0, and so on; reload r1.p1")]

    def never(view: View) -> list[Reduction]:
        return []

    strategies = [lightest, never, compact_rounds]
    stats = StatsCollector(strategies)
    assert stats.get_figures()["strategies"] == dict.fromkeys(("lightest", "never", "compact_rounds"), NO_SAVING)
    refused_first = ScriptedSummarizer(["", "All items were told of."])
    config = CompactorConfig(threshold=1, retain_recent=1)
    with ContextCompactor.for_role(
        memory, "P", config, refused_first, strategies=strategies, on_event=stats
    ) as compactor:
        assert compactor.wait_idle(20)
    figures = stats.get_figures()
    assert list(figures["strategies"]) == ["lightest", "never", "compact_rounds"]
    light, none, heavy = figures["strategies"].values()
    assert (light["overlays"], light["requests"], none) == (1, 0, NO_SAVING)
    assert light["tokens_saved"] == light["tokens_before"] - light["tokens_after"] > 200
    assert (heavy["overlays"], heavy["requests"]) == (1, 2)
    assert heavy["tokens_saved"] > 500
    assert (figures["compactions"], figures["reductions"]) == (1, 1)
    assert figures["background_seconds"] == pytest.approx(light["background_seconds"] + heavy["background_seconds"])


def test_requests_count_though_nothing_came_of_them() -> None:
    """A summarizer that is asked in vain has its price all the same."""
    memory = Memory()
    for number in range(4):
        memory.finish_round(memory.create_round(f"Question {number}: {'what? ' * 100}"))
    stats = StatsCollector()
    config = CompactorConfig(threshold=1, retain_recent=1, summary_attempts=3)
    with ContextCompactor.for_role(memory, "P", config, ScriptedSummarizer(default=""), on_event=stats) as compactor:
        compactor.wait_idle(20)
    saving = stats.get_figures()["strategies"]["compact_rounds"]
    assert saving["requests"] % 3 == 0
    assert saving["requests"] >= 3
    assert saving["overlays"] == 0


# -- levels -----------------------------------------------------------------------------------------------------------


def under_pressure(budget: int) -> Prompt:
    """Return the prompt of a conversation with large results, old and new, in so many tokens."""
    memory = Memory()
    for number in range(8):
        memory.append({"role": "user", "content": f"And number {number}?"})
        for part, length in (("a", 60), ("b", 480)):
            memory.append(calls(f"{number}{part}"))
            memory.append(result(f"{number}{part}", f"{number}{part}: " + "word after word, " * length))
    return compose(memory, budget=budget)


def test_each_level_counts_what_it_did_for_a_prompt() -> None:
    """Previews, lines, rounds left out, clipped texts: as many as the report says, each by the line in its place."""
    for budget in (6_000, 3_000, 1_200, 400):
        prompt = under_pressure(budget)
        levels = count_levels(prompt)
        assert list(levels) == list(LEVELS)
        shown_shorter = sum(level["times"] for name, level in levels.items() if name != "left_out")
        assert shown_shorter == len(prompt.report.reductions)
        assert levels["left_out"]["times"] == len(prompt.report.omitted_rounds)
        saved = prompt.report.tokens_before - prompt.report.tokens_after
        assert sum(level["tokens_saved"] for level in levels.values()) == saved > 0
        text = "\n".join(str(message.get("content")) for message in prompt.messages)
        assert levels["offloaded"]["times"] == text.count("left out here and kept in full; reload r")
        assert levels["clipped"]["times"] == text.count(" ...]\n")
        assert levels["cleared"]["times"] == len(
            re.findall(r"^\[[\d,]+ characters left out; reload \S+\]$", text, re.M)
        )


def test_light_pressure_takes_light_levels_and_heavy_pressure_heavy_ones() -> None:
    light, heavy = count_levels(under_pressure(9_000)), count_levels(under_pressure(400))
    assert light["offloaded"]["times"] > 0
    assert light["left_out"] == light["clipped"] == NO_WORK
    assert heavy["left_out"]["prompts"] == heavy["clipped"]["prompts"] == 1


def test_a_summary_that_is_too_long_counts_as_clipped() -> None:
    """What stands in front of the tail is part of the prompt like anything else."""
    memory = Memory()
    for number in range(4):
        memory.finish_round(memory.create_round(f"And number {number}?"))
    rounds, said = memory.conversation.rounds, "So it was, and so it is. " * 300
    made = CompactedMessage(start_index=1, end_index=2, end_round_id=rounds[1].id, end_number=2, summary=said)
    memory.journal("assistant").publish(made, base=0, round_ids=[rounds[0].id, rounds[1].id])
    levels = count_levels(compose(memory, budget=400))
    assert (levels["clipped"]["prompts"], levels["clipped"]["times"]) == (1, 1)
    assert levels["clipped"]["tokens_saved"] > 1_000
    assert {name for name, level in levels.items() if level["times"]} == {"clipped"}


def test_what_the_report_says_is_counted_by_what_it_was_done_by() -> None:
    """The prompt itself is not read: a text may hold the very words that stand for one that was left out."""
    line = "[700 characters left out; reload r1.p2]"
    done = {"r1.p1": "offloaded", "r1.p2": "clipped", "r1.p3": "cleared", "r1.p4": "clipped"}
    report = Report(100, 60, reductions=tuple(Shortened(ref, 12, 2, by) for ref, by in done.items()))  # type: ignore[arg-type]
    levels = count_levels(Prompt([{"role": "tool", "content": line}], 60, report))
    once, twice = {"prompts": 1, "times": 1, "tokens_saved": 10}, {"prompts": 1, "times": 2, "tokens_saved": 20}
    assert levels == {"offloaded": once, "cleared": once, "left_out": NO_WORK, "clipped": twice}


# -- tables -----------------------------------------------------------------------------------------------------------


def printed(table: Any) -> str:
    console = Console(file=io.StringIO(), width=80, markup=False)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_long_names_are_folded_at_their_underscores() -> None:
    """Numbers have their room on a narrow terminal, and names are still to be read."""
    name, figures = "large_message_offload_with_protection", (31, 234_567, 98_765, 310, 135_802, 12.3)
    out = printed(make_strategy_table({name: dict(zip(NO_SAVING, figures, strict=True)), "drop(user)": NO_SAVING}))
    for part in (
        "large_message_ ",
        "offload_with_ ",
        "protection ",
        "234,567",
        "98,765",
        "135,802",
        "310",
        "12.3 s",
        "drop(user) ",
    ):
        assert part in out
    assert max(map(len, out.splitlines())) <= 80


def test_large_figures_are_whole_on_a_narrow_terminal() -> None:
    figures = (1_234, 1_123_456_789, 123_456_788, 999_999_999, 12_345, 1_234.5)
    out = printed(make_strategy_table({"compact_rounds": dict(zip(NO_SAVING, figures, strict=True))}))
    assert all(f"{figure:,}" in out for figure in figures[:3])
    assert "…" not in out
    assert max(map(len, out.splitlines())) <= 80


def test_every_level_has_a_row() -> None:
    out = printed(make_level_table({name: dict(zip(NO_WORK, (3, 1_200, 34_567), strict=True)) for name in LEVELS}))
    assert out.count("34,567") == out.count("1,200") == len(LEVELS) == 4


# -- events -----------------------------------------------------------------------------------------------------------


def reduced(strategy: str, kind: str, posts: int) -> Reduced:
    return Reduced(
        strategy=strategy,
        kind=kind,
        round_id="r",
        first_post_id="a",
        last_post_id="b",
        posts=posts,
        tokens_before=4000,
        tokens_after=80,
    )


@pytest.mark.parametrize(
    ("event", "says"),
    [
        (Started(start=3, end=9, tokens_before=1234), "compacting rounds 3-9 in the background (1,234 tokens)"),
        (
            Published(start=1, end=9, tokens_before=1234, tokens_after=99, seconds=0.25),
            "rounds 1-9 now read as a summary: 1,234 -> 99 tokens, 0.2 s",
        ),
        (Failed(error="echo", failures=1, retry_in=2.0), "no summary this time (echo); next try in 2 s"),
        (Reverted(end=0), "reverted: all rounds are as they were said again"),
        (Reverted(end=4), "reverted: the summary covers rounds 1-4 again"),
        (Discarded(reason="late"), "a summary came too late and was discarded (late)"),
        (Stopped(reason="executor_shut_down"), "stopped (executor_shut_down)"),
        (Discarded(reason="already_covered"), ""),
        (reduced("offload_large", "offloaded", 1), "offload_large: a post reads shorter, 4,000 -> 80 tokens"),
        (reduced("drop(status)", "dropped", 7), "drop(status): 7 posts dropped, 4,000 -> 80 tokens"),
        (
            StrategyFailed(strategy="drop", error="KeyError"),
            "drop made nothing this time (KeyError); the next strategy is tried",
        ),
        (Exhausted(strategies=3, tokens=4321), "all 3 strategies together were not enough (4,321 tokens)"),
        (Evaluated(is_due=False, rounds=3, tail=3), ""),
    ],
)
def test_events_read_as_sentences(event: Any, says: str) -> None:
    assert describe_event(event) == says


def test_a_watch_adds_up_and_tells_each_thing_once() -> None:
    """From whatever thread events come, none is counted twice or lost."""
    stats = StatsCollector()
    stats(Started(start=1, end=2, tokens_before=10))
    stats(Published(start=1, end=2, tokens_before=10, tokens_after=5, seconds=0.5))
    stats(Failed(error="echo", failures=1, retry_in=1.0))
    stats(Evaluated(is_due=False, rounds=3, tail=3))
    figures = stats.get_figures()
    assert [figures[name] for name in ("compactions", "failures", "background_seconds")] == [1, 1, 0.5]
    assert [said.split()[0] for said in stats.take_news()] == ["compacting", "rounds", "no"]
    assert stats.take_news() == []
