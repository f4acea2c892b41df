"""What ``from_chat`` gives has the types that the providers' own clients declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_histories import MANY, anthropic_histories, come_back, gemini_histories, responses_histories
from pydantic import TypeAdapter
from test_formats import squeeze

from compactor.formats import anthropic, gemini, responses

Check = Callable[[dict[str, Any]], None]


def make_anthropic_check() -> Check:
    types = pytest.importorskip("anthropic.types.beta", reason="anthropic is not installed")
    block = TypeAdapter(types.BetaContentBlockParam)

    def check(request: dict[str, Any]) -> None:
        for message in request["messages"]:
            for one in message["content"] if isinstance(message["content"], list) else ():
                block.validate_python(one)

    return check


def make_responses_check() -> Check:
    types = pytest.importorskip("openai.types.responses", reason="openai is not installed")
    item = TypeAdapter(types.ResponseInputItemParam)

    def check(request: dict[str, Any]) -> None:
        for one in request["input"]:
            item.validate_python(one)

    return check


def make_gemini_check() -> Check:
    types = pytest.importorskip("google.genai.types", reason="google-genai is not installed")

    def check(request: dict[str, Any]) -> None:
        for one in request["contents"]:
            types.Content.model_validate(one)

    return check


FORMATS: list[Any] = [
    pytest.param(anthropic_histories(), anthropic, make_anthropic_check, id="anthropic"),
    pytest.param(responses_histories(), responses, make_responses_check, id="responses"),
    pytest.param(gemini_histories(), gemini, make_gemini_check, id="gemini"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("histories", "module", "make_check"), FORMATS)
def test_requests_have_the_types_of_the_providers_clients(
    histories: st.SearchStrategy[Any], module: Any, make_check: Callable[[], Check]
) -> None:
    """All of it, and shortened."""
    check = make_check()

    @settings(MANY, max_examples=10)
    @given(histories, st.floats(0.02, 0.9))
    def run(history: Any, share: float) -> None:
        messages = module.to_chat(history[0])
        check(come_back(module, messages))
        shortened = squeeze(messages, share)
        if shortened is not None:
            check(module.from_chat(shortened))

    run()
