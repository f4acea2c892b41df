"""What models wrap around a summary is taken off, and never a part of the summary."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.acceptance.checks import has_markup
from compactor.summarizers.answers import strip_tags

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


DRAFT = "The user wants a draft."


@pytest.mark.parametrize(
    "answer",
    [
        f"<summary>{DRAFT}</summary>\nLet me refine that.\n<summary>{SUMMARY}</summary>",
        f"<summary>{DRAFT}</summary> Better: <summary>{SUMMARY}</summary>",
        f"<summary>{DRAFT}</summary>\n\nThis misses the seat.\n\n<SUMMARY lang='en'>\n{SUMMARY}\n</SUMMARY>\n",
        f"<analysis>a</analysis><summary>{DRAFT}</summary><analysis>b</analysis><summary>{SUMMARY}</summary>",
        f"<analysis>\n<summary>{DRAFT}</summary>\n</analysis>\n\n<summary>\n{SUMMARY}\n</summary>",
        f"First try:\n<summary>{DRAFT}</summary>\nSecond try:\n<summary>{SUMMARY}</summary>",
        f"<summary>{DRAFT}\n\n<summary>{SUMMARY}</summary>",
        f"<summary>{SUMMARY}</summary>\nAgain:\n<summary>The user",
        f"<summary>\n<summary>\n{SUMMARY}\n</summary>\n</summary>",
        f"<summary>{DRAFT}</summary>\n<think>Shorter.</think>\n<summary>{SUMMARY}</summary>",
        f"```xml\n<summary>{DRAFT}</summary>\n```\nRefined:\n```xml\n<summary>\n{SUMMARY}\n</summary>\n```",
    ],
)
def test_the_last_whole_block_is_the_answer(answer: str) -> None:
    """What stands before it is a draft, whatever stands between the two."""
    assert strip_tags(answer) == SUMMARY


@pytest.mark.parametrize(
    "remark",
    [
        "I hope this helps!",
        "Let me know if you need anything else.",
        "This summary covers all key points. Would you like it shorter?",
        "*(End of summary.)*",
        "Note: I left out the greetings.",
        "(about 120 words)",
        "Ich hoffe, das hilft!",
        "希望对您有帮助！",
    ],
)
@pytest.mark.parametrize("wrapped", [f"<summary>{SUMMARY}</summary>", f"{SUMMARY}\n</summary>"])
def test_what_is_said_to_the_reader_behind_the_tags_is_taken_off(wrapped: str, remark: str) -> None:
    """Also where the opening tag is missing."""
    assert strip_tags(f"{wrapped}\n\n{remark}") == SUMMARY


@pytest.mark.parametrize("more", ["Also: seat 4A.", "If you see HAT001, it is paid.", "Never book HAT002.", "- Pay."])
def test_what_is_said_of_the_conversation_behind_the_tags_stays(more: str) -> None:
    """It is a part of the answer."""
    assert strip_tags(f"<summary>{SUMMARY}</summary>\n{more}").split() == f"{SUMMARY} {more}".split()


@pytest.mark.parametrize(
    "summary",
    [
        "The parser joins <summary> and </summary> wrongly.",
        "The tag </summary> is missing.",
        "It lacks the second <summary> tag.",
        "The page reads:\n```html\n<summary>\nx\n</summary>\n```\nThe user wants it shorter.",
        "The tags are `<summary>` and `</summary>`.",
        "Pairs of <summary>x</summary> and <summary>y</summary> confuse it.",
    ],
)
def test_a_summary_in_tags_may_speak_of_them(summary: str) -> None:
    """In a sentence, in quotes, in code: it stays whole, and in tags and without."""
    assert strip_tags(f"<summary>{summary}</summary>") == summary
    assert strip_tags(f"<summary>\n{summary}\n</summary>\n\nI hope this helps!") == summary
    assert strip_tags(summary) == summary


@pytest.mark.parametrize(
    "answer",
    [
        f"Let me think. {'The user wants a seat. ' * 40}\n\n<summary>\n{SUMMARY}\n</summary>",
        f"<analysis>\nThe goal first.\n</analysis>\n\n{SUMMARY}",
        f"<scratchpad>The goal first.</scratchpad>\n{SUMMARY}",
        f"<ANALYSIS>a</ANALYSIS>\n<Summary>{SUMMARY}</sUmmary>",
        f"Here is the summary:\n<summary>\n{SUMMARY}",
        f"<analysis>a</analysis>\n<summary>\n{SUMMARY}",
        f"<answer>\n<summary>{SUMMARY}</summary>\n</answer>",
        f"<summary><output>{SUMMARY}</output></summary>",
        json.dumps({"summary": f"<summary>{SUMMARY}</summary>"}),
    ],
)
def test_thoughts_of_any_name_and_layers_of_tags_are_taken_off(answer: str) -> None:
    """However long the thoughts are; and where the closing tag is missing."""
    assert strip_tags(answer) == SUMMARY


OWN_TAGS = [
    "<previous_summary>\nmore\n</previous_summary>",
    "<conversation>",
    "</conversation>",
    '<round 3 User part="yes">',
    "<message CodeInterpreter>",
    "<message User>Pay.</message>",
    f"<message {'CodeInterpreter' * 20}>",
    'They said <message User to="Planner">: pay.',
    '<message from="Data analyst">',
    "<plan>\n1. Pay.\n</plan>",
    "<plan>1. Pay.</plan>",
    "<PLAN>\n1. Pay.\n</PLAN>",
    "<message>Pay.</message>",
    '<Tool_Result id="c1">Paid.</Tool_Result>',
    "  <round>\nPay.\n  </round>",
    "</tool_call>",
]


@pytest.mark.parametrize("tags", OWN_TAGS)
def test_tags_of_the_request_are_markup(tags: str) -> None:
    """They head a line and end there or later, or have the attributes that ours have."""
    assert has_markup(strip_tags(f"{SUMMARY}\n{tags}"))
    assert has_markup(strip_tags(f"<summary>{tags}\n{SUMMARY}</summary>"))
    assert has_markup(strip_tags(f"```\n{tags}\n{SUMMARY}\n```"))


@pytest.mark.parametrize("tags", OWN_TAGS)
def test_tags_of_the_request_may_be_quoted(tags: str) -> None:
    """In code; and without their attributes in a sentence."""
    assert not has_markup(f"{SUMMARY}\n```xml\n{tags}\n```\nis what the template has.")
    assert not has_markup(f"The prompt opens `{tags.splitlines()[0]}` first.\n{SUMMARY}")


def test_tags_in_a_sentence_are_no_markup() -> None:
    """A summary may be about prompts."""
    for said in ("The template lacks <message> and <conversation>.", "<plan> has no end in it.", "- <round> elements."):
        assert not has_markup(said)


pieces = st.sampled_from(
    ["<think>", "</think>", "</thinking>", "<summary>", "</summary>", "\n", "\n\n", " ", "```", "text", "<reasoning>"]
)


@given(st.lists(pieces, max_size=12).map("".join))
def test_what_is_left_is_a_part_of_the_answer(answer: str) -> None:
    """Nothing is added and nothing is moved: tags and what leads the answer go, the rest stays in its order."""
    left = iter(strip_tags(answer).split())
    said = iter(answer.replace("<", " <").replace(">", "> ").split())

    assert all(any(word.replace("<", " <").replace(">", "> ").split()[0] == other for other in said) for word in left)


@given(st.lists(pieces, max_size=12).map("".join))
def test_what_is_taken_off_once_is_off(answer: str) -> None:
    """An answer is read more than once on its way to what is shown."""
    assert strip_tags(strip_tags(answer)) == strip_tags(answer)


@given(st.text(st.characters(exclude_characters="<")))
def test_an_answer_without_tags_is_only_trimmed(answer: str) -> None:
    """Plain text is the summary."""
    assert strip_tags(answer) == answer.strip()


@pytest.mark.slow
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
    began = time.thread_time()
    strip_tags(answer)
    assert time.thread_time() - began < 10  # what is quadratic takes hours
