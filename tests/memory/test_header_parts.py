"""Parts of the header that a host replaces: the newest text of each stands in prompts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from command_line import run

from compactor import compose
from memory import Memory, MessageError, open_store


def shown(memory: Memory, role: str = "assistant") -> list[str]:
    prompt = compose(memory, role, budget=10_000)
    return [message["content"] for message in prompt.messages if message["role"] == "system"]


def test_the_newest_text_of_a_part_is_shown_where_its_first_stood() -> None:
    """Also once there are rounds; what a part said before stays in the log."""
    memory = Memory()
    memory.append({"role": "system", "content": "You help."})
    memory.set_header("skills", "Skills: search.")
    memory.set_header("date", "It is Monday.")
    memory.append({"role": "user", "content": "Hello"})
    memory.set_header("skills", "Skills: search, book.")
    assert shown(memory) == ["You help.", "Skills: search, book.", "It is Monday."]
    assert [post.message for post in memory.snapshot.header].count("Skills: search.") == 1


def test_an_empty_text_takes_a_part_out() -> None:
    """And a text puts it back to its place."""
    memory = Memory()
    memory.set_header("skills", "Skills: search.")
    memory.set_header("date", "It is Monday.")
    memory.set_header("skills", "")
    assert shown(memory) == ["It is Monday."]
    memory.set_header("skills", "Skills: book.")
    assert shown(memory) == ["Skills: book.", "It is Monday."]


def test_the_same_text_again_writes_nothing() -> None:
    """A host may set it before each request."""
    memory = Memory()
    for _ in range(5):
        memory.set_header("date", "It is Monday.")
    assert len(memory.snapshot.header) == 1


def test_each_role_has_parts_of_its_own() -> None:
    memory = Memory()
    memory.set_header("task", "Plan.", role="Planner")
    memory.set_header("task", "Code.", role="Coder")
    assert shown(memory, "Planner") == ["Plan."]
    assert shown(memory, "Coder") == ["Code."]


def test_parts_survive_a_resume_and_an_export(tmp_path: Path) -> None:
    url, copy = (f"sqlite:///{(tmp_path / name).as_posix()}" for name in ("chat.db", "copy.db"))
    with closing(open_store(url)) as store:
        memory = Memory("s", store=store)
        memory.append({"role": "user", "content": "Hello"})
        memory.set_header("date", "It is Monday.")
        memory.set_header("date", "It is Tuesday.")
        assert shown(Memory("s", store=store)) == ["It is Tuesday."]
        assert shown(Memory.from_state_dict(memory.state_dict())) == ["It is Tuesday."]
    run("export", "s", "--store", url, "--to", tmp_path / "s.jsonl")
    run("import", tmp_path / "s.jsonl", "--store", copy)
    with closing(open_store(copy)) as store:
        assert shown(Memory("s", store=store)) == ["It is Tuesday."]


@pytest.mark.parametrize(("name", "text"), [("", "x"), (None, "x"), ("date", None), ("date", 7)])
def test_a_part_needs_a_name_and_a_text(name: object, text: object) -> None:
    memory = Memory()
    with pytest.raises(MessageError):
        memory.set_header(name, text)  # type: ignore[arg-type]
    assert memory.header == ()
