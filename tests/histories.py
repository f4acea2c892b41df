"""A session in which everything happened that a log can tell, and what can be read of a Memory."""

from __future__ import annotations

from typing import Any

from memory import CompactedMessage, Entry, InMemoryStore, Memory, Post, Reduction, Store

#: Halves of a character, apart and joined; NUL; what JSON and YAML treat specially.
ODD = 'half \ud83d, whole \ud83d\ude00, NUL \0, {"</summary>"} é'


def eventful(store: Store, session: str = "s", **options: Any) -> Memory:
    """Return a Memory of six rounds: the fourth failed and the last is open; Planner has published twice and reverted
    a third time; there are reductions, pins, a redaction in the third, usage, and a kind nobody knows."""
    memory = Memory(session, store=store, **options)
    memory.append({"role": "system", "content": "Be brief."})
    for number in range(1, 7):
        opened = memory.create_round(f"query {number} {ODD}", id=f"round-{number}", extra={"deep": [{"n": number / 3}]})
        for post in range(1, 4):
            memory.add_post(opened, send_from="Planner", send_to="Coder", message=f"post {number}.{post} {ODD}")
        if number == 4:
            memory.finish_round(opened, state="failed")
        elif number < 6:
            memory.finish_round(opened)
        if number in (2, 3):
            publish(memory, number)
        if number == 5:
            publish(memory, 5)
            memory.journal("Planner").revert()
    reduce(memory, 5, memory.conversation.rounds[4].post_list[1:2], "offloaded")
    reduce(memory, 5, [None], "summarised")
    reduce(memory, 6, memory.conversation.rounds[5].post_list[:2], "dropped")
    for pin in ("r1.p2", "r5.p3", "r6.p3"):
        memory.pin(pin)
    memory.note_prompt("Planner", 100)
    memory.record_usage("Planner", 130)
    number = store.append(session, [Entry("starred", body='{"odd":[1.5,null]}')], memory.snapshot.number)
    memory = Memory(session, store=store, **options)
    memory.redact("r3.p1")
    assert memory.snapshot.number > number
    return memory


def publish(memory: Memory, last: int, role: str = "Planner") -> CompactedMessage:
    rounds, base = memory.conversation.rounds, memory.journal(role).read().generation
    made = CompactedMessage(start_index=1, end_index=last, end_round_id=rounds[last - 1].id, summary=f"up to {last}")
    return memory.journal(role).publish(made, base=base, round_ids=[rounds[last - 1].id])


def reduce(memory: Memory, number: int, posts: Any, kind: Any, role: str = "Planner") -> None:
    made = Reduction.over(memory.conversation.rounds[number - 1], posts, kind, "" if kind == "dropped" else kind)
    journal = memory.journal(role)
    assert journal.reduce(made, base=journal.read().generation) is not None


def cover(
    memory: Memory, end: int, summary: str = "the summary", *, role: str = "Planner", **more: Any
) -> CompactedMessage:
    """Publish a compaction of the rounds up to *end*, on top of the newest one. The rounds' ids are their numbers."""
    journal = memory.journal(role)
    state = journal.read()
    start = (state.current.end_number or 0) if state.current is not None else 0
    made = CompactedMessage(start_index=1, end_index=end, end_round_id=str(end), summary=summary, **more)
    ids = [str(number) for number in range(start + 1, end + 1)]
    return journal.publish(made, base=state.generation, round_ids=ids)


def read_again(store: InMemoryStore) -> Memory:
    """Return a Memory made from nothing but the text that *store* keeps."""
    disk = InMemoryStore()
    disk.append("s", [Entry(entry.kind, body=entry.body, id=entry.id) for entry in store.read("s")], after=0)
    return Memory("s", store=disk)


def everything(memory: Memory) -> list[object]:
    """Return all that can be read of a Memory, for comparing two."""
    known: list[object] = [memory.header, list(memory.conversation.rounds), memory.pins(), memory.messages("Planner")]
    known += [memory.conversation.rounds.closed, memory.snapshot.redactions]
    for role in ("Planner", "Coder", "Stranger"):
        rounds, compaction = memory.get_role_rounds(role)
        live = {one.id: rounds.reductions.of(one.id) for one in rounds}
        known += [list(rounds), compaction, live, memory.journal(role).read(), memory.usage(role)]
    return known


def texts_of(memory: Memory) -> list[tuple[str, list[str]]]:
    """Return the query of each round, and what its posts say."""
    return [(one.user_query, [post.message for post in one.post_list]) for one in memory.conversation.rounds]


def posts_of(memory: Memory) -> list[Post]:
    return [post for round_ in memory.conversation.rounds for post in round_.post_list]
