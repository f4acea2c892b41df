"""What models wrap around a summary is taken off, and never a part of the summary."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.checks.echo import has_markup
from compactor.summarizers.base import strip_tags

SUMMARY = "The user booked HAT001.\nNothing is pending."


@pytest.mark.parametrize("tag", ["think", "thinking", "reasoning", "THINK"])
@pytest.mark.parametrize("between", ["", "\n", "\n\n  "])
def test_thoughts_before_the_summary_are_taken_off(tag: str, between: str) -> None:
    """Whatever the model thought first, on as many lines as it likes."""
    assert strip_tags(f"{between}<{tag}>One.\n\nTwo <b>.\n</{tag}>{between}{SUMMARY}") == SUMMARY


def test_several_thoughts_and_the_tags_around_are_all_taken_off() -> None:
    """In any order: thoughts, the summary's tag, thoughts within."""
    answer = f"<think>a</think>\n<thinking>b</thinking><summary><think>c</think>\n{SUMMARY}\n</summary>\n"

    assert strip_tags(answer) == SUMMARY


def test_thoughts_that_never_end_leave_nothing() -> None:
    """A model that ran out of tokens while thinking has not answered."""
    assert strip_tags("<think>First I should") == ""
    assert strip_tags("<think>First</thinking> I should") == ""


@pytest.mark.parametrize(
    "answer",
    [
        f"So they booked.\n</think>\n\n{SUMMARY}",
        f"So they booked.\n</think>\n{SUMMARY}",
        f"So they booked.</think>\n\n{SUMMARY}",
        f"</think>\n\n{SUMMARY}",
        f"</think>{SUMMARY}",
        f"One.\n</think>\nTwo.\n</thinking>\n{SUMMARY}",
        f"```\ncode\n```\nSo.\n</think>\n\n{SUMMARY}",
    ],
)
def test_a_closing_tag_alone_ends_thoughts_where_it_ends_a_line(answer: str) -> None:
    """Some servers cut the opening tag off; what stands before the closing one is thoughts all the same."""
    assert strip_tags(answer) == SUMMARY


@pytest.mark.parametrize(
    "summary",
    [
        "The parser must close </think> before the answer.",
        "The parser drops `</think>`\n\nThe user wants it fixed.",
        'It splits at "</think>",\nwhich is wrong.',
        "The user asked about <think> tags.\n</think>\nends them.",
        "Template:\n```\n{thoughts}\n</think>\n```\nis what the user wants.",
        "They use <summary> and </summary> in their template.",
        "Tags: <thinking>x</thinking> in the middle.",
        "a < b and <b>bold</b>",
    ],
)
def test_a_summary_that_speaks_of_tags_keeps_all_of_itself(summary: str) -> None:
    """A mention in a sentence, in quotes, in code or in pairs costs the summary nothing."""
    assert strip_tags(summary) == summary


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        (f"<summary>{SUMMARY}</summary>", SUMMARY),
        (f"<Summary>\n{SUMMARY}\n</SUMMARY>\n", SUMMARY),
        (f"<summary>{SUMMARY}", SUMMARY),
        (f"<summary>{SUMMARY}</summary>\n\nAlso: seat 4A.", f"{SUMMARY}\n\nAlso: seat 4A."),
        (f"<summary><summary>{SUMMARY}</summary>", SUMMARY),
        (f"{SUMMARY}</summary>", SUMMARY),
    ],
)
def test_the_tags_around_a_summary_are_taken_off_and_what_follows_is_kept(answer: str, bare: str) -> None:
    """With or without the closing tag; text behind it may be a part of the answer."""
    assert strip_tags(answer) == bare


@pytest.mark.parametrize(
    "answer",
    [
        f"Here is the summary:\n<summary>{SUMMARY}</summary>",
        f"Here is the summary: <summary>{SUMMARY}</summary>",
        f"**Summary:**\n\n<summary>\n{SUMMARY}\n</summary>\n",
        f"<analysis>\nFirst the goal.\n</analysis>\n\n<summary>\n{SUMMARY}\n</summary>",
        f"<think>x</think><analysis>a</analysis><summary>{SUMMARY}</summary>",
        f"I will look at it first.\n<analysis>One <b>.\nTwo.</analysis>\n<summary>{SUMMARY}</summary>",
        f'<summary lang="en">{SUMMARY}</summary>',
        f'<thinking effort="low">Hm.</thinking>\n<summary lang="en" v="1">\n{SUMMARY}\n</summary>',
        f"```xml\n<summary>{SUMMARY}</summary>\n```",
        f"```\n<summary>\n{SUMMARY}\n</summary>\n```\n",
        f"Here is the summary:\n\n```xml\n<summary>\n{SUMMARY}\n</summary>\n```",
        f"<analysis>a</analysis>\n```xml\n<summary>{SUMMARY}</summary>\n```",
        f"以下是摘要：\n<summary>{SUMMARY}</summary>",
    ],
)
def test_what_announces_a_summary_in_tags_is_taken_off(answer: str) -> None:
    """An introduction, an analysis, a block of code, attributes: what is published is what stands in the tags."""
    assert strip_tags(answer) == SUMMARY


@pytest.mark.parametrize(
    "summary",
    [
        "The template is this: <summary>x</summary> and it is used by the user.",
        "<analysis>The user books.</analysis> Nothing more.",
        "```xml\n<config>x</config>\n```",
        "The user wants a parser. " * 20 + "It reads: <summary>x</summary>",
    ],
)
def test_a_summary_of_tags_is_left_alone(summary: str) -> None:
    """What stands in the middle of it, or in tags of other names, is its own."""
    assert strip_tags(summary) == summary


@pytest.mark.parametrize(
    "answer",
    [
        f"<summary>draft</summary>\n<summary>{SUMMARY}</summary>",
        f"<summary>{SUMMARY}</summary><summary> </summary>",
        f"<summary><summary>{SUMMARY}</summary></summary>",
        f"~~~\n<summary>{SUMMARY}</summary>\n~~~",
        f"```xml title=a.xml\n<summary>{SUMMARY}</summary>\n```",
        f"```markdown\n{SUMMARY}\n```",
        f"```json\n{json.dumps({'summary': SUMMARY})}\n```",
        json.dumps({"summary": SUMMARY}),
        f"<conversation_summary>{SUMMARY}</conversation_summary>",
        f"{SUMMARY}</summary>\nLet me know if you need anything else!",
    ],
)
def test_what_stands_around_the_whole_answer_is_taken_off(answer: str) -> None:
    """Drafts before it, blocks of code, objects with nothing else, tags of longer names."""
    assert strip_tags(answer) == SUMMARY


@pytest.mark.parametrize(
    "summary",
    [
        '{"summary": "a", "open": "b"}',
        '{"summary": 3}',
        '```json\n{"a": "b"}\n```',
        "```markdown\na\n```\ntext\n```\nb\n```",
        "## Goal\nBook it.\n\n## Open\nThe tag `</summary>`\nis missing.",
        "They close it with </summary>\nand go on.",
    ],
)
def test_an_answer_of_more_than_that_is_left_alone(summary: str) -> None:
    """Objects with more in them, several blocks, sections, mentions."""
    assert strip_tags(summary) == summary


@pytest.mark.parametrize("tag", ["<previous_summary>", "</previous_summary>", "<conversation>", "</conversation>"])
def test_tags_of_the_request_are_markup(tag: str) -> None:
    """They head a line; a mention in a sentence is none."""
    assert has_markup(strip_tags(f"{SUMMARY}\n{tag}\nmore"))
    assert not has_markup(f"The prompt opens `{tag}` first.")


pieces = st.sampled_from(
    ["<think>", "</think>", "</thinking>", "<summary>", "</summary>", "\n", "\n\n", " ", "```", "text", "<reasoning>"]
)


@given(st.lists(pieces, max_size=12).map("".join))
def test_what_is_left_is_a_part_of_the_answer(answer: str) -> None:
    """Nothing is added and nothing is moved: tags and what leads the answer go, the rest stays in its order."""
    left = iter(strip_tags(answer).split())
    said = iter(answer.replace("<", " <").replace(">", "> ").split())

    assert all(any(word.replace("<", " <").replace(">", "> ").split()[0] == other for other in said) for word in left)


@given(st.text(st.characters(exclude_characters="<")))
def test_an_answer_without_tags_is_only_trimmed(answer: str) -> None:
    """Plain text is the summary."""
    assert strip_tags(answer) == answer.strip()


@pytest.mark.parametrize(
    "answer",
    [
        "<think></think>" * 70_000,
        "<summary>a" + " " * 1_000_000 + "b",
        "<think>" * 150_000,
        "x\n</think>\n" * 90_000,
        "r\n</think>\n<think>x</think>\n" * 40_000,
        "<summary>" * 110_000 + "x" + "</summary>" * 110_000,
        ("</think>" + " " * 1_000) * 1_000,
        (" " * 1_000 + "\n") * 1_000,
    ],
    ids=range(8),
)
def test_a_megabyte_of_tags_is_stripped_in_no_time(answer: str) -> None:
    """The work grows with the answer, not with its square."""
    began = time.perf_counter()
    strip_tags(answer)
    assert time.perf_counter() - began < 10  # what is quadratic takes hours
