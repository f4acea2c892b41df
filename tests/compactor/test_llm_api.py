"""Other people's model APIs as summarizers."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import SummarizerError, Summary, SummaryRequest
from compactor.summarizers import as_summarizer

REQUEST = SummaryRequest(messages=[{"role": "user", "content": [{"type": "text", "text": "the SECRET-PLAN"}]}])


class Api:
    """What TaskWeaver calls an LLM API: give it an answer, and it keeps what it was asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: Any = None

    def chat_completion(self, messages: list[dict[str, Any]], stream: bool = True, temperature: float = 0) -> Any:
        self.asked = messages
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_a_function_is_a_summarizer_already() -> None:
    """A callable without a ``chat_completion`` comes back as the very object it was."""
    assert as_summarizer(len) is len


def test_a_mock_of_an_api_is_asked_and_not_called() -> None:
    """A ``MagicMock`` can be called, too; what a host tests with it is its ``chat_completion``."""
    api = MagicMock()
    api.chat_completion.return_value = {"role": "assistant", "content": "Booked."}
    assert as_summarizer(api)(REQUEST) == Summary("Booked.")
    api.assert_not_called()
    with pytest.raises(SummarizerError):
        as_summarizer(MagicMock())(REQUEST)  # nobody said what it answers


@pytest.mark.parametrize(
    "answer",
    [
        {"role": "assistant", "content": "Booked."},
        SimpleNamespace(role="assistant", content="Booked."),
        "Booked.",
        "<think>hm</think><summary>Booked.</summary>",
        iter([{"role": "assistant", "content": "Boo"}, {"content": None}, {"role": "assistant", "content": "ked."}]),
        iter(["Boo", "ked."]),
        {"choices": [{"message": {"content": "Booked."}, "finish_reason": "stop"}]},
    ],
    ids=["message", "object", "text", "tags", "pieces of a message", "pieces of text", "chat completion"],
)
def test_every_form_of_answer_is_understood(answer: Any) -> None:
    """A message, an object, text or pieces of them: the summary is their text, and the messages are what was asked."""
    api = Api(answer)
    assert as_summarizer(api)(REQUEST) == Summary("Booked.")
    assert api.asked == REQUEST.messages


def test_the_request_is_not_changed_by_who_is_asked() -> None:
    """Some of these APIs edit the list they are given, and a retry must send what the first try sent."""

    class Editing:
        def chat_completion(self, messages: list[dict[str, Any]]) -> str:
            messages[0]["content"][0]["text"] = "edited"
            messages.clear()
            return "Booked."

    as_summarizer(Editing())(REQUEST)
    assert REQUEST.messages == [{"role": "user", "content": [{"type": "text", "text": "the SECRET-PLAN"}]}]


def _breaks_off() -> Iterator[str]:
    yield "Boo"
    raise RuntimeError("the SECRET-PLAN")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (RuntimeError("the SECRET-PLAN"), r"failed \(RuntimeError\)"),
        (_breaks_off(), r"failed \(RuntimeError\)"),
        (None, "empty answer"),
        ("", "empty answer"),
        (5, "empty answer"),
        ({"role": "assistant", "content": "<think>hm"}, "empty answer"),
        (iter([]), "empty answer"),
        ({"role": "assistant", "content": ["Booked."]}, "list as content"),
        (iter(["Boo", {"content": b"ked"}]), "bytes as content"),
        ({"role": "function", "content": '[{"name": "f"}]'}, "tool call"),
        ({"choices": []}, "no choices"),
    ],
)
def test_every_failure_names_the_remedy_and_shows_no_content(answer: Any, message: str) -> None:
    """Whatever a foreign API does is one kind of error; its own words, which may quote the conversation, are not in it."""
    with pytest.raises(SummarizerError, match=message) as caught:
        as_summarizer(Api(answer))(REQUEST)
    assert "SECRET-PLAN" not in "".join(traceback.format_exception_only(caught.value))


def test_the_cause_of_a_failure_is_kept() -> None:
    """Who must know more finds the API's own exception."""
    cause = RuntimeError("no")
    with pytest.raises(SummarizerError) as caught:
        as_summarizer(Api(cause))(REQUEST)
    assert caught.value.__cause__ is cause


def test_an_interrupt_passes_through() -> None:
    """Ctrl-C is the host's affair, not a failed summary."""

    class Interrupted:
        def chat_completion(self, messages: Any) -> str:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        as_summarizer(Interrupted())(REQUEST)


class Async:
    async def chat_completion(self, messages: Any) -> str:
        return "Booked."


class AsyncCallable:
    async def __call__(self, request: SummaryRequest) -> str:
        return "Booked."


async def async_function(request: SummaryRequest) -> str:
    return "Booked."


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "NoneType is no summarizer.*OpenAISummarizer.*ExtractiveSummarizer"),
        ("gpt-4", "str is no summarizer"),
        (SimpleNamespace(chat_completion="text"), "is no summarizer"),
        (Api, r"Api is a class; make a summarizer of it: Api\(\.\.\.\)"),
    ],
)
def test_what_cannot_summarise_is_refused_with_the_remedy(source: Any, message: str) -> None:
    """The mistake shows where it was made, and the error says what would do."""
    with pytest.raises(TypeError, match=message):
        as_summarizer(source)


@pytest.mark.parametrize("source", [Async(), AsyncCallable(), async_function, partial(async_function)])
def test_each_may_be_asynchronous(source: Any) -> None:
    """Who calls the summarizer waits for the answer, and need not know."""
    answer = as_summarizer(source)(REQUEST)

    assert (answer.text if isinstance(answer, Summary) else answer) == "Booked."


def test_it_says_whom_it_asks() -> None:
    """An event or a log that names the summarizer names the API behind it."""
    assert repr(as_summarizer(Api(""))) == "as_summarizer(Api)"


PIECES = (
    st.none() | st.text() | st.integers() | st.dictionaries(st.sampled_from(["role", "content"]), st.text() | st.none())
)


@given(PIECES | st.lists(PIECES, max_size=4).map(iter))
def test_any_answer_is_a_summary_or_a_summarizer_error(answer: Any) -> None:
    """Nothing that an API can return gets through unchecked, or out as another exception."""
    try:
        summary = as_summarizer(Api(answer))(REQUEST)
    except SummarizerError:
        return
    assert isinstance(summary, Summary)
    assert summary.text.strip()
