"""A search has the same answers on every store, whatever is said and whatever is looked for."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memory import Attachment, Memory, Post, Recall, Store, ToolCall, open_store
from memory.search import normalize, split_query

ROLES = ("", "Planner", "Coder", "nobody", "\ud800", "Plan%")
TEXTS = (
    "The appointment at 42 Main Street was cancelled; the refund of $1,250.00 is due",
    "an appointment, AND another NEAR the station; NOT \"quoted\" 'single' * prefix* col:umn ^start (group) {set}",
    "100% of file_name.txt in C:\\temp\\new, /etc/passwd, a%b_c\\d, !important, $1 ?1 :name @p",
    "请问你们的退款政策是什么？订单12345号还没有到",
    "東京都の天気は晴れです。予約番号はABC-987です",
    "ขอคืนเงินค่าสินค้าครับ ยังไม่ได้รับของ",
    "환불 정책이 어떻게 되나요? 주문번호 777번",
    "party \U0001f389\U0001f680 in the caf\u00e9 and the cafe\u0301, Straße STRASSE İstanbul ΟΔΟΣ οδος",
    "nul \0 and half \ud83d of \ude00 a character \ufffe\uffff",
    "x" * 3_000 + " needle " + "y" * 3_000,
    "a",
    "the the the the appointment the the",
    "line one\nline two\ttabbed\r\nthe end",
)
TOO_LONG = " ".join(f"word{number}" for number in range(100)) + " appointment"
QUERIES = (
    *("appointment", "refund appointment", "the", "a", "e", "42", "12", "$1,250.00", "cancelled station refund"),
    *('"quoted"', "'single'", "*", "prefix*", "AND", "and or not near", "NEAR(", "NEAR(a b, 3)", "col:umn", "^start"),
    *(
        "(group)",
        "{set}",
        '"',
        "''",
        "--",
        "; DROP TABLE x",
        "%",
        "_",
        "\\",
        "a%b_c\\d",
        "100%",
        "file_name",
        "$1",
        "?1",
    ),
    *(
        "/etc/passwd",
        "c:\\temp",
        "!important",
        "退款",
        "退款政策",
        "款",
        "订单12345号",
        "天气",
        "天気は晴れ",
        "予約番号",
    ),
    *("คืนเงิน", "สินค้า", "환불", "환불 정책은", "777번", "\U0001f389", "\U0001f389\U0001f680", "caf\u00e9", "cafe\u0301"),
    *("straße", "STRASSE", "istanbul", "İstanbul", "οδος", "ΟΔΟΣ", "nul \0", "\ud83d", "\ufffd", "\ufffe\uffff"),
    *("needle", "xxxx", "x" * 2_000, "line two", "missing", "zz", "the missing", "lookup", '{"id": "ZX-81"}', "omega"),
    TOO_LONG,
    "the appointment at main street was cancelled and the refund is due " * 40,
)


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store with an index."""
    sqlite = f"sqlite:///{(tmp_path / 'chat.db').as_posix()}"
    opened = open_store(sqlite if request.param == "sqlite" else request.getfixturevalue("postgres_url"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def sqlite_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """One that examples share, each with a session of its own."""
    opened = open_store(f"sqlite:///{(tmp_path_factory.mktemp('search') / 'chat.db').as_posix()}?synchronous=normal")
    yield opened
    opened.close()


def said(memory: Memory) -> Memory:
    """Put into *memory* what is searched: several roles, a failed round, tool calls, attachments, an open round."""
    people = ("User", "Planner", "Coder", "\ud800", "")
    for number, text in enumerate(TEXTS, 1):
        round_ = memory.create_round(TEXTS[-number], id=str(number))
        file = (Attachment(type="file", content=text.upper()),) if number % 3 == 0 else ()
        query = TEXTS[-number] if number % 2 else text
        memory.add_post(round_, send_from="User", send_to="Planner", message=query, attachment_list=file)
        memory.add_post(round_, send_from=people[number % 5], send_to=people[number * 2 % 5], message=text)
        for name, role in (("lookup", "Coder"), ("search_history", "Planner")):
            call = ToolCall(id="c", name=name, arguments='{"id": "ZX-81"}')
            memory.add_post(round_, Post(send_from=role, send_to="tool", tool_calls=(call,)))
            result = Post(send_from="tool", send_to=role, tool_call_id="c", message=f"omega {text}")
            memory.add_post(round_, result)
        memory.finish_round(round_, state="failed" if number in (2, 13) else "finished")
    memory.finish_round("5", state="failed")
    memory.add_post(
        memory.create_round("the open appointment", id="open"), send_from="A", send_to="Coder", message="退款"
    )
    return memory


def answers(memory: Memory, queries: tuple[str, ...] = QUERIES, role: str = "", **page: int) -> dict[str, str]:
    """Return what *role* is answered for every query: the best hits, or those of another page."""
    recall = Recall(memory, role)
    return {query: recall.call("search_history", {"query": query, "limit": 20, **page}) for query in queries}


@pytest.mark.slow
def test_every_query_has_the_same_answer(store: Store) -> None:
    """In the same order, with the same pages and the same pieces of text."""
    memory, expected = said(Memory("s", store=store)), answers(said(Memory("m")))
    assert memory.index_texts() is True
    assert answers(memory) == expected
    page = {"limit": 3, "offset": 4}
    assert answers(memory, QUERIES[:3], **page) == answers(said(Memory("m")), QUERIES[:3], **page)
    nothing = {query for query, found in expected.items() if found.startswith("Nothing")}
    assert nothing == {"''", "--", "天气", "missing", "zz", TOO_LONG}


@pytest.mark.slow
def test_every_role_has_the_same_answer(store: Store) -> None:
    """Also after a round failed or a text was erased, for another process, and after a resume."""
    memory, expected = said(Memory("s", store=store)), said(Memory("m"))
    queries = ("the appointment", "refund ZX-81 42", "退款政策", "omega", "%")
    before = {role: answers(expected, queries, role) for role in ROLES}
    assert {role: answers(memory, queries, role) for role in ROLES} == before
    for one in (memory, expected):
        one.finish_round("10", state="failed")
        one.redact("r1.p2")
        one.redact("r4.p0")
        one.finish_round("open")
        one.create_round("the next appointment")
    after = {role: answers(expected, queries, role) for role in ROLES}
    assert all(after[role] != before[role] for role in ROLES)
    for one in (memory, Memory("s", store=store)):
        assert {role: answers(one, queries, role) for role in ROLES} == after


def test_what_a_role_does_not_see_is_not_found(store: Store) -> None:
    """Names that are patterns, prefixes or no characters are others."""
    memory = Memory("s", store=store)
    names = ("Planner", "planner", "Plan", "Planne_", "%", "\ud800", "\ufffd", "\0", "\\ud800")
    round_ = memory.create_round("")
    for name in names:
        memory.add_post(round_, send_from=name, send_to="tool", message=f"swordfish of {name!a}")
    memory.finish_round(round_)
    memory.index_texts()
    found = {name: [hit.number for hit in memory.search("swordfish", role=name)] for name in names}
    assert found == {name: [place] for place, name in enumerate(names, 1)}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(texts=st.lists(st.text(), max_size=6), data=st.data())
def test_any_text_and_any_query_are_answered_alike(sqlite_file: Store, texts: list[str], data: st.DataObject) -> None:
    """Queries that are parts of the texts, and others."""
    part = st.sampled_from(texts or [""]).flatmap(
        lambda text: st.tuples(st.integers(0, len(text)), st.integers(0, len(text))).map(
            lambda ends: text[min(ends) : max(ends)]
        )
    )
    queries = tuple(data.draw(st.lists(part | st.text(max_size=9), max_size=4)))
    stored, expected = Memory(store=sqlite_file), Memory()
    for memory in (stored, expected):
        for text in texts:
            memory.finish_round(memory.create_round(text))
    assert answers(stored, queries) == answers(expected, queries)
    assert [len(expected.search(query, limit=9)) for query in queries] == [
        sum(any(word in normalize(text) for word in split_query(query)) for text in texts) for query in queries
    ]


@pytest.mark.slow
def test_real_dialogues_are_searched_alike(sqlite_file: Store, data: list[dict[str, Any]]) -> None:
    """By words that stand in them: rare ones, common ones, and of two letters."""
    spoken = [message for dialogue in data[:15] for message in dialogue["messages"]]
    stored, expected = Memory.from_messages(spoken, store=sqlite_file), Memory.from_messages(spoken)
    words = sorted(set(re.findall(r"\S+", " ".join(str(message.get("content")) for message in spoken))))
    chosen = random.Random(7)
    queries = tuple(" ".join(chosen.sample(words, size)) for size in (1, 2, 3, 12) for _ in range(6))
    assert stored.index_texts() is True
    for query in (*queries, "the", "of", "a", "reservation", "ok"):
        assert stored.search(query, role="assistant", limit=50) == expected.search(query, role="assistant", limit=50)
