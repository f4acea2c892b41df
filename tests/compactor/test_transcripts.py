"""A user's transcript: every shape that people have is read, and what cannot be read is refused in one clear line."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.cli.replay import NamedConversation, join_conversations, read_transcript
from compactor.cli.terminal import CommandError

ASK = {"role": "user", "content": "where is it?"}
REPLY = {"role": "assistant", "content": "in hall 3"}
ONE = [ASK, REPLY]
OTHER = [{"role": "user", "content": "and now?"}]
SECRET = "the customer's secret"


def lines(*values: object) -> str:
    return "\n".join(map(json.dumps, values))


def read_text(folder: Path, text: str | bytes, name: str = "chat.json") -> list[NamedConversation]:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_transcript(str(path))


def messages(conversations: list[NamedConversation]) -> list[list[Any]]:
    return [list(messages) for _, messages in conversations]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(json.dumps(ONE), [ONE], id="a list of messages"),
        pytest.param(json.dumps(ONE, indent=2), [ONE], id="the same over many lines"),
        pytest.param(json.dumps({"messages": ONE}), [ONE], id="an object with messages"),
        pytest.param(json.dumps({"messages": ONE, "tools": []}, indent=1), [ONE], id="with other keys"),
        pytest.param(json.dumps([ONE, OTHER]), [ONE, OTHER], id="a list of lists"),
        pytest.param(json.dumps([{"messages": ONE}, {"messages": OTHER}]), [ONE, OTHER], id="a list of objects"),
        pytest.param(json.dumps([{"messages": ONE}, OTHER], indent=4), [ONE, OTHER], id="a list of both"),
        pytest.param(lines({"messages": ONE}, {"messages": OTHER}), [ONE, OTHER], id="an object a line"),
        pytest.param(lines(ONE, OTHER), [ONE, OTHER], id="a list a line"),
        pytest.param(lines(*ONE), [ONE], id="a message a line"),
        pytest.param(lines(ASK), [[ASK]], id="a single message"),
        pytest.param("\n\n" + lines(*ONE) + "\n \n", [ONE], id="blank lines"),
        pytest.param(lines(*ONE).replace("\n", "\r\n"), [ONE], id="lines that end as on Windows"),
        pytest.param("\ufeff" + json.dumps(ONE), [ONE], id="a byte order mark"),
        pytest.param(json.dumps({"messages": []}), [[]], id="a conversation without messages"),
    ],
)
def test_every_usual_shape_is_read(text: str, expected: list[Any], tmp_path: Path) -> None:
    """One conversation or many, as JSON or JSONL: the messages come out as they went in."""
    assert messages(read_text(tmp_path, text)) == expected


def test_a_conversation_goes_by_its_id_or_its_number(tmp_path: Path) -> None:
    """So an error, or a row of a table, can be found again in the file."""
    found = read_text(
        tmp_path,
        lines(
            {"id": "a-1", "messages": ONE}, {"messages": ONE}, {"id": 7, "messages": ONE}, {"id": [], "messages": ONE}
        ),
    )
    assert [name for name, _ in found] == ["a-1", "2", "7", "4"]


def test_an_id_is_shown_on_one_line_without_what_a_terminal_acts_on(tmp_path: Path) -> None:
    """A file cannot write to the user's terminal by the names in it."""
    (found,) = read_text(tmp_path, json.dumps({"id": "a\x1b[2J\nb", "messages": ONE}))
    assert found[0] == "a\\x1b[2J b"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
conversations = st.lists(
    st.lists(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system"]), "content": texts}), min_size=1
    ),
    min_size=2,
    max_size=4,
)


@given(conversations, st.sampled_from([None, 0, 2]), st.booleans())
def test_what_was_written_in_one_shape_is_read_in_any_other(
    tmp_path_factory: pytest.TempPathFactory, said: list[Any], indent: int | None, wrapped: bool
) -> None:
    """The shape of a file makes no difference to what it says."""
    folder = tmp_path_factory.mktemp("shapes")
    values = [{"messages": one} for one in said] if wrapped else said
    as_list = read_text(folder, json.dumps(values, indent=indent, ensure_ascii=False))
    as_lines = read_text(folder, lines(*values))
    assert messages(as_list) == messages(as_lines) == said


def test_standard_input_is_a_file_named_minus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transcript can be piped in."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(ONE).encode())))
    assert messages(read_transcript("-")) == [ONE]


def test_joined_conversations_keep_every_message(tmp_path: Path) -> None:
    """Nothing is left out silently: also a later conversation's system message stays where it stands."""
    rules = {"role": "system", "content": "rules"}
    found = read_text(tmp_path, lines({"messages": [rules, *ONE]}, {"messages": [rules, *OTHER]}))
    assert join_conversations(found) == ("1-2 joined", [rules, *ONE, rules, *OTHER])


def test_a_single_conversation_keeps_its_name_when_joined(tmp_path: Path) -> None:
    assert join_conversations(read_text(tmp_path, json.dumps({"id": "a", "messages": ONE})))[0] == "a"


def test_the_real_dialogues_are_read(data: list[dict[str, Any]], tmp_path: Path) -> None:
    """133 dialogues, none refused, none changed."""
    found = read_text(tmp_path, lines(*data))
    assert messages(found) == [dialogue["messages"] for dialogue in data]
    assert [name for name, _ in found] == [dialogue["id"] for dialogue in data]


# -- what is refused --------------------------------------------------------------------------------------------------


def refused(folder: Path, text: str | bytes) -> str:
    with pytest.raises(CommandError) as raised:
        read_text(folder, text)
    said = str(raised.value)
    assert said.startswith(f"{folder / 'chat.json'}")
    assert "\n" not in said
    assert SECRET not in said
    return said.removeprefix(f"{folder / 'chat.json'}")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"", ": is empty; it needs a list of messages"),
        (b" \n\t\n", ": is empty"),
        (b"[]", ": holds no conversation"),
        (b"\x89PNG\r\n\x1a\n\0\0", ": is not UTF-8 text (byte 0)"),
        (b"PK\x03\x04\0\0\0", ": is binary, not text"),
        (json.dumps(ONE).encode("utf-16"), ": is not UTF-8 text (byte 0); save it as UTF-8"),
        ('[{"role": "user", "content": "für"}]'.encode("latin-1"), ": is not UTF-8 text (byte 31)"),
        (b'[\n{"role": "user",\n"content": }\n]', ": is not JSON (line 3, column 12: Expecting value)"),
        (lines(ASK) + "\n\n{" + SECRET, ": is not JSON (line 3, column 2"),
        (lines(ASK)[:-1] + "\n" + lines(ASK), ": is not JSON (line 2, column 1"),
        (b"Hello, this is no JSON", ": is not JSON (line 1, column 1"),
        (b"[" * 200_000, ": is nested too deeply to be read (line 1)"),
        (lines(ASK) + "\n" + "[" * 200_000, ": is nested too deeply to be read (line 2)"),
        (b"[" + b"9" * 10_000 + b"]", ": holds a number too long to be read (line 1)"),
        (b"42", ": is no conversation but a number; it needs a list of messages"),
        (b"true", ": is no conversation but true or false"),
        (b"null", ": is no conversation but null"),
        (json.dumps(SECRET), ": is no conversation but a text"),
        (json.dumps({"chat": [SECRET]}), ": is no conversation but an object without a list of messages"),
        (json.dumps({"messages": SECRET}), ": is no conversation but an object without a list of messages"),
        (json.dumps([ONE, SECRET]), ", conversation 2: is no conversation but a text"),
        (json.dumps([ONE, ASK]), ", conversation 2: is a message among conversations"),
        (lines({"messages": ONE}, ASK), ", line 2: is a message among conversations"),
        (lines(ASK, {"messages": ONE}), ", line 1: is a message among conversations"),
        (
            lines({"messages": ONE}, [[SECRET]]),
            ", line 2, message 1: a chat message is a mapping with a role, not list",
        ),
        (json.dumps([ASK, {"role": SECRET}]), ", message 2: the message's role must be one of "),
        (lines(ASK, {"role": SECRET}), ", line 2: the message's role must be one of "),
        (lines({"messages": ONE}, {"messages": [ASK, {"content": SECRET}]}), ", line 2, message 2: the message's role"),
        (
            json.dumps([{"role": "user", "content": 4}]),
            ", message 1: content must be a string, null, an object or a list",
        ),
        (json.dumps({"messages": [{"role": "assistant", "tool_calls": [SECRET]}]}), ", message 1: each of tool_calls"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_place(text: str | bytes, says: str, tmp_path: Path) -> None:
    """File, line, conversation and message, what is wrong, and never a word of what was said."""
    assert says in refused(tmp_path, text)


@pytest.mark.parametrize("depth", [100, 400, 900, 20_000])
def test_a_message_of_any_depth_is_read_or_refused(depth: int, tmp_path: Path) -> None:
    """Nesting that no chat has ends in a line, not in a crash."""
    nested = '{"type": "x", "deep": ' + "[" * depth + "]" * depth + "}"
    text = '[{"role": "user", "content": [' + nested + "]}]"
    if depth == 100:
        assert len(read_text(tmp_path, text)) == 1
    else:
        assert "nested" in refused(tmp_path, text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="cannot be read") as raised:
        read_transcript(str(tmp_path / "gone.json"))
    assert "gone.json" in str(raised.value)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is a folder"):
        read_transcript(str(tmp_path))


def test_a_path_that_no_system_takes_is_refused_too() -> None:
    with pytest.raises(CommandError, match="cannot be read"):
        read_transcript("a\0b")
