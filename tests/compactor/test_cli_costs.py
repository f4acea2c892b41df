"""``compactor costs``: what was spent and saved, by the logs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from command_line import dialogue, refusal, run
from executors import ManualExecutor
from logged import entry, record
from stored_sessions import session, summarise, url_of

from compactor import CompactorConfig, ContextCompactor, Summary, SummaryRequest
from compactor.testing import FakeClock, ScriptedSummarizer, summarize_by_terms
from memory import Entry, Reduction, open_store

ROLE = "assistant"
USAGE = {"input_tokens": 1_000_000, "output_tokens": 100_000, "cached_tokens": 500_000}
#: What that costs of gpt-4.1-mini: 0.4, 0.1 and 1.6 dollars a million.
PRICE = 0.5 * 0.4 + 0.5 * 0.1 + 0.1 * 1.6


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path / "chat.db")


def costs(url: str, *words: object) -> Any:
    return run("costs", "--store", url, *words, "--json").document


def prepared(day: int, *, model: str = "gpt-4.1-mini", digest: str = "d", role: str = ROLE) -> Entry:
    made = record("compaction prepared", role=role, digest=digest, base=0, text="s", model=model, usage=USAGE)
    return Entry.of(made, created_at=datetime(2026, 1, day, 12, tzinfo=UTC))


def store_entries(url: str, entries: Sequence[Entry], name: str = "s") -> None:
    store = open_store(url)
    store.append(name, entries, 0)
    store.close()


def test_a_store_without_compactions_has_cost_nothing(url: str) -> None:
    """And says so."""
    with session(url):
        pass
    assert run("costs", "--store", url).out == "nothing was spent or saved\n"
    found = costs(url)
    assert (found["rows"], found["sessions"], found["total"]["spent"]) == ([], 1, 0.0)


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("day", {"2026-01-01": 2, "2026-01-02": 2}),
        ("role", {"Coder": 1, ROLE: 3}),
        ("model", {"gpt-4.1-mini": 3, "nobody-knows-1": 1}),
    ],
)
def test_answers_are_paid_for_once(url: str, by: str, expected: dict[str, int]) -> None:
    """By day, role or model; a model without a known price is counted apart."""
    entries = [prepared(1), prepared(1, digest="e", role="Coder"), prepared(2, model="nobody-knows-1")]
    store_entries(url, entries)
    store_entries(url, [*entries[:1], prepared(2, digest="f")], "copy")  # a fork has some entries of the original
    found = costs(url, "--by", by)
    assert {row[by]: row["answers"] for row in found["rows"]} == expected
    total = found["total"]
    assert (total["answers"], total["unpriced_answers"], total["input_tokens"]) == (4, 1, 4_000_000)
    assert total["spent"] == pytest.approx(3 * PRICE)
    plain = run("costs", "--store", url, "--by", by, COLUMNS="160").out
    assert "* without models whose price is unknown" in plain
    assert all(label in plain for label in expected)


def test_since_leaves_earlier_days_out(url: str) -> None:
    """The day itself is in; a text that is no day is refused."""
    store_entries(url, [prepared(1), prepared(2), prepared(3)])
    assert [row["day"] for row in costs(url, "--since", "2026-01-02")["rows"]] == ["2026-01-02", "2026-01-03"]
    assert costs(url, "--since", "2026-02-01")["rows"] == []
    assert "--since takes a day" in refusal(run("costs", "--store", url, "--since", "soon"))


def test_each_counted_prompt_saves_what_is_in_force(url: str) -> None:
    """At the price of input, cached for the share of the prompt that was; a revert ends it."""
    with session(url, rounds=8) as memory:
        memory.record_usage(ROLE, 5_000)  # nothing is in force yet
        summarise(memory, 3, tokens_before=900, tokens_after=100)
        memory.record_usage(ROLE, 1_000, cached_tokens=500)
        summarise(memory, 6, tokens_before=700, tokens_after=200)
        memory.record_usage(ROLE, 1_000)
        memory.journal(ROLE).revert()
        memory.record_usage(ROLE, 1_000)
    (row,) = costs(url, "--model", "gpt-4.1-mini")["rows"]
    assert (row["prompts"], row["saved_tokens"]) == (3, 800 + 1_300 + 800)
    assert row["saved"] == pytest.approx((400 * 0.1 + 2_500 * 0.4) / 1e6)
    assert row["answers"] == 2  # published by a host, which prepared none
    (row,) = costs(url, "--by", "model")["rows"]
    assert (row["model"], row["unpriced_saved_tokens"], row["unpriced_answers"]) == ("small-1", 2_900, 2)
    assert "$0.0000*" in run("costs", "--store", url).out


def test_a_session_that_counts_no_prompts_has_one_for_each_publication(url: str) -> None:
    """That is the least; a summary that is longer than what it replaces costs."""
    with session(url, rounds=8) as memory:
        summarise(memory, 3, tokens_before=100, tokens_after=300)
        summarise(memory, 6, tokens_before=700, tokens_after=200)
    (row,) = costs(url, "--model", "gpt-4.1-mini")["rows"]
    assert (row["prompts"], row["saved_tokens"]) == (2, -200 + 300)
    assert row["saved"] == pytest.approx(100 * 0.4 / 1e6)


def test_rejected_answers_are_paid_for(url: str) -> None:
    """They are noted with the failure, also where the log says the same already; an accepted one includes those
    before it."""

    bad = Summary("", {"input_tokens": 10}, "gpt-4.1-mini")
    good = Summary(
        "How many of item-1 to item-5 are in which hall was asked and said.", {"input_tokens": 20}, bad.model
    )
    with session(url) as memory:
        options: dict[str, Any] = {"executor": ManualExecutor(), "clock": FakeClock()}
        summarizer = ScriptedSummarizer([bad] * 7 + [good], default=OSError("away"))
        compactor = ContextCompactor.for_role(
            memory, ROLE, CompactorConfig(threshold=2, retain_recent=1), summarizer, **options
        )
        compactor.start()
        for failures in range(4):
            options["executor"].run_all()
            assert compactor.status().failures == (failures + 1) % 4
            options["clock"].advance(3_600)
        for message in dialogue(8)[-12:]:
            memory.append(message)
        options["executor"].run_all()
        assert compactor.stop(30)
    total = costs(url)["total"]
    assert (total["answers"], total["input_tokens"], total["unpriced_answers"]) == (4, 90, 0)


@pytest.mark.parametrize("most", [24_000, 1_000], ids=["in one step", "in several steps"])
def test_a_real_compaction_is_counted_once(url: str, most: int) -> None:
    """Each request is, whether it was prepared, published or both. After a restart it is the same."""
    asked: list[SummaryRequest] = []

    def ask(request: SummaryRequest) -> Summary:
        asked.append(request)
        return Summary(summarize_by_terms(request), {"input_tokens": 700, "output_tokens": 30}, "gpt-4.1-mini")

    with session(url, rounds=30) as memory:
        config = CompactorConfig(threshold=2, retain_recent=1, summarizer_input_tokens=most, target_tokens=100)
        with ContextCompactor.for_role(memory, ROLE, config, summarizer=ask) as compactor:
            assert compactor.compact_now(timeout=60) is not None
    assert (len(asked) > 1) == (most == 1_000)
    (row,) = costs(url)["rows"]
    assert (row["input_tokens"], row["output_tokens"]) == (700 * len(asked), 30 * len(asked))
    assert row["spent"] == pytest.approx(len(asked) * (700 * 0.4 + 30 * 1.6) / 1e6)
    assert costs(url)["rows"] == [row]


@pytest.mark.parametrize("steps", [0, 1])
def test_a_reduction_by_a_model_is_paid_for_once(url: str, steps: int) -> None:
    """Where its answer was prepared, and where it was not."""
    with session(url) as memory:
        journal, round_ = memory.journal(ROLE), memory.conversation.rounds[0]
        for _ in range(steps):
            journal.prepare(
                record("compaction prepared", role=ROLE, digest="d", base=0, kind="tool_run", text="s", usage=USAGE)
            )
        made = Reduction.over(round_, [round_.post_list[1]], "offloaded", "s", generation=0, usage=USAGE)
        assert journal.reduce(made, base=0) is not None
    assert costs(url)["total"]["answers"] == 1


def test_damaged_sessions_are_left_out_and_counted(url: str) -> None:
    """And a role's name does nothing to a terminal."""
    store_entries(url, [Entry("event", body='{"role": 1}')], "broken")
    store_entries(url, [prepared(1, role="a\x1b[2J")])
    found = costs(url)
    assert (found["sessions"], found["unread"]) == (1, 1)
    out = run("costs", "--store", url, "--by", "role").out
    assert "a\\x1b[2J" in out
    assert "\x1b" not in out


def test_events_with_odd_facts_cost_nothing(url: str) -> None:
    """A log from elsewhere may hold anything."""
    odd = [{"usage": 3}, {"usage": {"input_tokens": "many"}}, {"usage": {"input_tokens": -1}}, {}]
    store_entries(url, [entry("event", role=ROLE, name="x", facts=facts) for facts in odd])
    assert costs(url)["rows"] == []
