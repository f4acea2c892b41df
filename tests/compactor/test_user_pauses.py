"""Pauses: a prompt that will be read cold anyway is made short before that, and has its new beginning for nothing."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import cycle
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from newcomer import MODEL, Client, Session
from scene import of_kind

from compactor import CostEvaluated
from compactor.cost.pauses import CACHE_SECONDS, LAST_CALL_SECONDS, Pauses
from compactor.testing import FakeClock
from memory import Memory

pytestmark = pytest.mark.timeout(120)
#: A night.
LONG = 40_000.0


class Talkative(Client):
    """A model whose changes are longer than all notes are."""

    def _write(self, text: str, *, for_changes: bool) -> str:
        said = super()._write(text, for_changes=for_changes)
        return f"{said}\nadd [Done]: {'It was looked at once more. ' * 60}" if for_changes else said


def chat(agent: str = MODEL, client: Client | None = None) -> Session:
    """Return a session whose rounds are stamped by its compactor's clock."""
    clock = FakeClock()
    return Session(client or Client(hit=0.9), agent=agent, memory=Memory("s", clock=clock.now), clock=clock)


def pause(session: Session, seconds: float) -> None:
    """Let nobody say anything for *seconds* in all; the compactor works whenever its timer wakes it."""
    passed = 60.0  # by the turn itself
    while passed < seconds:
        step = min([*session.clock.pending, seconds - passed])
        session.clock.advance(max(step, 0.001))
        session.executor.run_all()
        passed += max(step, 0.001)


def sittings(session: Session, count: int, turns: int, seconds: float = LONG) -> Session:
    for _ in range(count):
        session.turns(turns)
        pause(session, seconds)
    return session


def reasons(session: Session) -> list[str]:
    return [one.reason for one in of_kind(session.events, CostEvaluated) if one.is_due]


@pytest.mark.parametrize(("agent", "turns"), [(MODEL, 9), ("gpt-4.1-mini", 6)])
def test_it_compacts_in_a_pause_that_outlasts_the_cache(agent: str, turns: int) -> None:
    """From the second one on: then it knows that somebody comes back. So the first prompt of a sitting is short."""
    session = sittings(chat(agent), 1, turns)
    assert "pause" not in reasons(session)
    sittings(session, 7, turns)
    assert reasons(session).count("pause") >= 4
    first, last = session.prompts[4 * turns :: turns], session.prompts[4 * turns - 1 :: turns]
    assert max(prompt.tokens for prompt in first) < min(prompt.tokens for prompt in last)


def test_a_model_that_may_share_the_cache_is_asked_while_it_lasts() -> None:
    """Also the very first time: asked after it, the model would seem not to share it, and be sent transcripts."""
    session = sittings(chat(agent=""), 8, 4)
    posted = [post.created_at for one in session.memory.conversation.rounds for post in one.post_list]
    looks = [one for one in of_kind(session.events, CostEvaluated) if one.reason == "pause"]
    assert len(looks) >= 3
    for look in looks:
        idle = (look.at - max(one for one in posted if one <= look.at)).total_seconds()
        assert LAST_CALL_SECONDS <= idle < CACHE_SECONDS


def test_nothing_waits_for_a_pause_where_there_was_none() -> None:
    """Without a long pause, no timer runs and nobody is asked early, however long the newest pause is."""
    session = chat().turns(30)
    assert session.clock.pending == []
    pause(session, LONG)
    assert "pause" not in reasons(session)


def test_a_pause_costs_one_compaction_however_long_it_is() -> None:
    """Afterwards nothing new is there, and no timer runs."""
    session = sittings(chat(), 3, 9)
    before = len(session.published)
    pause(session, 100 * LONG)
    assert (len(session.published), session.clock.pending) == (before, [])


def test_short_pauses_make_nothing_due() -> None:
    """Users who mostly come back while the cache lasts would pay for a new beginning each time."""
    session = sittings(chat(), 12, 5, CACHE_SECONDS - 1)
    assert "pause" not in reasons(session)


@settings(deadline=None)
@given(st.floats(0, 1e6), st.floats(0, LAST_CALL_SECONDS))
def test_a_wait_ends_whatever_the_clock_shows(since: float, passed: float) -> None:
    """Sums of seconds are rounded, so the call may come a hair early; another one at the same time would never end."""
    pauses = Pauses(long=1, cold=1)
    _, left = pauses.estimate_likely_cold(passed, continues=True)
    at = since + passed + (left or 0.0)
    assert pauses.estimate_likely_cold(at - since, continues=True)[1] is None


@pytest.mark.parametrize("stamps", [[datetime.min], [datetime.max], [datetime.min, datetime.min.replace(tzinfo=UTC)]])
def test_stamps_that_tell_no_pause_are_none(stamps: list[datetime]) -> None:
    """Hosts that do not know when something was said may say so with the first day of all; some stamps have no zone."""
    clock = FakeClock()
    memory = Memory("s", clock=cycle(stamps).__next__)
    session = Session(Client(hit=0.9), agent=MODEL, memory=memory, clock=clock).turns(25)
    assert session.published
    assert session.compactor.status().last_error is None


def test_a_compactor_that_is_stopped_while_it_looks_leaves_no_timer() -> None:
    session = sittings(chat(), 3, 9)
    while not session.clock.pending:
        session.turn()
    session.compactor.on_event(lambda event: session.compactor.stop(0) if isinstance(event, CostEvaluated) else None)
    session.turn()
    assert session.compactor.status().state == "stopped"
    assert session.clock.pending == []


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(
    st.lists(st.sampled_from([70.0, LAST_CALL_SECONDS + 1, CACHE_SECONDS + 1, LONG]), min_size=1, max_size=8),
    st.integers(3, 10),
)
def test_how_likely_the_cache_expires_is_what_the_pauses_were(pauses: list[float], turns: int) -> None:
    """Never certain, for somebody may not come back; and what is due in a pause covers no fewer tokens than its event
    allows, and saves more of the cold prompt than an early compaction costs."""
    session = chat()
    for seconds in pauses:
        sittings(session, 1, turns, seconds)
    long = sum(one >= LAST_CALL_SECONDS for one in pauses)
    for look in of_kind(session.events, CostEvaluated):
        assert 0 <= look.likely_cold <= long / (long + 1)
        if look.reason == "pause":
            assert look.floor <= look.grown < (look.best or 0)
            early = (1 - look.grown / (look.best or 1)) ** 2 * look.price
            saved = (1 - look.cached_price) * (look.summary + look.retained + look.grown)
            assert early <= look.likely_cold * saved * (1 + 1e-6)


@pytest.mark.slow
def test_facts_pass_through_few_summaries_though_changes_are_long() -> None:
    """Where notes may not be rewritten yet, steps get longer: so neither notes nor rewriting get out of hand."""
    client = Talkative(hit=0.9)
    session = chat(client=client)
    for _ in range(26):
        session.turns(20, said=20, answered=30, every=8)
        pause(session, LONG)
    assert fmean(client.depths.values()) <= 3
    assert max(prompt.tokens for prompt in session.prompts) <= 8_000


def test_it_says_what_it_knows_of_pauses() -> None:
    """How long they have to be, and how many of them outlasted the cache."""
    session = sittings(chat(), 3, 9)
    session.turn()
    assert "3 of 3 pauses of 4 minutes or more outlasted" in session.compactor.describe()
