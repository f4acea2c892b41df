"""Events are typed facts about decisions: numbers, names and reasons, and never a text that somebody wrote."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from scene import memory_of, of_kind, on_command

from compactor import (
    Discarded,
    Evaluated,
    Failed,
    FailureKind,
    Prepared,
    Published,
    Rejected,
    Skip,
    Skipped,
    SpendExceeded,
    Started,
    StrategyFailed,
    SummarizerError,
    SummaryRejected,
)
from compactor.testing import ScriptedSummarizer
from memory import Event, Redacted, StaleCompaction, StoreError

#: Text fields, and why none of them holds what was said.
WORDS = {
    "role": "an agent's name",
    "session": "the session's name",
    "reason": "a word of ours",
    "error": "the class of an error, or the name of a check",
    "hook": "the name of a function",
    "model": "a model's name",
    "encoding": "an encoding's name",
    "check": "the name of a check",
    "strategy": "the name of a function",
    "kind": "offloaded, dropped or summarised",
    "round_id": "an id",
    "first_round_id": "an id",
    "last_round_id": "an id",
    "first_post_id": "an id",
    "last_post_id": "an id",
    "previous_post_id": "an id",
    "next_post_id": "an id",
    "references": "places in the log",
    "unknown_identifiers": "what a summarizer made up, which no conversation holds; at level debug only",
}


def kinds(base: type[Event] = Event) -> Iterator[type[Event]]:
    for kind in base.__subclasses__():
        if kind.__module__.partition(".")[0] in ("memory", "compactor"):
            yield kind
            yield from kinds(kind)


NAMED = sorted((kind for kind in kinds() if kind.name != "event"), key=lambda kind: kind.name)


def types_in(annotation: Any) -> set[Any]:
    """Return the plain types that a field may hold, those inside mappings and unions included."""
    if typing.get_origin(annotation) is typing.Literal:
        return {typing.Literal}  # words of ours, all of them written in the source
    inner = typing.get_args(annotation)
    return set().union(*map(types_in, inner)) - {...} if inner else {annotation}


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.name)
def test_no_field_has_room_for_what_was_said(kind: type[Event]) -> None:
    """Numbers, times and flags, and text only under names that stand for names."""
    for name, field in kind.model_fields.items():
        held = types_in(field.annotation)
        if name == "usage":
            assert held == {str, int, types.NoneType}
            continue
        assert held <= {int, float, bool, str, datetime, Skip, FailureKind, typing.Literal, types.NoneType}, name
        if str in held:
            assert name in WORDS, f"{kind.__name__}.{name} may hold any text"
            assert name != "unknown_identifiers" or kind.level == "debug"


@pytest.mark.parametrize("kind", NAMED, ids=lambda kind: kind.name)
def test_an_event_has_a_dotted_name_a_level_and_a_docstring(kind: type[Event]) -> None:
    """Hosts filter by the name; logs go by the level."""
    assert len(kind.name.split(".")) == 2
    assert kind.level in ("debug", "info", "warning")
    assert kind.__doc__
    assert not {"event", "level", "timestamp"} & set(kind.model_fields), "log lines have these names themselves"


def test_no_two_events_share_a_name() -> None:
    """A name stands for one class."""
    assert len({kind.name for kind in NAMED}) == len(NAMED)
    assert len(NAMED) >= 12


def test_an_event_cannot_be_changed() -> None:
    """All hooks see the same facts."""
    event = Discarded(reason="late")

    with pytest.raises(ValidationError, match="frozen"):
        event.reason = "stopped"


def test_facts_leave_out_the_time_and_what_says_nothing() -> None:
    """What a log line shows beside name and time."""
    began = Started(role="Planner", generation=2, start=1, end=7, tokens_before=900)
    span = {"session": "", "role": "Planner", "generation": 2, "start": 1, "end": 7}
    prepared = Prepared(**span, tokens_before=900, tokens_after=80, seconds=0.5, model="gpt-x")

    assert began.facts() == {**span, "seconds": 0.0, "strategy": "", "tokens_before": 900, "waited": 0.0}
    assert prepared.facts() == {
        **span, "strategy": "", "tokens_before": 900, "tokens_after": 80, "seconds": 0.5, "model": "gpt-x",
        "restored": 0, "unknown_identifiers": (), "reused": False, "major": False, "sent_tokens": 0,
    }  # fmt: skip
    assert isinstance(began.at, datetime)
    assert began.at.tzinfo is not None


def test_only_the_quietest_level_holds_what_was_made_up() -> None:
    """Logs at info and above have numbers, names and reasons alone; a refused summary's failure is told aloud."""
    holding = {kind for kind in NAMED if "unknown_identifiers" in kind.model_fields}

    assert holding == {Prepared, Rejected}
    assert {kind.level for kind in holding} == {"debug"}
    assert Failed.level == StrategyFailed.level == "warning"


def test_zero_and_false_are_facts() -> None:
    """Only what is not known is left out."""
    assert Evaluated(is_due=False, rounds=0, tail=0).facts() == {
        "session": "",
        "role": "",
        "generation": 0,
        "seconds": 0.0,
        "is_due": False,
        "forced": False,
        "rounds": 0,
        "tail": 0,
    }


@pytest.mark.parametrize("reason", Skip)
def test_every_reason_not_to_run_has_a_word(reason: Skip) -> None:
    """The word is stable, and comes out of JSON as the same reason."""
    event = Skipped(reason=reason, rounds=1, tail=1, closed=1)

    assert reason == reason.value == reason.name.lower()
    assert Skipped.model_validate_json(event.model_dump_json()) == event


def test_an_event_survives_json() -> None:
    """A host may store events and read them again."""
    event = Published(start=1, end=2, tokens_before=9, tokens_after=3, seconds=0.1, usage={"input_tokens": 9})

    assert Published.model_validate_json(event.model_dump_json()) == event


class Refused(Exception):
    """As clients raise: with the endpoint's status."""

    def __init__(self, status: object) -> None:
        super().__init__("the user's secret")
        self.status_code = status


class ConnectTimeout(Exception):
    """As an HTTP client names it."""


def caused_by(cause: Exception) -> SummarizerError:
    error = SummarizerError("the summarizer failed")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [
        (TimeoutError(), FailureKind.TIMEOUT, None),
        (ConnectTimeout(), FailureKind.TIMEOUT, None),
        (Refused(408), FailureKind.TIMEOUT, 408),
        (Refused(429), FailureKind.RATE_LIMIT, 429),
        (caused_by(Refused(403)), FailureKind.AUTHENTICATION, 403),
        (caused_by(Refused(402)), FailureKind.AUTHENTICATION, 402),
        (caused_by(Refused(422)), FailureKind.REQUEST, 422),
        (Refused(529), FailureKind.SERVER, 529),
        (ConnectionRefusedError(), FailureKind.NETWORK, None),
        (SummaryRejected("empty", "no text"), FailureKind.REJECTED, None),
        (SpendExceeded(2.0, 1.0, "dollars"), FailureKind.SPEND_LIMIT, None),
        (StoreError("the disk is full"), FailureKind.STORE, None),
        (StaleCompaction("rounds_changed"), FailureKind.CHANGED, None),
        (Refused(0), FailureKind.OTHER, None),
        (Refused("invalid_api_key"), FailureKind.OTHER, None),
        (LookupError(), FailureKind.OTHER, None),
    ],
    ids=repr,
)
def test_a_failure_is_told_by_its_kind(error: Exception, kind: FailureKind, status: int | None) -> None:
    """Of an error of ours, a client's or a host's own; what is no HTTP status is not told as one."""
    compactor, executor, _ = on_command(memory_of(8), ScriptedSummarizer(default=error))
    compactor.start()
    executor.run_all()
    (failed,) = of_kind(compactor.events, Failed)
    assert (failed.kind, failed.status) == (kind, status)


def test_every_event_says_of_which_session_and_role_it_is_and_when_it_began() -> None:
    """Those of presets too; the time that it took is 0 for what takes none."""
    import compactor.presets

    assert compactor.presets.MemoryCompressed in kinds()
    for kind in kinds():
        assert kind.model_fields.keys() >= {"at", "session", "role", "seconds"}, kind
    event = Redacted(session="s", references=("r1.p0",), seconds=2.0)
    assert event.at - event.started == timedelta(seconds=2)
    assert event.facts() == {"session": "s", "role": "", "seconds": 2.0, "references": ("r1.p0",)}
