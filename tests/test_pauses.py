"""What holding compactions costs and saves is measured as the page says, at sizes that take no time."""

from __future__ import annotations

import pytest

from benchmarks import pauses


@pytest.mark.slow
def test_without_pauses_the_same_compactions_are_shown_later() -> None:
    """When they are repaid, which costs more."""
    ready, held = (pauses.converse(publish, 0, turns=35) for publish in ("immediately", "deferred"))
    assert (ready.published, ready.reasons) == (2, {})
    assert held.reasons["repaid"] >= 1
    assert held.summarizer == ready.summarizer
    assert held.peak > ready.peak
    assert held.agent > ready.agent
    assert max(ready.peak, held.peak) <= pauses.BUDGET


@pytest.mark.slow
def test_with_pauses_compactions_come_in_these_whether_deferred_or_not() -> None:
    """The trigger has learned them: the cache is cold anyway, so nothing is gained by waiting longer."""
    ready, held = (pauses.converse(publish, 3, turns=35) for publish in ("immediately", "deferred"))
    assert ready.published > 2
    assert set(held.reasons) == {"cold"}
    assert (held.agent, held.summarizer, held.peak) == (ready.agent, ready.summarizer, ready.peak)


def test_it_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pauses, "EVERY", (0, 5))
    monkeypatch.setattr(pauses, "converse", lambda publish, every: pauses.Outcome(10.0, 5.0, 1, pauses.Counter(), 9))
    pauses.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["a pause after every", "---", "none", "5 turns"]
    assert rows[2].split("|")[4].strip() == "1.00"
