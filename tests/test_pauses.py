"""What holding compactions costs and saves is measured as the page says, at sizes that take no time."""

from __future__ import annotations

import pytest

from benchmarks import pauses


@pytest.mark.slow
@pytest.mark.parametrize(("every", "reason"), [(0, "repaid"), (3, "cold")])
def test_the_same_compactions_are_shown_later(every: int, reason: str) -> None:
    """Without pauses when they are repaid, which costs more; with pauses when the cache is cold anyway."""
    ready, held = (pauses.converse(publish, every, turns=35) for publish in ("immediately", "deferred"))
    assert (ready.published, ready.reasons) == (2, {})
    assert held.reasons[reason] >= 1
    assert held.summarizer == ready.summarizer
    assert held.peak > ready.peak
    assert every or held.agent > ready.agent
    assert max(ready.peak, held.peak) <= pauses.BUDGET


def test_it_prints_a_table(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pauses, "EVERY", (0, 5))
    monkeypatch.setattr(pauses, "converse", lambda publish, every: pauses.Outcome(10.0, 5.0, 1, pauses.Counter(), 9))
    pauses.main()
    rows = capsys.readouterr().out.splitlines()
    assert [row.split("|")[1].strip() for row in rows] == ["a pause after every", "---", "none", "5 turns"]
    assert rows[2].split("|")[4].strip() == "1.00"
