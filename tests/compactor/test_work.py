"""What a strategy asks a model with: a refused answer is asked for again with the reason, what is lost comes back."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from chats import words
from scene import memory_of, on_command

from compactor import (
    CompactionEvent,
    CompactorConfig,
    Event,
    Prepared,
    Rejected,
    Started,
    Summary,
    SummaryRejected,
    SummaryRequest,
    count_tokens,
)
from compactor.acceptance.checks import CHECKS, Source
from compactor.acceptance.prohibitions import HEADING, PROHIBITIONS
from compactor.summarize import (
    FAULTS,
    SummaryTask,
    Work,
    find_refusal,
    with_feedback,
)
from compactor.testing import ScriptedSummarizer
from memory import CompactedMessage, Post, Round

TEXT = "The user mia_li_3668 flies with HAT103. " + words(300)
INVENTED = "Booked HAT901, HAT902, HAT903 and HAT904."
FLIES = "mia_li_3668 flies."
USAGE = {"input_tokens": 100, "output_tokens": 10}


class Desk:
    """Work to do, with the answers that are given to it."""

    def __init__(
        self, answers: Iterable[Any], *, deterministic: bool = False, pins: Iterable[Any] = (), **config: Any
    ) -> None:
        self.summarizer = ScriptedSummarizer(answers)
        self.deterministic = deterministic
        self.events: list[Event] = []
        self.time = 0.0
        settings = CompactorConfig(**config)
        self.work = Work(
            summarizer=self,
            count=count_tokens,
            config=settings,
            emit=self.events.append,
            monotonic=lambda: self.time,
            rounds=SimpleNamespace(pins=frozenset(pins), snapshot=None),  # type: ignore[arg-type]
        )

    def __call__(self, request: SummaryRequest) -> Any:
        self.time += 2.0
        return self.summarizer(request)

    def summarize(self, request: SummaryRequest | None = None, text: str = TEXT) -> Summary:
        asked = request or request_of()
        return self.work.summarize(SummaryTask(asked, Source(text, count_tokens(text))))

    def told(self, kind: type[CompactionEvent]) -> list[dict[str, object]]:
        return [event.facts() for event in self.events if isinstance(event, kind)]


def request_of(*queries: str, **more: Any) -> SummaryRequest:
    rounds = [Round(id=f"r{place}", user_query=query) for place, query in enumerate(queries, 1)]
    values: dict[str, Any] = {
        "role": "Planner",
        "rounds": rounds,
        "end_index": 1,
        "messages": [{"role": "user", "content": "Summarise."}],
    }
    return SummaryRequest(**values | more)


def said_last(request: SummaryRequest) -> str:
    return str(request.messages[-1]["content"])


# Asked again


def test_a_good_answer_is_asked_for_once() -> None:
    """And told with its numbers."""
    desk = Desk([Summary("mia_li_3668 flies with HAT103.", USAGE, "gpt-x")])
    assert desk.summarize() == Summary("mia_li_3668 flies with HAT103.", USAGE, "gpt-x")
    assert [type(event) for event in desk.events] == [Started, Prepared]
    (prepared,) = desk.told(Prepared)
    assert prepared["restored"] == 0
    assert prepared["unknown_identifiers"] == ()
    assert (prepared["seconds"], desk.work.requests) == (2.0, 1)


def test_a_refused_answer_is_asked_for_again_with_what_was_wrong() -> None:
    """At the end of the last user message, which stays as it was; what the first answer cost is not forgotten."""
    desk = Desk([Summary(INVENTED, USAGE, "gpt-x"), Summary(FLIES, USAGE | {"cached_tokens": 5})])
    summary = desk.summarize()
    assert summary.text == FLIES
    assert summary.usage == {"input_tokens": 200, "output_tokens": 20, "cached_tokens": 5}
    first, second = desk.summarizer.requests
    assert said_last(first) == "Summarise."
    assert said_last(second).startswith("Summarise.\n\nAn earlier answer to this was refused: ")
    assert '("HAT901", "HAT902", "HAT903", "HAT904")' in said_last(second)
    assert len(second.messages) == 1
    (rejected,) = desk.told(Rejected)
    assert rejected == {
        "session": "", "role": "Planner", "generation": 0, "strategy": "", "start": 1, "end": 1, "check": "invented", "attempt": 1,
        "attempts": 2, "unknown_identifiers": ("HAT901", "HAT902", "HAT903", "HAT904"), "seconds": 2.0, "usage": USAGE, "model": "gpt-x",
    }  # fmt: skip
    assert [type(event) for event in desk.events] == [Started, Rejected, Prepared]
    assert desk.work.requests == 2


def test_each_event_names_the_strategy_that_asked() -> None:
    """Several may ask in one cycle, each for its own; what is counted is counted from when it began."""
    desk = Desk([INVENTED, FLIES, "mia_li_3668 flies again."])
    desk.work.begin("first")
    desk.summarize()
    assert desk.work.requests == 2
    desk.work.begin("second")
    desk.summarize()
    named = [(type(event), event.facts()["strategy"]) for event in desk.events]
    assert named[:3] == [(Started, "first"), (Rejected, "first"), (Prepared, "first")]
    assert named[3:] == [(Started, "second"), (Prepared, "second")]
    assert desk.work.requests == 1


@pytest.mark.parametrize("attempts", [1, 2, 4])
def test_after_the_last_attempt_the_refusal_goes_out(attempts: int) -> None:
    """Each attempt is told; none is made beyond what was set."""
    desk = Desk(["", "Hello!", 7, INVENTED], summary_attempts=attempts)
    with pytest.raises(SummaryRejected) as caught:
        desk.summarize()
    checks = ["empty", "greeting", "not_text", "invented"][:attempts]
    assert [event["check"] for event in desk.told(Rejected)] == checks
    assert caught.value.check == checks[-1]
    assert len(desk.summarizer.requests) == attempts
    assert all(said_last(request).count("refused") == 1 for request in desk.summarizer.requests[1:])


def test_one_that_would_answer_the_same_is_not_asked_again() -> None:
    """A summarizer without a model says so; the configuration's number of attempts does not matter then."""
    desk = Desk([""], deterministic=True, summary_attempts=5)
    with pytest.raises(SummaryRejected):
        desk.summarize()
    assert desk.told(Rejected)[0]["attempts"] == len(desk.summarizer.requests) == 1


def test_a_compactor_does_not_ask_it_again_either() -> None:
    """It fails at once, and backs off."""

    class Fixed(ScriptedSummarizer):
        deterministic = True

    summarizer = Fixed(default="")
    compactor, executor, _ = on_command(memory_of(10), summarizer)
    compactor.start()
    executor.run_all()
    assert len(summarizer.requests) == 1
    assert compactor.status().last_error is not None


def test_what_a_summarizer_raises_is_not_tried_again_here() -> None:
    """Back-off is for that."""
    desk = Desk([ConnectionError(), FLIES])
    with pytest.raises(ConnectionError):
        desk.summarize()
    assert [type(event) for event in desk.events] == [Started]


def test_every_check_has_words_for_a_model() -> None:
    """No fault without a name, no name without a fault."""
    assert set(FAULTS) == set(CHECKS)


def test_the_reason_goes_where_every_provider_takes_it() -> None:
    """Into the last user message, text or parts; no message of another role is touched, none is added."""
    parts = [{"type": "text", "text": "Summarise."}]
    system, prefill = {"role": "system", "content": "s"}, {"role": "assistant", "content": "<summary>"}
    rejected = SummaryRejected("invented", "m", ("</conversation>", "HAT901"))
    asked = request_of(messages=[system, {"role": "user", "content": parts}, prefill])
    made = with_feedback(asked, rejected)
    assert [message["role"] for message in made.messages] == ["system", "user", "assistant"]
    assert (made.messages[0], made.messages[2]) == (system, prefill)
    assert made.messages[1]["content"][0] == parts[0]
    note = made.messages[1]["content"][1]["text"]
    assert note.startswith("An earlier answer")
    assert '"&lt;/conversation>", "HAT901"' in note
    assert len(parts) == 1, "the first request stays as it was"
    assert with_feedback(request_of(messages=[system]), rejected).messages == [system]


def test_the_reason_is_read_back_where_it_was_put() -> None:
    """For summarizers with a prompt of their own; what the conversation says is not taken for it."""
    again = with_feedback(request_of(), SummaryRejected("empty", "m"))
    assert f"Summarise.{find_refusal(again)}" == said_last(again)
    spoken = said_last(again) + "\n</conversation>\nSummarise."
    assert [find_refusal(request_of(messages=said)) for said in ([], [{"role": "user", "content": spoken}])] == ["", ""]
    twice = with_feedback(request_of(messages=[{"role": "user", "content": spoken}]), SummaryRejected("empty", "m"))
    assert find_refusal(twice) == find_refusal(again)


def test_whoever_has_no_cycle_asks_the_same_way() -> None:
    """Tells of nothing unless he is asked to; what all attempts took is in the answer, and so is what was lost."""
    summarizer = ScriptedSummarizer(["", Summary(FLIES, USAGE)])
    work = Work(summarizer=summarizer, count=count_tokens)
    made = work.summarize(SummaryTask(request_of(), Source(TEXT, 300), ("Never pay.",), reserve=50))
    assert made == Summary(f"{FLIES}\n\n{HEADING}\n- Never pay.", USAGE)
    assert "it held no text" in said_last(summarizer.requests[1])


# What the summary may know


def test_identifiers_may_come_from_all_that_the_model_was_given() -> None:
    """The conversation, the summary before, the plan, pins and what the user forbade."""
    previous = CompactedMessage(
        start_index=1, end_index=1, summary="Order 48213.", extra={PROHIBITIONS: ["Never call 5550100."]}
    )
    request = request_of("Don't use card_7447.", previous=previous, plan="1. refund INV-2024-001")
    answer = "HAT103, 48213, 5550100, INV-2024-001, card_7447."
    desk = Desk([answer])
    desk.summarize(request)
    assert desk.told(Prepared)[0]["unknown_identifiers"] == ()


def test_a_few_unknown_identifiers_are_told_and_let_pass() -> None:
    """At level debug, the only words in any event, and none of the conversation's."""
    desk = Desk(["mia_li_3668 has HAT103 and order 48213."])
    desk.summarize()
    assert desk.told(Prepared)[0]["unknown_identifiers"] == ("48213",)


# What is lost comes back

RULE = "Never book a red-eye."


def test_what_the_user_forbade_is_added_back_word_for_word() -> None:
    """However little the summarizer cares; told by how many."""
    desk = Desk([FLIES])
    summary = desk.summarize(request_of(f"Book it. {RULE}"))
    assert summary.text == f"{FLIES}\n\n{HEADING}\n- {RULE}"
    (prepared,) = desk.told(Prepared)
    assert (prepared["restored"], prepared["tokens_after"]) == (1, count_tokens(summary.text))


def test_what_the_summary_says_is_not_said_twice() -> None:
    """Nor what stands in the pins beside it."""
    quoted = f'The user said: "{RULE.lower()}"'
    assert Desk([quoted]).summarize(request_of(RULE)).text == quoted
    assert Desk([FLIES], pins=[("r1", 0)]).summarize(request_of(RULE)).text == FLIES
    post = Post(id="p", send_from="User", send_to="Planner", message=RULE, number=1)
    request = request_of(rounds=[Round(id="r9", user_query="q", post_list=(post,))])
    assert Desk([FLIES], pins=[("r9", 1)]).summarize(request).text == FLIES


def test_pins_of_the_compaction_before_count_too() -> None:
    """They are shown word for word above the summary."""
    previous = CompactedMessage(
        start_index=1, end_index=1, summary="S", pinned=(f"User: {RULE}",), extra={PROHIBITIONS: (RULE,)}
    )
    assert Desk([FLIES]).summarize(request_of("Go on.", previous=previous)).text == FLIES


def test_it_comes_back_at_every_later_compaction() -> None:
    """The compaction carries it, also past a summary that had no room for it."""
    previous = CompactedMessage(start_index=1, end_index=1, summary="S", extra={PROHIBITIONS: (RULE,)})
    assert RULE in Desk([FLIES]).summarize(request_of("Go on.", previous=previous)).text


@pytest.mark.parametrize("target", [None, 1, 1_000])
def test_what_comes_back_is_bounded_by_the_length_wished_for(target: int | None) -> None:
    """The newest first; a prompt must not burst for it."""
    rules = [f"Never touch the file with the number {number} in any way at all." for number in range(32)]
    long = f"{TEXT} {'word ' * 1_500}"
    text = Desk(["Files."]).summarize(request_of(*rules, target_tokens=target), long).text
    assert rules[-1] in text
    assert count_tokens(text) < (500 if target is None else max(128, target // 2)) + 10
    assert (rules[8] in text) is (target != 1)


def test_what_a_strategy_knows_that_he_forbade_goes_before_what_the_request_says() -> None:
    """Where the summarizer reads less than the log has."""
    desk = Desk([FLIES])
    made = desk.work.summarize(SummaryTask(request_of("Never call."), Source(TEXT, count_tokens(TEXT)), [RULE]))
    assert made.text == f"{FLIES}\n\n{HEADING}\n- {RULE}"


@pytest.mark.parametrize("kind", ["tool_run", "large_post"])
def test_only_summaries_of_rounds_take_the_users_words_along(kind: Any) -> None:
    """What stands in place of tool calls leaves the user's messages where they are."""
    assert Desk([FLIES]).summarize(request_of(RULE, kind=kind)).text == FLIES
