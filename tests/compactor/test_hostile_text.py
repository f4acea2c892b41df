"""Whatever text comes from outside is read in time that grows with its length, not with its square."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from itertools import cycle, islice, product
from types import SimpleNamespace

import pytest

from compactor import Round, SummarizerError, SummaryRejected, compare
from compactor.acceptance.checks import (
    Source,
    check_summary,
    has_markup,
    is_copied,
    is_cut_off,
    is_in_first_person,
    strip_markup,
)
from compactor.acceptance.prohibitions import UserWords, find_lost, find_missing, find_prohibitions
from compactor.strategies.note_edits import is_edits, parse_edits
from compactor.summarizers.answers import is_remark, is_reply, parse_body, read_answer, strip_fence, strip_tags
from compactor.summarizers.content import (
    Terms,
    find_error,
    find_identifiers,
    find_telling_terms,
    find_unknown,
    names_nothing_new,
    says_nothing,
)
from compactor.summarizers.sentences import keep_letters
from memory import CompactedMessage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Short ones first: what is quadratic shows there, before it takes an hour. Of long ones, that which took longest.
SHORT, LONG, SLOWEST = 30_000, 300_000, 1
#: So many times as long as the yardstick may it take: hundreds of looks at each character. A square is ten thousand.
MARGIN = 400

#: Each is repeated up to the size, between a head and a tail.
HOSTILE = {
    "fence and lines": ("```json\n", "\n", "x"),
    "fences": ("", "```a\n", ""),
    "spaces": ("add", " ", "x"),
    "brackets": ("add [", "]" * 9 + "[", ""),
    "angles": ("", "<", ""),
    "summaries": ("", "<summary>", ""),
    "half tags": ("Here:\n", "<summary a", ">"),
    "analyses": ("<analysis>", "</analysis> ", "<summary>x"),
    "ends": ("", "</think>\n", "\n"),
    "rounds": ("", "<round 1", ""),
    "commas": ("", "1,", "x"),
    "digits": ("", "7", ""),
    "codes": ("", "A1-", "b"),
    "slashes": ("", "/a_", ""),
    "lines": ("", "Item 1 costs 2.\n", ""),
    "quotes": ("", '"', ""),
    "braces": ("", "{", ""),
    "dots": ("", "a.", " error"),
    "never": ("", "never ", ""),
    "Han": ("", "不要", ""),
    "URLs": ("", "http://", ""),
    "addresses": ("", "a@", ""),
    "words with digits": ("", "x1y2 ", ""),
    "sentences": ("", ". then ", ""),
    "clauses": ("", ". having a ", ""),
    "passives": ("", "was ", ""),
    "items": ("", "- ", ""),
    "opening quotes": ("", "“", ""),
    "refusals": ("", "i can't ", ""),
    "greeting": ("Hello", " ", "x"),
}

REQUEST = Round(user_query="Never sell K1234 below 1,200 euros.")


def hostile(name: str, size: int) -> str:
    head, piece, tail = HOSTILE[name]
    return head + piece * (size // len(piece)) + tail


def compaction(text: str) -> CompactedMessage:
    return CompactedMessage(start_index=1, end_index=1, summary=text)


def accepting(text: str) -> None:
    other = "The user asks what K1234 costs. " * 40
    for answer, source in ((text, Source(other, 10**9)), (other, Source(text, 10**9, previous=text[:100_000]))):
        check_summary(answer, source, target_tokens=None, count=len)


#: Each public function that reads text, of the modules that answers and stored summaries go through.
FUNCTIONS: dict[str, Callable[[str], object]] = {
    "accept": accepting,
    "is_cut_off": lambda text: is_cut_off(text, text),
    "strip_markup": strip_markup,
    "has_markup": has_markup,
    "is_copied": lambda text: is_copied(text, text),
    "is_copied all but the end": lambda text: is_copied(text, text[:-1]),
    "find_identifiers": find_identifiers,
    "find_unknown": lambda text: find_unknown(("K1234", "a_b", "1200"), (text,)),
    "find_missing": lambda text: find_missing(Terms(text), Terms(text[1:]), Terms("x"), 1.0),
    "keep_letters": keep_letters,
    "attribute": lambda text: UserWords([REQUEST]).attribute(f"Instructions from the user:\n{text}"),
    "find_lost": lambda text: find_lost(("Never sell it.",), (text,)),
    "find_prohibitions": lambda text: find_prohibitions([REQUEST.model_copy(update={"user_query": text})]),
    "find_error": find_error,
    "says_nothing": lambda text: says_nothing(Terms(text), (Terms(text),), 0),
    "names_nothing_new": lambda text: names_nothing_new(Terms("x"), Terms(text), Terms("y")),
    "find_telling_terms": lambda text: list(find_telling_terms(text)),
    "is_in_first_person": is_in_first_person,
    "compared": lambda text: compare(compaction(text), compaction(text[::-1])),
    "parse_edits": parse_edits,
    "is_edits": is_edits,
    "parse_body": lambda text: parse_body(text.encode()),
    "read_answer": lambda text: read_answer(
        SimpleNamespace(choices=[{"message": {"content": text}, "finish_reason": "stop"}]), None
    ),
    "strip_tags": strip_tags,
    "strip_fence": strip_fence,
    "is_remark": is_remark,
    "is_reply": is_reply,
}


@pytest.fixture(scope="module")
def yardstick() -> float:
    """Seconds that this machine takes for a character of something linear."""
    text = "ab " * 100_000
    began = time.thread_time()
    assert len(re.findall(r"\w+|\W", text)) == 200_000
    return max(time.thread_time() - began, 0.005) / len(text)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_hostile_text_is_read_in_linear_time(function: str, yardstick: float) -> None:
    """A third of a megabyte of what is opened and never closed, of spaces, marks and repetitions; processor time of this thread."""
    took = {name: seconds(function, hostile(name, SHORT)) for name in HOSTILE}
    assert {name: one for name, one in took.items() if one > MARGIN * yardstick * SHORT} == {}
    for name in sorted(HOSTILE, key=lambda name: -took[name])[:SLOWEST]:
        assert seconds(function, hostile(name, LONG)) < MARGIN * yardstick * LONG, name


@pytest.mark.parametrize(
    ("letters", "space"), [("klmnopqrst", " "), ("k", " "), ("甲", "")], ids=["many names", "one name", "Han"]
)
def test_a_long_answer_is_compared_with_a_long_source_in_linear_time(
    letters: str, space: str, yardstick: float
) -> None:
    """Though it names much, and nothing of the source."""
    size, theirs = (SHORT, "abcdefghij") if space else (LONG, "不要可以他们我在有")
    answer = space.join("".join(one).capitalize() for one in islice(cycle(product(letters, repeat=5)), size // 6))
    source = space.join(map("".join, islice(cycle(product(theirs, repeat=5)), LONG // 6)))
    began = time.thread_time()
    says_nothing(Terms(answer), (Terms(source),), 0)
    assert time.thread_time() - began < MARGIN * yardstick * (size + LONG)


def seconds(function: str, text: str) -> float:
    """Return the processor time of this thread that reading *text* takes."""
    began = time.thread_time()
    try:
        FUNCTIONS[function](text)
    except (SummaryRejected, SummarizerError):
        pass
    return time.thread_time() - began


def test_the_answer_that_stopped_a_process_is_read_at_once() -> None:
    """A block of code that never closes, of many lines: each was the beginning of another try."""
    text = "```json\n" + "\n" * 6_400 + "x"
    answer = json.loads(json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]}))
    assert read_answer(answer, None).text.startswith("```json")


def test_what_is_worse_than_linear_is_found(yardstick: float) -> None:
    """The test above can fail."""
    text = "x" * 600
    began = time.thread_time()
    assert re.search(r"x+x+y", text) is None
    assert time.thread_time() - began > MARGIN * yardstick * len(text)
