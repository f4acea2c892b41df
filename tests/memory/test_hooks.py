"""Hooks and providers hear of a fact once it is in the store, can call everything, and break nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial

import pytest
from logged import entry

from memory import CompactedMessage, CompactionProvider, Event, HookFailed, InMemoryStore, Memory, ProviderFailed

LONG = 60.0  # seconds: where a deadlock would otherwise hang the run


class Provider:
    """Counts what it is told; raises where ``fault`` is set."""

    def __init__(self) -> None:
        self.told: list[int | None] = []
        self.fault: Exception | None = None
        self.compaction: CompactedMessage | None = None

    def get_compaction(self) -> CompactedMessage | None:
        if self.fault is not None:
            raise self.fault
        return self.compaction

    def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
        self.told.append(total_rounds)
        if self.fault is not None:
            raise self.fault


class Events(list[Event]):
    """Collects a Memory's events."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        memory.on_event(self.append)


def in_thread(work: Callable[[], object]) -> None:
    """Run *work* in another thread and wait for it. Fails where that takes for ever."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LONG)
    assert not thread.is_alive(), "deadlock"


# -- on_round_added ----------------------------------------------------------------------------------------------------


def test_a_hook_hears_of_each_round_with_the_number_of_rounds() -> None:
    """Of rounds only, failed ones included."""
    memory, totals = Memory(), []
    memory.on_round_added(totals.append)
    for number in range(3):
        round_ = memory.create_round("q")
        memory.add_post(round_, send_from="a", send_to="b")
        memory.finish_round(round_, state="failed" if number == 1 else "finished")
    assert totals == [1, 2, 3]


def test_a_hook_hears_of_rounds_that_messages_open() -> None:
    """Of a user message that opens one, an answer that opens one, and of no other message."""
    memory, totals = Memory(), []
    memory.on_round_added(totals.append)
    for role in ("system", "assistant", "user", "user", "assistant", "system", "user"):
        memory.append({"role": role, "content": "x"})
    assert totals == [1, 2, 3]


def test_hooks_run_in_the_callers_thread_after_the_fact_is_in_the_store() -> None:
    """What they hear of, they can read: from the Memory and from the store."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    seen = []

    def hook(total: int) -> None:
        seen.append((threading.current_thread(), total, len(memory.conversation.rounds), len(list(store.read("s")))))

    memory.on_round_added(hook)
    memory.create_round("q")
    assert seen == [(threading.current_thread(), 1, 1, 1)]


def test_a_hook_that_raises_is_an_event_and_the_next_one_runs() -> None:
    """The round is stored, create_round returns it, and the event shows nothing of what the error says."""
    noon = datetime(2026, 1, 1, tzinfo=UTC)
    memory, totals = Memory("s", clock=lambda: noon), []
    events = Events(memory)

    def broken(total: int) -> None:
        raise ValueError("swordfish")

    memory.on_round_added(broken)
    memory.on_round_added(totals.append)
    assert memory.create_round("q").number == 1
    assert totals == [1]
    hook = "test_a_hook_that_raises_is_an_event_and_the_next_one_runs.<locals>.broken"
    assert events == [HookFailed(at=noon, session="s", hook=hook, error="ValueError")]
    facts = {"session": "s", "role": "", "seconds": 0.0, "hook": hook, "error": "ValueError"}
    assert events[0].facts() == facts


def test_an_event_names_callbacks_that_have_no_name() -> None:
    """By their type; never by their arguments, which may hold anything."""
    memory = Memory()
    events = Events(memory)
    memory.on_round_added(partial(int, base="swordfish"))
    memory.create_round("q")
    assert [event.hook for event in events] == ["partial"]
    assert "swordfish" not in repr(events)


def test_an_event_hook_that_raises_breaks_nothing() -> None:
    """There is nowhere left to report it; the next one runs."""
    memory, heard = Memory(), []
    memory.on_event(lambda event: 1 / 0)
    memory.on_event(heard.append)
    memory.on_round_added(lambda total: 1 / 0)
    memory.create_round("q")
    assert len(heard) == 1


def test_what_must_stop_the_program_is_not_swallowed_and_providers_hear_all_the_same() -> None:
    """Ctrl-C in a hook reaches the host; the round is stored, and the next notification works."""
    memory, provider = Memory(), Provider()
    memory.register_compaction_provider("Planner", provider)

    def interrupt(total: int) -> None:
        raise KeyboardInterrupt

    stop = memory.on_round_added(interrupt)
    with pytest.raises(KeyboardInterrupt):
        memory.create_round("q")
    assert provider.told == [1]
    stop()
    memory.create_round("q")
    assert provider.told == [1, 2]


def test_a_hook_is_taken_out_by_what_registering_it_returned() -> None:
    """Once or often; the same callback registered elsewhere stays."""
    memory, totals = Memory(), []
    stop, _ = memory.on_round_added(totals.append), memory.on_round_added(totals.append)
    memory.create_round("q")
    stop()
    stop()
    memory.create_round("q")
    assert totals == [1, 1, 2]


def test_hooks_are_called_over_a_copied_list() -> None:
    """One that adds or takes out hooks does so for the next time."""
    memory, heard = Memory(), []

    def first(total: int) -> None:
        heard.append(("first", total))
        stop_second()
        memory.on_round_added(lambda total: heard.append(("third", total)))
        stop_first()

    stop_first = memory.on_round_added(first)
    stop_second = memory.on_round_added(lambda total: heard.append(("second", total)))
    memory.create_round("q")
    memory.create_round("q")
    assert heard == [("first", 1), ("second", 1), ("third", 2)]


# -- calling back ------------------------------------------------------------------------------------------------------


def everything(memory: Memory) -> None:
    """Call every method that a hook might."""
    stop = memory.on_round_added(lambda total: None)
    detach = memory.register_compaction_provider("Other", Provider())
    for round_ in memory.conversation.rounds:
        if not round_.closed:
            memory.add_post(round_, send_from="hook", send_to="User", message="noted")
            memory.finish_round(round_)
        memory.finish_round(round_, state="failed")
    memory.append({"role": "assistant", "content": "from a hook"})
    memory.get_role_rounds("Planner")
    memory.messages()
    memory.reload("r1")
    memory.journal("Planner").revert()
    detach()
    stop()


def test_a_hook_may_call_everything() -> None:
    """No lock is held while it runs: neither in its own thread, nor for another that it waits for."""
    memory = Memory()
    events = Events(memory)

    def hook(total: int) -> None:
        if total == 1:
            everything(memory)
            in_thread(partial(everything, memory))

    memory.on_round_added(hook)
    in_thread(lambda: memory.create_round("q"))
    assert events == []
    assert [round_.state for round_ in memory.conversation.rounds] == ["failed", "failed", "created"]


def test_a_provider_and_an_event_hook_may_call_everything() -> None:
    """The same holds for whoever else is called."""
    memory, called = Memory(), []

    class Curious(Provider):
        def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
            if not called:
                called.append("notify")
                everything(memory)
                in_thread(partial(everything, memory))

        def get_compaction(self) -> None:
            if len(called) == 1:
                called.append("get")
                everything(memory)

    def on_event(event: Event) -> None:
        called.append("event")
        everything(memory)

    memory.on_event(on_event)
    memory.register_compaction_provider("Planner", Curious())
    in_thread(lambda: memory.create_round("q"))
    assert called == ["notify", "get"]
    stop = memory.on_round_added(lambda total: 1 / 0 if called[-1] != "event" else None)
    in_thread(lambda: memory.create_round("q"))
    stop()
    assert called == ["notify", "get", "event"]


def test_what_a_hook_writes_is_notified_after() -> None:
    """Every hook hears of the first round before any hears of the second."""
    memory, heard = Memory(), []

    def writes(total: int) -> None:
        heard.append(("writes", total))
        if total < 3:
            assert memory.create_round("from the hook").number == total + 1

    memory.on_round_added(writes)
    memory.on_round_added(lambda total: heard.append(("listens", total)))
    memory.create_round("q")
    assert heard == [(name, total) for total in (1, 2, 3) for name in ("writes", "listens")]


def test_an_event_hook_that_reads_what_is_broken_comes_to_an_end() -> None:
    """A failing provider and a hook that asks it again do not call each other for ever."""
    memory, provider = Memory(), Provider()
    memory.register_compaction_provider("Planner", provider)
    provider.fault = RuntimeError()
    memory.on_event(lambda event: memory.get_role_rounds("Planner"))
    rounds, compaction = memory.get_role_rounds("Planner")
    assert (list(rounds), compaction) == ([], None)


def test_notifications_of_one_thread_wait_for_one_another_and_not_for_other_threads() -> None:
    """A hook that blocks holds up its own thread only."""
    memory, heard = Memory(), []

    def hook(number: int) -> None:
        if number == 1:
            memory.create_round("of this thread")
            in_thread(lambda: memory.create_round("of another thread"))
        heard.append(number)

    memory.on_round_added(hook)
    memory.create_round("the first")
    assert heard == [3, 1, 2]


# -- providers ---------------------------------------------------------------------------------------------------------


def test_a_provider_is_told_of_everything_that_happens() -> None:
    """Of a round, a post, an end and a failure, each after the fact; of messages likewise."""
    memory, provider = Memory(), Provider()
    assert isinstance(provider, CompactionProvider)
    memory.register_compaction_provider("Planner", provider)
    round_ = memory.create_round("q")
    memory.add_post(round_, send_from="a", send_to="b")
    memory.finish_round(round_)
    memory.finish_round(round_, state="failed")
    assert provider.told == [1, 1, 1, 1]
    memory.append({"role": "user", "content": "x"})
    memory.append({"role": "assistant", "content": "x"})
    assert provider.told == [1, 1, 1, 1, 2, 2]


def test_every_roles_provider_is_told_of_what_any_role_says() -> None:
    """Rounds are every role's."""
    memory, one, two = Memory(), Provider(), Provider()
    memory.register_compaction_provider("Planner", one)
    memory.register_compaction_provider("CodeInterpreter", two)
    memory.create_round("q")
    assert (one.told, two.told) == ([1], [1])


def test_nothing_is_told_of_what_was_not_written() -> None:
    """An error is no fact."""
    memory, provider = Memory(), Provider()
    memory.register_compaction_provider("Planner", provider)
    with pytest.raises(KeyError):
        memory.add_post("none", send_from="a", send_to="b")
    with pytest.raises(ValueError, match="role"):
        memory.append({"content": "x"})
    assert provider.told == []


def test_registering_a_provider_twice_tells_it_once() -> None:
    """For one role, or for several."""
    memory, provider = Memory(), Provider()
    for role in ("Planner", "Planner", "CodeInterpreter"):
        memory.register_compaction_provider(role, provider)
    memory.create_round("q")
    assert provider.told == [1]


def test_replacing_a_roles_provider_detaches_the_old_one() -> None:
    """Which is told no more, and asked no more; taking it out afterwards leaves the new one in place."""
    memory, old, new = Memory(), Provider(), Provider()
    memory.finish_round(memory.create_round("q"))
    old.compaction = CompactedMessage(start_index=1, end_index=1, summary="old")
    new.compaction = CompactedMessage(start_index=1, end_index=1, summary="new")
    detach_old = memory.register_compaction_provider("Planner", old)
    detach_new = memory.register_compaction_provider("Planner", new)
    memory.create_round("q")
    assert (old.told, new.told) == ([], [2])
    detach_old()
    assert memory.get_role_rounds("Planner")[1] == new.compaction
    detach_new()
    detach_new()
    memory.create_round("q")
    assert new.told == [2]
    assert memory.get_role_rounds("Planner")[1] is None


def test_a_provider_that_raises_is_an_event_and_the_role_is_served_from_the_log() -> None:
    """The chat goes on, with the compaction that was published last; the other providers hear as well."""
    noon = datetime(2026, 1, 1, tzinfo=UTC)
    memory, provider, other = Memory("s", clock=lambda: noon), Provider(), Provider()
    events = Events(memory)
    end = memory.finish_round(memory.create_round("q"))
    published = memory.journal("Planner").publish(
        CompactedMessage(start_index=1, end_index=1, end_round_id=end.id, summary="s"), base=0, round_ids=[end.id]
    )
    memory.register_compaction_provider("Planner", provider)
    memory.register_compaction_provider("CodeInterpreter", other)
    provider.fault = ValueError("swordfish")
    memory.create_round("q")
    assert memory.get_role_rounds("Planner")[1] == published
    assert other.told == [2]
    assert events == [ProviderFailed(at=noon, session="s", role="Planner", error="ValueError")] * 2


def test_a_provider_hears_of_what_other_writers_did_as_soon_as_it_is_read() -> None:
    """Also where that comes to light by a call that is refused, or by a publication."""
    store = InMemoryStore()
    one, two, provider = Memory("s", store=store), Memory("s", store=store), Provider()
    two.register_compaction_provider("Planner", provider)
    first = one.finish_round(one.create_round("q"))
    with pytest.raises(KeyError):
        two.add_post("none", send_from="a", send_to="b")
    assert provider.told == [1]
    one.create_round("q")
    two.journal("Planner").publish(
        CompactedMessage(start_index=1, end_index=1, end_round_id=first.id, summary="s"), base=0, round_ids=[first.id]
    )
    assert provider.told == [1, 2]
    store.append("s", [entry("round failed", round_id=first.id)], after=4)
    two.create_round("q")
    assert provider.told == [1, 2, 3]


def test_a_provider_that_gives_no_compaction_is_an_event_and_the_log_serves() -> None:
    """A provider's mistake never reaches the chat loop."""

    class Nonsense:
        def get_compaction(self) -> object:
            return "nonsense"

        def notify_rounds_changed(self, total_rounds: int | None = None) -> None:
            pass

    memory = Memory()
    events: list[Event] = []
    memory.on_event(events.append)
    memory.register_compaction_provider("Planner", Nonsense())  # type: ignore[arg-type]
    memory.create_round("q")
    assert memory.get_role_rounds("Planner")[1] is None
    assert [event.name for event in events] == ["memory.provider_failed"]


def test_who_is_registered_for_a_role_can_be_asked_for() -> None:
    """So that a host need not keep it beside the Memory."""
    memory, provider = Memory(), Provider()
    assert memory.provider("Planner") is None
    detach = memory.register_compaction_provider("Planner", provider)
    assert memory.provider("Planner") is provider
    assert memory.provider("Other") is None
    detach()
    assert memory.provider("Planner") is None


def test_an_event_of_somebody_elses_reaches_the_same_hooks() -> None:
    """One that raises does not keep it from the next."""
    memory = Memory()
    memory.on_event(lambda _event: 1 / 0)
    events = Events(memory)
    told = ProviderFailed(role="Planner", error="ValueError")
    memory.emit(told)
    assert events == [told]
