"""``compactor sessions``, ``show``, ``events``, ``purge`` and ``revert``: stored sessions from the command line."""

from __future__ import annotations

import asyncio
import io
import os
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from command_line import dialogue, refusal, run
from sqlalchemy.event import listen
from stored_sessions import SECRET, SUMMARY, offload, session, summarise, url_of

from compactor import Post, compose
from compactor.cli import session_commands
from compactor.cli import sessions as sessions_module
from compactor.cli.events import read_events
from compactor.cli.sessions import list_page, measure_session, open_named
from compactor.cli.terminal import CommandError
from compactor.presets import MemoryWithCompress, OffloadFiles
from memory import CompactedMessage, Entry, InMemoryStore, Memory, Store, open_store
from memory.entries import CompactionPrepared, EventRecorded, HeaderAdded, UsageRecorded
from memory.stores import join_name
from memory.stores.base import adapt_store
from memory.stores.schema import MIGRATIONS
from memory.stores.sql import SqlStore
from memory.transfer.jsonl import export_session

NAMES = ["shop", "für Müller 日本", "a\x1b[2J\nb", "-dash", "it's; DROP TABLE", "\ud800", "a/b?c#d%20", " "]
SHOWN = [{"role": "user", "content": "a stand-in"}]
MISSING = ("sessions", "show", "events", "export", "purge", "revert", "diff")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_of(tmp_path / "chats.db")


@pytest.fixture
def shop(url: str) -> Iterator[Memory]:
    """A session of six rounds, of which a summary covers three, a round has failed, and a query is pinned."""
    with session(url) as memory:
        memory.finish_round(memory.conversation.rounds[1], state="failed")
        summarise(memory, 3)
        offload(memory, 4)
        memory.pin("r2.p0")
        memory.record_usage("assistant", 1234)
        yield memory


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_a_tenants_session_is_named_as_it_is_listed(url: str) -> None:
    with session(url, join_name("acme", "chat-7"), rounds=2):
        pass
    assert r"acme\x1fchat-7" in run("sessions", "--store", url).out
    assert "rounds 2" in " ".join(run("show", r"acme\x1fchat-7", "--store", url).out.split())
    assert r"a b\x1fchat-7" in refusal(run("show", r"a b\x1fchat-7", "--store", url))  # no tenant


def test_a_name_that_reads_like_a_tenants_is_listed_otherwise(url: str) -> None:
    """Each name as it is listed leads to its own session, so nobody purges a tenant's in place of it."""
    names = (
        join_name("acme", "a"),
        r"acme\x1fa",
        r"acme\x5cx1fa",
        r"acme\\x1fa",
        r"C:\xa",
        "a\x1b[31m",
        r"a\u2028",
        "a\u2028",
        "a b",
        "a  b",
        "a\nb",
        "a\u3000b",
        " a b\t",
        " ",
        r"\x20",
    )
    for rounds, name in enumerate(names, 1):
        with session(url, name, rounds=rounds):
            pass
    listed = {
        int(cells[2]): cells[1].strip()
        for line in run("sessions", "--store", url).out.splitlines()
        if len(cells := line.split("│")) > 3
    }
    assert (listed[1], listed[2]) == (r"acme\x1fa", r"acme\x5cx1fa")
    assert len({*listed.values()}) == len(names)
    for rounds, name in enumerate(names, 1):
        assert run("show", listed[rounds], "--store", url, "--json").document["session"] == name
    assert run("purge", r"acme\x5cx1fa", "--store", url, "--yes").code == 0
    assert names[0] in {one["session"] for one in run("sessions", "--store", url, "--json").document["sessions"]}


def test_a_page_continues_with_the_name_that_was_printed(url: str) -> None:
    for number in range(3):
        with session(url, join_name("acme", f"s{number}"), rounds=1):
            pass
    first = run("sessions", "--store", url, "--limit", 1).out
    after = first.rpartition("--after '")[2].partition("'")[0]
    rest = run("sessions", "--store", url, "--after", after, "--json").document["sessions"]
    assert [one["session"] for one in rest] == ["acme\x1fs1", "acme\x1fs2"]


def test_sessions_are_listed_with_their_lengths(url: str) -> None:
    """By name, with rounds, entries and the time of the last entry."""
    with session(url, "long", rounds=3), session(url, "short", rounds=1) as memory:
        last = list(memory._store.read("short"))[-1]
    found = run("sessions", "--store", url, "--json").document["sessions"]
    assert [(one["session"], one["rounds"]) for one in found] == [("long", 3), ("short", 1)]
    assert found[1]["entries"] == last.number
    minute = last.created_at.replace(second=0, microsecond=0)
    assert datetime.fromisoformat(found[1]["last_activity"]) == minute
    rows = [line.split() for line in run("sessions", "--store", url).out.splitlines() if "short" in line]
    assert rows == [["│", "short", "│", "1", "│", f"{last.number}", "│", *f"{minute:%Y-%m-%d %H:%M}".split(), "│"]]


def test_sessions_are_listed_by_page_and_tenant(url: str) -> None:
    """ "next" continues, in either order; a name in it can do nothing on a terminal."""
    for name in ("a", "b\x1b[31m", "c", join_name("acme", "a")):
        with session(url, name, rounds=1):
            pass
    for order in ("name", "activity"):
        listed, after = [], ()
        while after is not None:
            page = run("sessions", "--store", url, "--order", order, "--limit", 3, *after, "--json").document
            listed += [one["session"] for one in page["sessions"]]
            after = page["next"] and ("--after", page["next"])
        assert sorted(listed) == ["a", "acme\x1fa", "b\x1b[31m", "c"]
    (found,) = run("sessions", "--store", url, "--tenant", "acme", "--json").document["sessions"]
    assert (found["session"], found["tenant"]) == ("acme\x1fa", "acme")
    assert "--after 'b\\x1b[31m'" in run("sessions", "--store", url, "--tenant", "", "--limit", 2).out
    assert "must be the cursor" in refusal(run("sessions", "--store", url, "--order", "activity", "--after", "x"))


def test_a_database_is_asked_once_for_all_its_sessions(url: str) -> None:
    """However many there are, and however long; for an export, once more than what is read."""
    for number in range(1, 13):
        with session(url, f"s{number}", rounds=number):
            pass
    asked: list[str] = []
    with open_named(url) as store:
        assert isinstance(store, SqlStore)
        listen(store._connections._engine, "before_cursor_execute", lambda *facts: asked.append(facts[2]))
        found = list_page(store, None, None, 100, "name")["sessions"]
        assert len(asked) == 1
        assert [measure_session(store, one["session"])["entries"] for one in found] == [one["entries"] for one in found]
        assert {one["session"]: one["rounds"] for one in found} == {f"s{number}": number for number in range(1, 13)}
        asked.clear()
        lengths = {one["session"]: one["entries"] for one in found}
        assert export_session(store, "s11", io.StringIO()) == lengths["s11"]
        assert len(asked) == 2


def test_a_command_that_only_reads_migrates_nothing(url: str, shop: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Older programs refuse the database afterwards: so the command says how it is done, and does not do it."""
    open_, done = SqlStore.open, []
    newer = (*MIGRATIONS, lambda *_: done.append("migrated"))
    monkeypatch.setattr(SqlStore, "open", lambda self, **options: open_(self, newer, **options))
    reads = (["sessions"], ["show", "shop"], ["events", "shop"], ["export", "shop"], ["diff", "shop"])
    for arguments in reads:
        assert "open it once to write" in refusal(run(*arguments, "--store", url))
    assert not done
    run("revert", "shop", "--yes", "--store", url)
    assert done == ["migrated"]
    for arguments in reads[:-1]:
        run(*arguments, "--store", url)


def test_any_name_comes_back_as_it_went_in(url: str) -> None:
    """Through JSON and as an argument again; and on a terminal it can do nothing but be read."""
    for name in NAMES:
        with session(url, name, rounds=1):
            pass
    found = run("sessions", "--store", url, "--json").document["sessions"]
    assert sorted(one["session"] for one in found) == sorted(NAMES)
    plain = run("sessions", "--store", url).out
    assert "a\\x1b[2J\\x0ab" in plain
    assert not any(sign in plain for sign in ("\x1b", "\ud800"))
    for name in NAMES:
        shown = run("show", "--store", url, "--json", "--", name).document
        assert (shown["session"], shown["rounds"]) == (name, 1)


def test_a_store_without_sessions_says_so(url: str) -> None:
    with open_named(url, create=True):
        pass
    assert run("sessions", "--store", url).out == "no sessions\n"
    assert run("sessions", "--store", url, "--json").document == {"sessions": [], "next": None}


class Plain:
    """A store with nothing but the six methods that each has."""

    def __init__(self, store: Store) -> None:
        for name in ("append", "read", "sessions", "redact", "purge", "close"):
            setattr(self, name, getattr(store, name))


def notes(count: int) -> list[Entry]:
    return [Entry.of(UsageRecorded(role="assistant", input_tokens=number)) for number in range(count)]


def test_the_last_entry_is_found_in_a_log_of_any_length() -> None:
    for count in (*range(1, 70), 511, 512, 513):
        store = InMemoryStore()
        store.append("s", notes(count), 0)
        facts = measure_session(store, "s")
        assert (facts["entries"], facts["rounds"]) == (count, 0)


def test_rounds_are_counted_where_entries_do_not_know_theirs() -> None:
    """In a log that was written before entries knew, and behind a round of many posts."""
    store = InMemoryStore()
    memory = Memory("s", store=store)
    memory.create_round("first")
    round_ = memory.create_round("second")
    for _ in range(200):
        memory.add_post(round_, send_from="a", send_to="b")
    assert measure_session(store, "s")["rounds"] == 2
    entries = [Entry(one.kind, body=one.body, id=one.id) for one in store.read("s")]
    store.append("old", entries, 0)
    assert measure_session(store, "old")["rounds"] == 2


def test_a_session_that_is_purged_meanwhile_is_left_out() -> None:
    store = InMemoryStore()
    store.append("s", notes(1), 0)
    store.sessions = lambda: ["gone", "s"]  # type: ignore[method-assign]
    assert [one["session"] for one in list_page(store, None, None, 9, "name")["sessions"]] == ["s"]


# -- show -------------------------------------------------------------------------------------------------------------


def test_what_a_session_is_now_is_shown(url: str, shop: Memory) -> None:
    """The figures are those that compose and the log itself give."""
    shown = run("show", "shop", "--store", url, "--json").document
    (role,) = shown.pop("roles")
    last = list(shop._store.read("shop"))[-1]
    assert shown == {
        "session": "shop",
        "rounds": 6,
        "entries": last.number,
        "last_activity": last.created_at.isoformat(),
        "open_rounds": [6],
        "failed_rounds": [2],
        "undone_rounds": [],
        "system_messages": 1,
        "pins": ["r2.p0"],
    }
    _, compaction = shop.get_role_rounds("assistant")
    assert compaction is not None
    assert compaction.created_at is not None
    prompt = compose(shop, budget=100_000)
    assert role.pop("summary_tokens") + role.pop("tail_tokens") < role["prompt_tokens"] == prompt.tokens
    assert role == {
        "role": "assistant",
        "generation": 1,
        "summary_generation": 1,
        "covered_rounds": 2,
        "last_covered_round": 3,
        "model": "small-1",
        "published_at": compaction.created_at.isoformat(),
        "tail_rounds": 3,
        "prompt_tokens": prompt.tokens,
        "reductions": 1,
        "prepared": 0,
        "last_usage": 1234,
    }


def test_it_reads_well_on_a_narrow_terminal(url: str, shop: Memory) -> None:
    """In lines, the numbers in words."""
    summarise(shop, 1, role="")
    shop.journal("").revert()
    done = run("show", "shop", "--store", url, COLUMNS="80")
    assert (done.code, done.err) == (0, "")
    lines = [" ".join(line.split()) for line in done.out.splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[:2] == ["session shop", "rounds 6 (1 open, 1 failed)"]
    assert lines[5] == "pinned posts r2.p0"
    everything, role = lines.index("role (sees everything)"), lines.index("role assistant")
    assert lines[everything + 1] == "summarised nothing"
    (role_,) = [one for one in run("show", "shop", "--store", url, "--json").document["roles"] if one["role"]]
    assert lines[role + 1 : role + 5] == [
        f"summarised rounds 1-3, in {role_['summary_tokens']} tokens (generation 1, by small-1)",
        f"behind that 3 rounds, {role_['tail_tokens']} tokens, 1 post read shorter",
        f"whole prompt {role_['prompt_tokens']} tokens, before anything is cut",
        "last usage 1,234 tokens, by the provider's count",
    ]


def test_no_text_is_shown_unasked(url: str, shop: Memory) -> None:
    """Neither what was said nor a summary; each is there when it is asked for."""
    for words in (("show", "shop"), ("show", "shop", "--json"), ("events", "shop"), ("events", "shop", "--json")):
        assert SECRET not in run(*words, "--store", url).out
    assert SUMMARY in run("show", "shop", "--summary", "--store", url).out
    assert run("show", "shop", "--summary", "--json", "--store", url).document["roles"][0]["summary"] == SUMMARY


def test_rounds_are_printed_when_they_are_asked_for(url: str, shop: Memory) -> None:
    shown = run("show", "shop", "--rounds", "2-3", "--json", "--store", url).document["texts"]
    assert shown == [
        {"round": 2, "state": "failed", "text": shop.reload("r2")},
        {"round": 3, "state": "finished", "text": shop.reload("r3")},
    ]
    out = run("show", "shop", "--rounds", "r3", "--store", url).out
    assert out.endswith(f"\n\n{shop.reload('r3')}\n")
    assert "[Round 2]" not in out


@pytest.mark.parametrize(
    ("rounds", "says"),
    [
        ("0", "--rounds takes a round or the first and the last of several"),
        ("3-2", "--rounds takes a round"),
        ("x", "--rounds takes a round"),
        ("7", "there is no round 7; this session has 6"),
        ("2-99", "there is no round 7; this session has 6"),
    ],
)
def test_rounds_that_are_not_there_are_refused(url: str, shop: Memory, rounds: str, says: str) -> None:
    assert says in refusal(run("show", "shop", "--rounds", rounds, "--store", url))


def test_texts_cannot_act_on_the_terminal(url: str) -> None:
    with session(url, rounds=1) as memory:
        memory.append({"role": "user", "content": "\x1b[2Jhello"})
        memory.append({"role": "assistant", "content": "hi"})
        memory.append({"role": "user", "content": "again"})
        summarise(memory, 2, summary="\x1b[31mred")
    out = run("show", "shop", "--rounds", "2", "--summary", "--store", url).out
    assert "\\x1b[2Jhello" in out
    assert "\\x1b[31mred" in out
    assert "\x1b" not in out


def test_roles_are_those_that_were_compacted_and_those_that_speak(url: str) -> None:
    """Agents of the newest rounds, and those of whom something was published; who asks, and tools, are none."""
    with session(url, rounds=1) as memory:
        round_ = memory.create_round("plan it")
        memory.add_post(round_, send_from="User", send_to="Planner", message="plan it")
        memory.add_post(round_, send_from="Planner", send_to="Coder", message="do it")
        memory.finish_round(round_)
        summarise(memory, 2, role="Old one")
        memory.create_round("next")
    shown = run("show", "shop", "--store", url, "--json").document
    assert [role["role"] for role in shown["roles"]] == ["Coder", "Old one", "Planner", "assistant"]
    only = run("show", "shop", "--role", "Planner", "--store", url, "--json").document
    assert [role["role"] for role in only["roles"]] == ["Planner"]


def test_undone_rounds_are_told_apart(url: str, shop: Memory) -> None:
    """Where the session is described, where its texts are shown, and among its events."""
    assert shop.rewind("r4.p0") == ("r4", "r5", "r6")
    shown = run("show", "shop", "--store", url, "--json").document
    assert (shown["failed_rounds"], shown["undone_rounds"], shown["open_rounds"]) == ([2], [4, 5, 6], [7])
    said = run("show", "shop", "--store", url, "--rounds", "4-7").out
    assert " ".join(said.splitlines()[1].split()) == "rounds 7 (1 open, 1 failed, 3 undone)"
    assert said.count(" (undone)") == 3
    told = run("events", "shop", "--store", url, "--json").document["events"]
    assert [(one["what"], one["rounds"]) for one in told][-3:] == [("round undone", f"r{one}") for one in (4, 5, 6)]


def test_a_tail_that_is_too_long_is_not_counted(url: str, shop: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it does not know rather than read for minutes."""
    monkeypatch.setattr(sessions_module, "MAX_COUNTED_ROUNDS", 2)
    (role,) = run("show", "shop", "--store", url, "--json").document["roles"]
    assert (role["tail_rounds"], role["tail_tokens"], role["prompt_tokens"]) == (3, None, None)
    assert "3 rounds, tokens not counted, 1 post read shorter" in run("show", "shop", "--store", url).out


def test_a_session_of_system_messages_alone_has_no_roles(url: str) -> None:
    with open_named(url, create=True) as store:
        store.append("s", [Entry.of(HeaderAdded(post=Post(send_from="system", send_to="assistant")))], 0)
    shown = run("show", "s", "--store", url, "--json").document
    assert (shown["rounds"], shown["system_messages"], shown["roles"]) == (0, 1, [])
    assert "role" not in run("show", "s", "--store", url).out


# -- events -----------------------------------------------------------------------------------------------------------


def test_what_happened_is_told_in_order(url: str, shop: Memory) -> None:
    """With numbers of entries, generations, rounds, models, tokens; a reduction and a pin by the posts they are on."""
    shop.unpin("r2.p0")
    shop.redact("r5.p1")
    found = run("events", "shop", "--store", url, "--json").document
    assert found["session"] == "shop"
    told = [(one["what"], one["role"], one["generation"], one["rounds"]) for one in found["events"]]
    assert told == [
        ("compaction published", "assistant", 1, "r1-r3"),
        ("reduction published", "assistant", 1, "r4.p2"),
        ("pinned", None, None, "r2.p0"),
        ("unpinned", None, None, "r2.p0"),
        ("post redacted", None, None, "r5.p1"),
    ]
    published = found["events"][0]
    assert (published["model"], published["usage"]) == ("small-1", {"input_tokens": 900, "output_tokens": 80})
    numbers = [one["number"] for one in found["events"]]
    kinds = {entry.number: entry for entry in shop._store.read("shop")}
    assert numbers == sorted(numbers)
    assert kinds[numbers[0]].kind == "compaction published"
    assert published["at"] == kinds[numbers[0]].created_at.isoformat()


def test_events_are_a_table_for_reading(url: str, shop: Memory) -> None:
    out = run("events", "shop", "--store", url, COLUMNS="120").out
    assert "compaction published" in out
    assert "r1-r3, generation 1, small-1, input_tokens 900, output_tokens 80" in " ".join(out.replace("│", " ").split())


def test_a_session_in_which_nothing_happened_says_so(url: str) -> None:
    with session(url, rounds=1):
        pass
    assert run("events", "shop", "--store", url).out == "nothing has happened to the history\n"
    assert run("events", "shop", "--store", url, "--json").document["events"] == []


def test_events_can_be_paged_and_asked_for_by_role(url: str, shop: Memory) -> None:
    """What happened to all roles belongs to each."""
    summarise(shop, 2, role="Other")
    every = run("events", "shop", "--store", url, "--json").document["events"]
    first = run("events", "shop", "--limit", 2, "--store", url, "--json").document["events"]
    rest = run("events", "shop", "--after", first[-1]["number"], "--store", url, "--json").document["events"]
    assert len(first) == 2
    assert first + rest == every
    mine = run("events", "shop", "--role", "Other", "--store", url, "--json").document["events"]
    assert [(one["what"], one["role"]) for one in mine] == [("pinned", None), ("compaction published", "Other")]


def test_each_kind_is_told_on_any_store(url: str) -> None:
    """From a store that finds entries by their kind, and from one that can only be read through."""
    store = open_store(url)
    memory = Memory.from_messages(dialogue(6), "s", store=store)
    step = CompactionPrepared(
        role="assistant", digest="d", base=0, text=SECRET, model="m", usage={"input_tokens": 5}, checks=("echo",)
    )
    whole = CompactedMessage(start_index=1, end_index=2, summary=SECRET)
    assert memory.journal("assistant").prepare(step)
    assert memory.journal("assistant").prepare(step.model_copy(update={"compaction": whole}))
    shown = run("show", "s", "--store", url)
    assert "2 answers paid for and not published" in shown.out
    summarise(memory, 2, checks=("empty", "echo"), strategy="compact_rounds", tokens_before=800, tokens_after=90)
    summarise(memory, 4)
    memory.journal("assistant").revert()
    offload(memory, 5)
    memory.journal("assistant").withdraw(
        memory.rounds_getter("assistant")().reductions.of(memory.conversation.rounds[4].id)[0]
    )
    record = EventRecorded(
        role="assistant",
        name="compaction.failed",
        facts={
            "error": "empty",
            "generation": 3,
            "model": "m",
            "strategy": "s",
            "usage": {"input_tokens": 3},
            "unknown_identifiers": ["x"],
            "long": "y" * 300,
            "list": [1],
            "retry_in": 2.5,
            "none": None,
        },
    )
    store.append("s", [Entry.of(record)], len(list(store.read("s"))))
    told = run("events", "s", "--store", url, "--json").document["events"]
    assert told == list(read_events(adapt_store(Plain(store)), "s"))
    assert [(one["what"], one["rounds"], one["generation"]) for one in told] == [
        ("compaction prepared", None, 0),
        ("compaction prepared", "r1-r2", 0),
        ("compaction published", "r1-r2", 1),
        ("compaction published", "r1-r4", 2),
        ("compaction reverted", None, 3),
        ("reduction published", "r5.p2", 3),
        ("reduction withdrawn", "r5.p2", None),
        ("compaction.failed", None, 3),
    ]
    assert all((one["model"], one["usage"], one["checks"]) == ("m", {"input_tokens": 5}, ["echo"]) for one in told[:2])
    assert (told[2]["strategy"], told[2]["checks"]) == ("compact_rounds", ["empty", "echo"])
    out = run("events", "s", "--store", url, COLUMNS="150").out
    assert "r1-r2, generation 1, compact_rounds, small-1, 800 -> 90 tokens," in " ".join(out.replace("│", " ").split())
    assert "passed empty echo" in " ".join(out.replace("│", " ").split())
    assert SECRET not in out
    last = told[-1]
    assert (last["model"], last["strategy"], last["usage"]) == ("m", "s", {"input_tokens": 3})
    assert last["facts"] == {"error": "empty", "retry_in": 2.5, "none": None}
    store.close()


# -- purge and revert -------------------------------------------------------------------------------------------------


def test_one_is_no_plural(url: str) -> None:
    """In whatever is printed."""
    with session(url, "single", rounds=1) as memory:
        entries = len(list(memory._store.read("single")))
    done = run("purge", "single", "--store", url, typed=True, said="n\n")
    assert f"'single': 1 round in {entries} entries, the last of 2" in done.err
    assert "1 round, " in run("show", "single", "--store", url).out


def test_purge_asks_and_names_what_it_erases(url: str, shop: Memory) -> None:
    entries = len(list(shop._store.read("shop")))
    done = run("purge", "shop", "--store", url, typed=True, said="y\n")
    assert (done.code, done.out.split(":")[0]) == (0, "session shop is erased")
    assert f"'shop': 6 rounds in {entries} entries, the last of 2" in done.err
    assert run("sessions", "--store", url, "--json").document == {"sessions": [], "next": None}


@pytest.mark.parametrize("said", ["n\n", "\n", "", "yesterday\n"])
def test_anything_but_yes_erases_nothing(url: str, shop: Memory, said: str) -> None:
    done = run("purge", "shop", "--store", url, typed=True, said=said)
    assert (done.code, done.out) == (2, "")
    assert done.err.endswith("[y/N] compactor: nothing was erased\n")
    assert run("show", "shop", "--store", url).code == 0


def test_purge_does_not_ask_a_pipe(url: str, shop: Memory) -> None:
    """Whatever stands in it: a script says --yes."""
    assert "--yes does it without asking" in refusal(run("purge", "shop", "--store", url, said="y\n"))
    done = run("purge", "shop", "--store", url, "--yes", "--json")
    assert (done.document["purged"]["session"], done.document["purged"]["rounds"]) == ("shop", 6)
    assert "there is no session 'shop'" in refusal(run("purge", "shop", "--store", url, "--yes"))


def test_a_session_that_cannot_be_read_can_be_erased(url: str, tmp_path: Path) -> None:
    with session(url, rounds=2):
        pass
    with sqlite3.connect(tmp_path / "chats.db") as connection:
        connection.execute("UPDATE compactor_entries SET body = '{'")
    connection.close()
    assert "cannot be read" in refusal(run("show", "shop", "--store", url))
    assert run("purge", "shop", "--yes", "--store", url).code == 0


def aged(url: str, name: str, days: int) -> None:
    """A session that nobody has written to for so many days."""
    with open_named(url, create=True) as store:
        then = datetime.now(UTC) - timedelta(days=days)
        Memory(name, store=store, clock=lambda: then).append({"role": "user", "content": "hello"})


def test_expire_erases_sessions_that_nobody_has_written_to(url: str) -> None:
    """Older than what was said, after somebody said yes; none is no question."""
    for name, days in (("old", 40), ("older", 50), ("new", 1)):
        aged(url, name, days)
    expire = ("expire", "--older-than", "30d", "--store", url)
    assert "--yes does it without asking" in refusal(run(*expire))
    refused = run(*expire, typed=True, said="n\n")
    assert refused.err.endswith("[y/N] compactor: nothing was erased\n")
    assert "2 sessions: old, older." in refused.err
    assert run(*expire, "--yes", "--json").document == {"expired": ["old", "older"]}
    assert [one["session"] for one in run("sessions", "--store", url, "--json").document["sessions"]] == ["new"]
    assert run(*expire).out == "0 sessions erased\n"
    assert run("expire", "--older-than", "23h", "--store", url, "--yes").out == "1 session erased\n"


def test_purge_tenant_erases_all_sessions_of_one(url: str) -> None:
    """After somebody said yes; those of others stay."""
    for name in (join_name("acme", "a"), join_name("acme", "b"), "c"):
        aged(url, name, 1)
    purge = ("purge-tenant", "acme", "--store", url)
    assert run(*purge, typed=True, said="n\n").err.endswith("nothing was erased\n")
    assert run(*purge, "--yes", "--json").document == {"tenant": "acme", "purged": 2}
    assert [one["session"] for one in run("sessions", "--store", url, "--json").document["sessions"]] == ["c"]
    assert "tenant" in refusal(run("purge-tenant", "", "--store", url, "--yes"))


def test_expire_erases_old_files_of_all_chats(tmp_path: Path) -> None:
    """Of a folder that is named; sessions stay."""
    path = tmp_path / "files"
    for chat in ("a", "b"):
        OffloadFiles(path, chat).write("call", "text")
    (old,) = (path / "a").iterdir()
    os.utime(old, (1, 1))
    done = run("expire", "--older-than", "45m", "--files", str(path), "--yes", "--json")
    assert done.document == {"files": 1}
    assert [one.parent.name for one in path.rglob("*.txt")] == ["b"]
    nowhere = run("expire", "--older-than", "1d", "--files", str(tmp_path / "nowhere"), "--yes")
    assert "there is no folder" in refusal(nowhere)


@pytest.mark.parametrize("age", ["", "d", "30", "-1d", "1.5d", "30 d", "30w", "9999999d", "٣d"])
def test_expire_takes_an_age_that_is_one(url: str, age: str) -> None:
    """Else nothing is erased."""
    assert "30d for days" in refusal(run("expire", f"--older-than={age}", "--store", url, "--yes"))


def test_revert_goes_back_one_summary_at_a_time(url: str, shop: Memory) -> None:
    summarise(shop, 4)
    done = run("revert", "shop", "--store", url, typed=True, said="yes\n")
    assert done.out == "reverted: the summary covers rounds 1-3 again\n"
    assert "'assistant' in session 'shop' covers rounds 1-4" in done.err
    done = run("revert", "shop", "--role", "assistant", "--yes", "--json", "--store", url)
    current = {"generation": 4, "summary_generation": None, "last_covered_round": None}
    assert done.document == {"session": "shop", "role": "assistant"} | current
    assert "no summary of 'assistant'" in refusal(run("revert", "shop", "--yes", "--store", url))
    assert Memory("shop", store=shop._store).get_role_rounds("assistant")[1] is None


def test_a_summary_has_the_same_generation_wherever_it_is_named(url: str, shop: Memory) -> None:
    """After a revert, too: what is shown is what ``diff`` takes; the role's own, which goes on counting, is beside it."""
    summarise(shop, 4)
    reverted = run("revert", "shop", "--yes", "--json", "--store", url).document
    assert (reverted["generation"], reverted["summary_generation"], reverted["last_covered_round"]) == (3, 1, 3)
    (role,) = run("show", "shop", "--json", "--store", url).document["roles"]
    assert (role["generation"], role["summary_generation"]) == (3, 1)
    assert "(generation 1, by small-1)" in run("show", "shop", "--store", url).out
    compared = run("diff", "shop", "--json", "--store", url).document
    assert compared["to"]["generation"] == role["summary_generation"]
    assert run("diff", "shop", "--to", role["summary_generation"], "--json", "--store", url).document == compared


def test_revert_asks_first(url: str, shop: Memory) -> None:
    assert "nothing was reverted" in refusal(run("revert", "shop", "--store", url))
    assert run("show", "shop", "--store", url, "--json").document["roles"][0]["generation"] == 1


def test_revert_takes_back_what_was_asked_about_and_no_other(
    url: str, shop: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may publish while somebody thinks about it: then nothing is reverted, and that is said."""
    monkeypatch.setattr(session_commands, "confirm", lambda *_, **__: summarise(shop, 4))
    assert "another compaction or revert was published" in refusal(run("revert", "shop", "--store", url))
    current = Memory("shop", store=shop._store).get_role_rounds("assistant")[1]
    assert current is not None
    assert current.last_round == 4


def test_no_summary_is_left_says_what_is_shown(url: str, shop: Memory) -> None:
    assert run("revert", "shop", "--yes", "--store", url).out == "reverted: all rounds are as they were said again\n"


# -- diff -------------------------------------------------------------------------------------------------------------


def test_two_summaries_are_compared(url: str) -> None:
    """The current one with the one before it, or any two by their generations."""
    with session(url) as memory:
        for end, said in (
            (1, "Item-1 is counted."),
            (2, "Item-1 is counted.\nItem-2 is too."),
            (4, "Item-2 is too.\x1b"),
        ):
            summarise(memory, end, summary=said)
    out = run("diff", "shop", "--store", url).out
    assert "- Item-1 is counted." in out
    assert "\x1b" not in out
    found = run("diff", "shop", "--json", "--store", url).document
    assert (found["session"], found["role"], found["rounds"]) == ("shop", "assistant", [3, 4])
    assert found["from"] == {"generation": 2, "last_covered_round": 2}
    assert found["to"] == {"generation": 3, "last_covered_round": 4}
    assert (found["dropped"], found["came_in"]) == (["Item-1 is counted."], [])
    found = run("diff", "shop", "--from", 1, "--to", 2, "--json", "--store", url).document
    assert (found["dropped"], found["came_in"], found["stayed"]) == ([], ["Item-2 is too."], ["Item-1 is counted."])
    found = run("diff", "shop", "--to", 1, "--json", "--store", url).document
    assert (found["from"], found["came_in"], found["gone"]) == (None, ["Item-1 is counted."], [])


def test_a_summary_that_was_given_up_can_still_be_compared(url: str, shop: Memory) -> None:
    """None is current after a revert; the newest in the log stands in its place."""
    shop.journal("assistant").revert()
    assert run("diff", "shop", "--json", "--store", url).document["to"]["generation"] == 1


def test_summaries_that_are_not_there_are_one_line(url: str, shop: Memory) -> None:
    assert "no summary of 'Other' in session 'shop'" in refusal(run("diff", "shop", "--role", "Other", "--store", url))
    assert "of generation 7; there are 1" in refusal(run("diff", "shop", "--to", 7, "--store", url))


# -- stores -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", MISSING)
def test_what_only_reads_makes_no_database(command: str, tmp_path: Path) -> None:
    """A mistyped path is said to be one, and leaves nothing behind."""
    words = () if command == "sessions" else ("shop",)
    said = refusal(run(command, *words, "--store", url_of(tmp_path / "nowhere.db")))
    assert "there is no database file" in said
    assert "nowhere.db" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [name for name in MISSING if name != "sessions"])
def test_a_session_that_is_not_there_is_one_line(command: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqlStore, "sessions", None)  # nothing lists a million names for that
    with open_named(url, create=True):
        pass
    assert refusal(run(command, "no\x1bpe", "--store", url)) == (
        "there is no session 'no\\x1bpe' in this store, which has none at all"
    )
    with session(url, rounds=1):
        pass
    assert "`compactor sessions` lists them" in refusal(run(command, "nope", "--store", url))


def test_the_store_may_come_from_the_environment(url: str) -> None:
    with session(url, rounds=1):
        pass
    assert run("sessions", "--json", COMPACTOR_STORE=url).document["sessions"][0]["session"] == "shop"
    assert "pass --store URL" in refusal(run("sessions", COMPACTOR_STORE=""))


@pytest.mark.slow
def test_a_server_is_asked_as_a_file_is(postgres_url: str, tmp_path: Path) -> None:
    """Every command, one after the other, on PostgreSQL."""
    with session(postgres_url, rounds=3) as memory:
        summarise(memory, 2)
    (found,) = run("sessions", "--json", COMPACTOR_STORE=postgres_url).document["sessions"]
    assert (found["session"], found["rounds"]) == ("shop", 3)
    file = tmp_path / "shop.jsonl"
    assert run("export", "shop", "--to", file, COMPACTOR_STORE=postgres_url).code == 0
    assert run("revert", "shop", "--yes", COMPACTOR_STORE=postgres_url).code == 0
    assert run("import", file, "--as", "copy", COMPACTOR_STORE=postgres_url).code == 0
    told = [
        [one["what"] for one in run("events", name, "--json", COMPACTOR_STORE=postgres_url).document["events"]]
        for name in ("shop", "copy")
    ]
    assert told == [["compaction published", "compaction reverted"], ["compaction published"]]
    shown = run("show", "copy", "--json", COMPACTOR_STORE=postgres_url).document
    assert shown["roles"][0]["last_covered_round"] == 2
    assert run("diff", "copy", "--json", COMPACTOR_STORE=postgres_url).document["to"]["generation"] == 1
    assert run("purge", "shop", "--yes", COMPACTOR_STORE=postgres_url).code == 0
    assert "there is no session 'shop'" in refusal(run("show", "shop", COMPACTOR_STORE=postgres_url))


@pytest.mark.parametrize("store", ["memory://", "sqlite://", "sqlite:///:memory:", "sqlite:///"])
def test_what_is_kept_in_memory_cannot_be_looked_into(store: str) -> None:
    assert "ends with the process" in refusal(run("sessions", "--store", store))


@pytest.mark.parametrize(
    "store",
    [
        "mysql://me:hidden@host/db",
        "hidden",
        "sqlite://me:hidden@x",
        "sqlite:///\0hidden",
        "postgresql+psycopg://me:hidden@:x/y",
    ],
)
def test_a_wrong_url_shows_no_password(store: str) -> None:
    said = refusal(run("sessions", "--store", store))
    assert "hidden" not in said or "\\x00hidden" in said


def test_a_path_without_a_scheme_is_offered_with_one(tmp_path: Path) -> None:
    """The commonest mistake is answered by what to type."""
    path = tmp_path / "chats.db"
    assert f"for a file write sqlite:///{path.as_posix()};" in refusal(run("sessions", "--store", path))


def test_a_path_that_no_disk_takes_is_one_line() -> None:
    assert "there is no database file" in refusal(run("sessions", "--store", f"sqlite:///{'x' * 5_000}"))


def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path: Path) -> None:
    """Neither a text nor another program's database."""
    text = tmp_path / "letter.db"
    text.write_bytes(b"Dear all, " * 400)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    for path in (text, other):
        before = path.read_bytes()
        assert str(path) in refusal(run("sessions", "--store", url_of(path))).replace("\\\\", "\\")
        assert path.read_bytes() == before


def test_a_database_of_a_newer_version_is_one_line(url: str, tmp_path: Path) -> None:
    with session(url, rounds=1):
        pass
    with sqlite3.connect(tmp_path / "chats.db") as connection:
        connection.execute("UPDATE compactor_schema SET version = 99")
    connection.close()
    assert "upgrade" in refusal(run("sessions", "--store", url))


def test_a_session_that_goes_away_is_said_to() -> None:
    with pytest.raises(CommandError, match="which has none at all"):
        measure_session(InMemoryStore(), "s")


def test_events_tell_what_presets_kept_in_the_log(url: str) -> None:
    """What was compressed, with its numbers, and where files are; nothing that was said, and nothing of what is
    shown."""
    with open_named(url, create=True) as store:
        memory = MemoryWithCompress(50, memory=Memory("shop", store=store), compress_func=lambda _messages: SHOWN)
        asyncio.run(memory.add([{"role": "user", "content": SECRET}, {"role": "assistant", "content": SECRET}]))
        assert asyncio.run(memory.get_memory()) == SHOWN
    done = run("events", "shop", "--store", url, "--json")
    assert [one["what"] for one in done.document["events"]] == ["memory.compressed"]
    assert done.document["events"][0]["facts"]["messages_before"] == 2
    assert SECRET not in done.out
    assert "a stand-in" not in done.out
    assert SECRET not in run("events", "shop", "--store", url).out
