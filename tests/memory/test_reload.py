"""A reference is a place in the log, and gives back the text that stands there."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory import Attachment, Memory, Post, ToolCall

TEXT = "line one\n{content} </summary>\0\ud800 end "


def memory_of_agents() -> Memory:
    """Three rounds; the second has failed."""
    memory = Memory()
    for number in (1, 2, 3):
        round_ = memory.create_round(f"query {number}")
        for sender, receiver in [("User", "Planner"), ("Planner", "CodeInterpreter"), ("CodeInterpreter", "Planner")]:
            memory.add_post(round_, send_from=sender, send_to=receiver, message=f"{sender} {number} {TEXT}")
        memory.finish_round(round_, state="failed" if number == 2 else "finished")
    return memory


def test_a_post_is_reloaded_as_it_was() -> None:
    """To the character; p0 is the user's query."""
    memory = memory_of_agents()
    assert memory.reload("r3.p2") == f"Planner 3 {TEXT}"
    assert memory.reload("r3.p0") == "query 3"
    assert memory.reload("r2.p1") == f"User 2 {TEXT}"


@given(st.text(st.characters(exclude_categories=())), st.text(st.characters(exclude_categories=())))
@settings(deadline=None, max_examples=25)
def test_any_text_is_reloaded_as_it_was(query: str, message: str) -> None:
    """Nothing is added, cut or escaped."""
    memory = Memory()
    memory.add_post(memory.create_round(query), send_from="a", send_to="b", message=message)
    assert memory.reload("r1.p1") == message
    assert memory.reload("r1.p0") == query


def test_a_round_is_reloaded_as_text_to_read() -> None:
    """Who said what to whom, with attachments, calls and results; a query said twice is shown once."""
    memory = Memory()
    round_ = memory.create_round("plot it")
    for post in (
        Post(send_from="User", send_to="Planner", message="plot it"),
        Post(send_from="Planner", send_to="python", tool_calls=(ToolCall(id="c1", name="run", arguments='{"a": 1}'),)),
        Post(send_from="python", send_to="Planner", message="ok", tool_call_id="c1"),
        Post(
            send_from="Planner", send_to="User", message="see", attachment_list=(Attachment(type="plan", content="1."),)
        ),
    ):
        memory.add_post(round_, post)
    assert memory.reload("r1") == (
        "[Round 1]\n"
        "User: plot it\n"
        'Planner to python: Planner calls run({"a": 1}) as c1\n'
        "python (result of c1): ok\n"
        "Planner to User: see\n\n[plan]\n1."
    )  # fmt: skip
    assert memory.reload("r1.p2") == 'Planner calls run({"a": 1}) as c1'


def test_a_query_that_is_said_again_with_something_attached_is_shown() -> None:
    """Its attachment is nowhere else."""
    memory = Memory()
    file = Attachment(type="file", content="a,b")
    memory.add_post(memory.create_round("q"), send_from="User", send_to="Planner", message="q", attachment_list=[file])
    assert memory.reload("r1") == "[Round 1]\nUser: q\nUser to Planner: q\n\n[file]\na,b"


@pytest.mark.parametrize("ref", ["r1-r3", "r1-3"])
def test_several_rounds_are_reloaded_in_one(ref: str) -> None:
    """In order, each under its number; with failed ones for the host."""
    memory = memory_of_agents()
    assert memory.reload(ref) == "\n\n".join(memory.reload(f"r{number}") for number in (1, 2, 3))
    assert memory.reload("r2-r2") == memory.reload("r2")


def test_a_role_reloads_what_it_may_see_by_the_same_references() -> None:
    """The log's own numbers, whatever is hidden from it; other roles' posts are not there."""
    memory = memory_of_agents()
    assert memory.reload("r3.p2", role="CodeInterpreter") == f"Planner 3 {TEXT}"
    assert memory.reload("r3.p0", role="Stranger") == "query 3"
    with pytest.raises(KeyError, match="give r3 for the whole round"):
        memory.reload("r3.p1", role="CodeInterpreter")
    assert "User 3" not in memory.reload("r3", role="CodeInterpreter")
    assert memory.reload("r1-r3", role="Planner") == "\n\n".join(
        memory.reload(ref, role="Planner") for ref in ("r1", "r3")
    )


@pytest.mark.parametrize("ref", ["r2", "r2.p0", "r2.p1", "r2-r2"])
def test_failed_rounds_are_hidden_from_roles(ref: str) -> None:
    """A model is not shown what the host has withdrawn; the host itself is."""
    memory = memory_of_agents()
    assert memory.reload(ref)
    with pytest.raises(KeyError, match="failed and undone rounds are hidden"):
        memory.reload(ref, role="Planner")


@pytest.mark.parametrize("ref", ["r0", "r4", "r0-r2", "r2-r9", "r3-r1", "r999999999999"])
def test_rounds_that_do_not_exist_are_key_errors(ref: str) -> None:
    """The error tells how many there are."""
    with pytest.raises(KeyError, match=f"no {ref}: .*this session has 3"):
        memory_of_agents().reload(ref)


@pytest.mark.parametrize("ref", ["r1.p4", "r1.p99"])
def test_posts_that_do_not_exist_are_key_errors(ref: str) -> None:
    """The error tells what can be asked for instead."""
    with pytest.raises(KeyError, match="give r1 for the whole round"):
        memory_of_agents().reload(ref)


@pytest.mark.parametrize(
    "ref",
    ["", "r", "12", "R1", "r1.p", "r1.p1.p2", "r1-", "r-1", "r1.p-1", " r1", "r1\n", "r1 - r2", "r1.p1-r2", "r٣", "r" + "1" * 13],
)  # fmt: skip
def test_what_is_no_reference_is_a_key_error_that_shows_some(ref: str) -> None:
    """Models make them up."""
    with pytest.raises(KeyError, match=r"look like r12, r3-r9, r12\.p3 or r12\.p3-p17"):
        memory_of_agents().reload(ref)


def test_an_error_repeats_little_of_what_was_asked() -> None:
    """A model may hand in a page."""
    with pytest.raises(KeyError) as raised:
        Memory().reload("x" * 100_000)
    assert len(str(raised.value)) < 200
