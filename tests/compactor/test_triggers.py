"""Triggers say when: each by itself, combined, and with the threshold that explains them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chats import answer, calls, chat, result, user, words
from executors import ManualExecutor
from hypothesis import given
from hypothesis import strategies as st
from views import view_of

from compactor import (
    CompactorConfig,
    ContextCompactor,
    Trigger,
    Verdict,
    View,
    after_rounds,
    compose,
    over_messages,
    over_tokens,
    over_usage,
    when,
)
from compactor.testing import ScriptedSummarizer
from memory import Memory


def always(_view: View) -> bool:
    return True


def never(_view: View) -> bool:
    return False


# -- each by itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rounds", "end", "is_due"), [(3, 0, False), (4, 0, True), (4, 1, False), (9, 5, True), (0, 0, False)]
)
def test_after_rounds_looks_at_the_rounds_behind_the_compaction(rounds: int, end: int, is_due: bool) -> None:
    """More than n visible rounds, the open one included; covered ones do not count."""
    assert after_rounds(3)(view_of(chat(rounds), end)) is is_due


def test_failed_rounds_do_not_count() -> None:
    """What nobody sees need not be compacted."""
    memory = chat(4)
    memory.finish_round(memory.conversation.rounds[1], "failed")

    assert not after_rounds(3)(view_of(memory))


def test_over_messages_counts_the_chat_messages_of_the_tail() -> None:
    """Queries, answers, calls and results, closed rounds and the open one alike."""
    memory = Memory.from_messages([user(), calls("c"), result("c"), answer(), user(), calls("d"), result("d")])

    assert over_messages(6)(view_of(memory))
    assert not over_messages(7)(view_of(memory))
    assert over_messages(2)(view_of(memory, 1))
    assert not over_messages(3)(view_of(memory, 1))


def test_over_tokens_counts_the_whole_prompt() -> None:
    """Header, compaction and tail; the verdict names the threshold that was passed."""
    view = view_of(chat(10), 4, header_tokens=100)

    assert view.tokens > 100
    assert over_tokens(view.tokens - 1).verdict(view) == Verdict(True, view.tokens - 1)
    assert over_tokens(view.tokens).verdict(view) == Verdict(False)


def test_over_tokens_counts_the_tools_of_the_newest_prompt() -> None:
    """They are in every request, like what the system says: in a compactor's view they stand in front."""
    memory, tools = chat(10), [{"type": "function", "function": {"name": "count", "description": words(300)}}]
    bare = compose(memory, budget=8_000).tokens
    config = CompactorConfig(retain_recent=1)
    compactor = ContextCompactor.for_role(
        memory, "assistant", config=config, trigger=over_tokens(bare + 100), executor=(executor := ManualExecutor())
    )
    with compactor:
        executor.run_all()
        assert compactor.get_compaction() is None
        assert compose(memory, budget=8_000, tools=tools).tokens > bare + 300
        memory.append(answer("!"))
        executor.run_all()
        assert compactor.get_compaction() is not None


@pytest.mark.parametrize(("model", "window"), [("", 128_000), ("gpt-4", 8_192), ("no-such-model", 128_000)])
def test_a_share_is_of_the_models_window(model: str, window: int) -> None:
    """A float up to 1.0; 1 as a whole number is one token."""
    view = view_of(chat(1), model=model, header_tokens=window // 2)

    assert over_tokens(0.5).verdict(view) == Verdict(True, window // 2)
    assert not over_tokens(1.0)(view)
    assert over_tokens(1).verdict(view) == Verdict(True, 1)


def test_over_usage_goes_by_what_the_provider_counted() -> None:
    """From the threshold on; by our own count where the provider said nothing since the prompt last changed."""
    memory = chat(3)
    own = view_of(memory).tokens

    assert over_usage(own).verdict(view_of(memory)) == Verdict(True, own)
    assert over_usage(own + 1).verdict(view_of(memory)) == Verdict(False)

    memory.record_usage("assistant", own + 100, counted=own + 100)

    assert over_usage(own + 100).verdict(view_of(memory)) == Verdict(True, own + 100)
    assert not over_usage(own + 101)(view_of(memory))
    assert repr(over_usage(5) | over_usage(6)) == "(over_usage(5) | over_usage(6))"


def test_over_usage_may_hold_longer_than_it_takes_to_begin() -> None:
    """Once a pass has published something; before that, and never above where it begins, it is as without."""
    view = view_of(chat(3))
    within = replace(view, as_composed=False)
    trigger = over_usage(view.tokens + 10, until=view.tokens - 5)
    assert (trigger(view), trigger(within)) == (False, True)
    assert not over_usage(view.tokens + 10, until=view.tokens + 5)(within)
    assert over_usage(view.tokens, until=view.tokens + 50)(within)


@pytest.mark.parametrize("made", [after_rounds, over_messages, over_tokens, over_usage])
@pytest.mark.parametrize("n", [-1, True, "10", None, float("nan"), float("inf"), 1.5, -0.5, 0.0])
def test_nonsense_is_refused_when_the_trigger_is_made(made: Callable[[Any], Trigger], n: object) -> None:
    """Not when it is first looked at, in a thread."""
    with pytest.raises(ValueError, match=r"must be a whole number|share of the window"):
        made(n)


def test_none_at_all_may_be_too_many() -> None:
    """Zero rounds or messages is a condition; zero tokens is none."""
    assert after_rounds(0)(view_of(chat(1)))
    assert over_messages(0)(view_of(chat(1)))
    with pytest.raises(ValueError, match="from 1 on"):
        over_tokens(0)


# -- the host's own ---------------------------------------------------------------------------------------------------


def test_any_callable_will_do() -> None:
    """A function, an object, something truthy; a verdict is taken as it is."""

    class Full:
        def __call__(self, view: View) -> int:
            return view.total

    view = view_of(chat(2))
    assert when(always)(view) is True
    assert when(never)(view) is False
    assert when(Full())(view) is True
    assert when(lambda _view: Verdict(True, 7)).verdict(view) == Verdict(True, 7)
    assert [repr(when(condition)) for condition in (always, Full())] == ["always", "Full"]


def test_a_trigger_is_its_own_condition() -> None:
    """Wrapping it again changes nothing."""
    trigger = after_rounds(3)

    assert when(trigger) is trigger


def test_an_async_condition_is_run_to_its_end() -> None:
    """Hosts that ask a service are not kept out."""

    async def later(view: View) -> bool:
        return view.total > 1

    assert when(later)(view_of(chat(2)))
    assert not when(later)(view_of(chat(1)))


def test_what_cannot_be_called_is_no_trigger() -> None:
    """The error says what would be one."""
    with pytest.raises(TypeError, match="View -> bool, not int"):
        when(10)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        after_rounds(3) | 10  # type: ignore[operator]


def test_what_a_condition_raises_goes_out() -> None:
    """A broken condition is a failed cycle, not a trigger that never holds."""
    with pytest.raises(ZeroDivisionError):
        when(lambda _view: bool(1 / 0))(view_of(chat(1)))


# -- combined ---------------------------------------------------------------------------------------------------------


@given(st.booleans(), st.booleans(), st.booleans())
def test_conditions_combine_as_in_logic(a: bool, b: bool, c: bool) -> None:
    """With ``&`` and ``|``, and plain callables on either side."""
    first, third = when(lambda _view: a), when(lambda _view: c)
    view = view_of(Memory())

    def second(_view: View) -> bool:
        return b

    assert (first | second)(view) is (a or b)
    assert (second | first)(view) is (b or a)
    assert (first & second)(view) is (a and b)
    assert (second & first)(view) is (b and a)
    assert (first & second | third)(view) is ((a and b) or c)
    assert (first & (second | third))(view) is (a and (b or c))


def test_the_second_of_both_is_not_asked_where_the_first_does_not_hold() -> None:
    """A cheap condition guards an expensive one."""
    assert not (when(never) & when(lambda _view: bool(1 / 0)))(view_of(Memory()))


def test_of_either_both_are_asked_so_that_a_mark_is_known() -> None:
    """Where rounds and tokens are both too many, the cut goes by the tokens."""
    view = view_of(chat(5))

    assert (after_rounds(3) | over_tokens(10)).verdict(view) == Verdict(True, 10)
    assert (over_tokens(10) | after_rounds(3)).verdict(view) == Verdict(True, 10)
    assert (after_rounds(3) | over_tokens(10_000)).verdict(view) == Verdict(True)
    assert (after_rounds(9) | over_tokens(10)).verdict(view) == Verdict(True, 10)
    assert (over_tokens(20) | over_tokens(10)).verdict(view) == Verdict(True, 10)


def test_a_mark_counts_only_where_the_whole_holds() -> None:
    """Of conditions that hold together the lowest threshold is theirs; of those that do not, none is."""
    view = view_of(chat(5))

    assert (over_tokens(20) & over_tokens(10)).verdict(view) == Verdict(True, 10)
    assert (after_rounds(3) & over_tokens(10)).verdict(view) == Verdict(True, 10)
    assert (over_tokens(10) & after_rounds(9)).verdict(view) == Verdict(False)
    assert not Verdict(False)


def test_a_trigger_reads_as_it_was_written() -> None:
    """In a log or a debugger it says what it is."""
    assert repr(after_rounds(20) | over_tokens(0.5) & over_messages(9)) == (
        "(after_rounds(20) | (over_tokens(0.5) & over_messages(9)))"
    )


def test_the_default_is_rounds_and_with_a_limit_tokens_too() -> None:
    """More than ``threshold`` rounds, or a prompt over ``token_ratio`` of ``max_tokens``."""
    config = CompactorConfig(threshold=7)
    for asked, rule in (
        (config, "after_rounds(7)"),
        (config.copy_with(max_tokens=1_000, token_ratio=0.5), "(after_rounds(7) | over_tokens(500))"),
        (CompactorConfig(max_tokens=1), "(after_rounds(10) | over_tokens(1))"),
    ):
        compactor = ContextCompactor.for_role(Memory(), "assistant", asked, ScriptedSummarizer())
        assert compactor.describe().startswith(f"Due: {rule}; ")


def test_whether_a_size_is_exceeded_stays_unknown_while_both_are_not_due() -> None:
    """A strategy that is told which sizes are exceeded leaves others alone; of a function of the host nobody knows."""
    view = view_of(chat(1))
    assert (when(never) & over_tokens(1)).verdict(view).exceeds is None
    assert (when(always) & over_messages(9)).verdict(view).exceeds is None
    assert (over_messages(1) & over_tokens(1)).verdict(view).exceeds == {"messages", "tokens"}
