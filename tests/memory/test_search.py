"""Search finds literal words in what a role sees, the best match first."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory import Attachment, Memory, Post, Recall, ToolCall, open_store


def memory_of(*texts: str) -> Memory:
    """A Memory with one round for each text, which is the user's query."""
    memory = Memory()
    for text in texts:
        memory.create_round(text)
    return memory


def found(memory: Memory, query: str, role: str = "") -> list[str]:
    """Return the references of the hits, in order."""
    return [hit.ref for hit in memory.search(query, role=role, limit=1_000)]


def line(memory: Memory, query: str) -> str:
    """Return the best hit as an agent reads it."""
    return Recall(memory, "").call("search_history", {"query": query}).split("\n")[1]


def test_more_of_the_words_is_a_better_match() -> None:
    """Both words before one of them."""
    memory = memory_of("the red house", "a red car", "a blue car", "nothing here")
    assert found(memory, "red car") == ["r2.p0", "r3.p0", "r1.p0"]


def test_a_rare_word_counts_more_than_a_frequent_one() -> None:
    """An id decides, though newer messages have the other words."""
    memory = memory_of("order ZX-81 came", *["the order of the day"] * 5)
    assert found(memory, "the order ZX-81")[0] == "r1.p0"


def test_a_short_text_is_a_better_match_than_a_long_one() -> None:
    """A word among few says more than the same among many."""
    memory = memory_of("refund please", "refund " + "and so on " * 200)
    assert found(memory, "refund") == ["r1.p0", "r2.p0"]


def test_of_equal_matches_the_newest_comes_first() -> None:
    """What was said last is usually what holds."""
    assert found(memory_of("seat 1", "seat 2", "seat 3"), "seat") == ["r3.p0", "r2.p0", "r1.p0"]


@pytest.mark.parametrize("query", ["REFUND", "refund", "Refund?", '"refund"', "fund", "(refund),"])
def test_a_word_is_found_in_capitals_or_not_and_inside_another(query: str) -> None:
    """Punctuation around it does not count."""
    assert found(memory_of("no Refunds", "else"), query) == ["r1.p0"]


@pytest.mark.parametrize("query", ["a.c", ".*", "(a", "[", "a|b", "%", "a%c", "NEAR(", '"', "\\", "--", "* OR 1=1"])
def test_no_character_is_special(query: str) -> None:
    """It is found where it stands, and only there."""
    memory = memory_of("abc abbbc xyz", f"say {query} there")
    assert found(memory, query)[0] == "r2.p0"


def test_punctuation_alone_is_looked_for_as_it_is() -> None:
    """Somebody may look for the brackets."""
    assert found(memory_of("f()", "g"), "()") == ["r1.p0"]


@pytest.mark.parametrize("query", ["退款政策", "退款", "我们的退款是什么", "关于退款:"])
def test_chinese_is_found_without_spaces(query: str) -> None:
    """By any pair of characters that stand together, too."""
    assert found(memory_of("请问你们的退款政策", "天气很好"), query) == ["r1.p0"]


def test_the_whole_of_a_chinese_phrase_is_the_best_match() -> None:
    """Pairs alone are less."""
    assert found(memory_of("退款政策", "政策很多退款", "退款"), "退款政策")[0] == "r1.p0"


def test_a_number_beside_chinese_is_a_word_too() -> None:
    """The two are written together, and apart."""
    assert memory_of("订单12345号 订单 12345 号").search("订单12345号")[0].counts == (1, 2, 2)
    assert found(memory_of("订单: 12345", "no"), "订单12345") == ["r1.p0"]


def test_words_are_each_taken_once_and_a_bounded_number_of_them() -> None:
    """A page handed in as a query costs no more than a long sentence."""
    assert memory_of("red blue blue").search("Red red RED blue")[0].counts == (1, 2)
    assert memory_of(" \n\t ").search(" \n\t ") == []
    page = " ".join(map(str, range(5_000)))
    assert len(memory_of(page).search(page)[0].counts) == 32
    assert found(memory_of("x" * 1_999, "x" * 2_000), "x" * 100_000) == ["r2.p0"]


def test_messages_calls_results_and_attachments_are_searched() -> None:
    """All the text there is; each is found under the reference of its post."""
    memory = Memory()
    round_ = memory.create_round("alpha")
    memory.add_post(round_, send_from="User", send_to="P", message="alpha")
    call = ToolCall(id="c1", name="lookup", arguments='{"id": "beta"}')
    memory.add_post(round_, Post(send_from="P", send_to="tool", tool_calls=(call,)))
    memory.add_post(round_, Post(send_from="tool", send_to="P", tool_call_id="c1", message="gamma"))
    plan = Attachment(type="plan", content="delta")
    memory.add_post(round_, Post(send_from="P", send_to="User", attachment_list=(plan,)))
    expected = {"alpha": "r1.p0", "beta": "r1.p2", "lookup": "r1.p2", "gamma": "r1.p3", "delta": "r1.p4"}
    assert {word: found(memory, word) for word in expected} == {word: [ref] for word, ref in expected.items()}


def test_a_query_that_is_repeated_with_something_attached_is_found_once() -> None:
    """As the query, which every role sees; what is attached under its post, as only those see it who see that."""
    memory = Memory()
    file = Attachment(type="file", content="zeta")
    memory.add_post(memory.create_round("q"), send_from="User", send_to="P", message="q", attachment_list=(file,))
    assert [found(memory, "q", role) for role in ("", "P", "C")] == [["r1.p0"]] * 3
    assert (found(memory, "zeta", "P"), found(memory, "zeta", "C")) == (["r1.p1"], [])
    assert line(memory, "zeta") == "r1.p1 (User to P; 14 characters): q [file] zeta"


def test_what_is_searched_is_the_same_for_every_role() -> None:
    """Of two roles that use one id, one is not taken for the other's search; an id used again is the newer call's."""
    memory = Memory()
    round_ = memory.create_round("")
    for role, name in (("A", "search_history"), ("B", "get"), ("A", "get")):
        memory.add_post(round_, Post(send_from=role, send_to="tool", tool_calls=(ToolCall(id="1", name=name),)))
        memory.add_post(round_, Post(send_from="tool", send_to=role, tool_call_id="1", message=f"omega {role} {name}"))
    assert found(memory, "omega") == ["r1.p6", "r1.p4"]
    assert found(memory, "omega", "A") == ["r1.p6"]


@pytest.mark.parametrize("url", ["memory://", "sqlite:///chat.db"])
def test_a_post_without_any_names_is_seen_by_the_empty_role_alone(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the query is everybody's; a store's index tells them apart, too."""
    monkeypatch.chdir(tmp_path)
    store = open_store(url)
    memory = Memory(store=store)
    round_ = memory.create_round("sigma")
    memory.add_post(round_, send_from="", send_to="", message="sigma")
    memory.finish_round(round_)
    assert (found(memory, "sigma"), found(memory, "sigma", "A")) == (["r1.p1", "r1.p0"], ["r1.p0"])
    store.close()


def test_calls_of_some_tools_and_their_results_are_not_searched() -> None:
    """A search does not find earlier searches; what else was said and called with them is found."""
    memory = Memory()
    round_ = memory.create_round("where is it")
    own, other = (
        ToolCall(id="c1", name="search_history", arguments="omega"),
        ToolCall(id="c2", name="get", arguments="omega"),
    )
    memory.add_post(round_, Post(send_from="P", send_to="tool", message="I look", tool_calls=(own,)))
    memory.add_post(round_, Post(send_from="tool", send_to="P", message="omega here", tool_call_id="c1"))
    assert found(memory, "omega") == []
    assert found(memory, "look") == ["r1.p1"]
    memory.add_post(round_, Post(send_from="P", send_to="tool", tool_calls=(own, other)))
    memory.add_post(round_, Post(send_from="tool", send_to="P", message="omega too", tool_call_id="c2"))
    assert sorted(found(memory, "omega")) == ["r1.p3", "r1.p4"]


def test_a_role_finds_only_what_it_sees() -> None:
    """Other roles' posts are not there, and failed rounds are not."""
    memory = Memory()
    for state in ("finished", "failed"):
        round_ = memory.create_round("theta")
        memory.add_post(round_, send_from="A", send_to="B", message="theta")
        memory.add_post(round_, send_from="B", send_to="C", message="theta")
        memory.finish_round(round_, state=state)
    assert sorted(found(memory, "theta", role="A")) == ["r1.p0", "r1.p1"]
    assert sorted(found(memory, "theta", role="C")) == ["r1.p0", "r1.p2"]
    assert sorted(found(memory, "theta")) == ["r1.p0", "r1.p1", "r1.p2"]


def test_a_line_shows_where_a_word_stands_in_a_long_text() -> None:
    """With the offset at which to read on, and no line breaks."""
    text = "x" * 1_000 + "\nthe  needle\nis here " + "y" * 1_000
    shown = line(memory_of(text), "NEEDLE")
    assert shown.startswith(f"r1.p0 (User; {len(text)} characters, shown from offset 926): ...xxx")
    assert "x the needle is here y" in shown
    assert shown.endswith("y...")
    assert "\n" not in shown


def test_a_line_shows_a_short_text_whole() -> None:
    """With nothing before or after it."""
    assert line(memory_of("the needle"), "needle") == "r1.p0 (User; 10 characters): the needle"


def test_a_line_is_bounded() -> None:
    """Whatever names the roles have."""
    memory = Memory()
    memory.add_post(memory.create_round(""), send_from="A" * 500, send_to="B" * 500, message="word " * 500)
    assert len(line(memory, "word")) < 400


#: Short words too, so that queries find something.
TEXTS = st.text(st.characters(exclude_categories=())) | st.lists(st.sampled_from(["ab", "B", "a.", ","])).map(" ".join)


@given(TEXTS, st.lists(TEXTS, max_size=4))
def test_any_query_is_safe_in_any_history(query: str, texts: list[str]) -> None:
    """Every hit has one of the words, every text with one is a hit, and hits are in the order of their scores."""
    memory = memory_of(*texts)
    hits = memory.search(query, limit=9)
    words = [word for word in query.lower().split() if word.isascii() and word.isalnum()]
    having = {f"r{n}.p0" for n, text in enumerate(texts, 1) if any(word in text.lower() for word in words)}
    assert {hit.ref for hit in hits} >= having
    assert all(any(hit.counts) for hit in hits)
    assert len({hit.ref for hit in hits}) == len(hits)
    if hits:
        assert line(memory, query).startswith(hits[0].ref)


def test_an_empty_history_has_nothing() -> None:
    assert found(Memory(), "word") == []
