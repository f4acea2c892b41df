"""Other providers' formats: equal byte for byte without pressure, valid for the provider under it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_histories import (
    MANY,
    PICTURE,
    PLENTY,
    anthropic_histories,
    come_back,
    gemini_histories,
    keep,
    responses_histories,
)
from provider_rules import check_anthropic, check_gemini, check_responses

from compactor import BudgetExceeded, ContextCompactor, ContextError, ExtractiveSummarizer, Memory, compose, formats
from compactor.formats import anthropic, chat, gemini, responses

Item = dict[str, Any]


@MANY
@given(anthropic_histories())
def test_anthropic_messages_come_back_byte_for_byte(history: tuple[list[Item], Any]) -> None:
    """Thinking, calls, results, pictures, documents, marks for the cache, and the order of keys."""
    messages, system = history
    expected = {**({} if system is None else {"system": system}), "messages": messages}
    check_anthropic(expected)

    assert json.dumps(come_back(anthropic, anthropic.to_chat(messages, system=system))) == json.dumps(expected)


@MANY
@given(responses_histories())
def test_responses_items_come_back_byte_for_byte(history: tuple[list[Item], Any]) -> None:
    """Reasoning, messages, calls and outputs, with their ids, in their order."""
    items, instructions = history
    expected = {**({} if instructions is None else {"instructions": instructions}), "input": items}
    check_responses(expected)

    assert json.dumps(come_back(responses, responses.to_chat(items, instructions=instructions))) == json.dumps(expected)


@MANY
@given(gemini_histories())
def test_gemini_contents_come_back_byte_for_byte(history: tuple[list[Item], Any]) -> None:
    """In either spelling, with ids or without, thought signatures included."""
    contents, system = history
    expected = {**({} if system is None else {"system_instruction": system}), "contents": contents}
    check_gemini(expected)

    assert json.dumps(come_back(gemini, gemini.to_chat(contents, system=system))) == json.dumps(expected)


def squeeze(messages: list[Item], share: float) -> list[Any] | None:
    """Return the prompt of *messages* in that *share* of their tokens; None if not even the shortest prompt fits."""
    memory = keep(messages)
    try:
        return list(compose(memory, budget=max(int(compose(memory, budget=PLENTY).tokens * share), 200)).messages)
    except BudgetExceeded:
        return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("histories", "module", "check"),
    [
        (anthropic_histories(), anthropic, check_anthropic),
        (responses_histories(), responses, check_responses),
        (gemini_histories(), gemini, check_gemini),
    ],
    ids=["anthropic", "responses", "gemini"],
)
def test_a_shortened_prompt_is_valid_for_its_provider(
    histories: st.SearchStrategy[tuple[list[Item], Any]], module: Any, check: Callable[[Mapping[str, Any]], None]
) -> None:
    """Offloaded, cleared, clipped, left out: pairs are whole, the user begins, nothing that was signed is changed."""

    @MANY
    @given(histories, st.floats(0.02, 0.9))
    def run(history: tuple[list[Item], Any], share: float) -> None:
        prompt = squeeze(module.to_chat(history[0]), share)
        if prompt is not None:
            check(module.from_chat(prompt))

    run()


PAIR: dict[str, list[Item]] = {
    "anthropic": [
        {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "LONG", "is_error": True}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I see."}]},
        {"role": "user", "content": "And now?"},
    ],
    "responses": [
        {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call_output", "call_id": "a", "output": "LONG", "id": "out_1"},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "And now?"},
    ],
    "gemini": [
        {"role": "model", "parts": [{"functionCall": {"name": "look", "args": {}}, "thoughtSignature": "c2lnbmVk"}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "look", "response": {"output": "LONG"}}}]},
        {"role": "model", "parts": [{"text": "I see."}]},
        {"role": "user", "parts": [{"text": "And now?"}]},
    ],
    "chat": [
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "LONG"},
        {"role": "assistant", "content": "I see."},
        {"role": "user", "content": "And now?"},
    ],
}


def leaves(value: Any) -> list[str]:
    """Return all texts in *value*."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [leaf for one in inner for leaf in leaves(one)]


@pytest.mark.parametrize("name", formats.FORMATS)
def test_a_shortened_result_is_the_same_item_with_a_shorter_text(name: str) -> None:
    """What stands beside the text stays; the reference in the text reloads the original."""
    text = "The build fails on line 4711 again. " * 600
    asked = (
        [{"role": "user", "parts": [{"text": "Look."}]}] if name == "gemini" else [{"role": "user", "content": "Look."}]
    )
    history = json.loads(json.dumps([*asked, *PAIR[name]]).replace("LONG", text))
    memory = keep(formats.to_chat(history, name))
    request = formats.from_chat(compose(memory, budget=800).messages, name)

    shown = next(leaf for leaf in leaves(request) if "reload r1.p2" in leaf)
    assert len(shown) < 2_000
    restored = json.loads(json.dumps(request).replace(json.dumps(shown), json.dumps(text)))
    assert list(restored.values()) == [history]
    assert memory.reload("r1.p2") == text


@pytest.mark.parametrize("name", formats.FORMATS)
def test_the_format_of_a_history_is_detected(name: str) -> None:
    """A plain message may be of several formats; one with a call is of one. Also of an iterator."""
    assert formats.to_chat(iter(PAIR[name])) == formats.to_chat(PAIR[name], name)
    assert formats.detect(PAIR[name]) == name
    assert formats.detect([{"role": "user", "content": "Look."}]) == "chat"


@pytest.mark.parametrize(
    ("items", "says"),
    [
        ([{"speaker": "user"}], "item 1 is a mapping with neither role nor type"),
        ([{"role": "narrator", "content": "secret"}], "item 1 is a mapping with role 'narrator'"),
        ([3], "of type int"),
        ({"role": "user", "content": "Hi"}, "into a list"),
        (None, "of type NoneType"),
        ([PAIR["gemini"][0], PAIR["anthropic"][0]], "item 1 is of the format gemini, item 2 of anthropic"),
    ],
)
def test_an_unknown_format_is_named(items: Any, says: str) -> None:
    """The error says what it saw, without content, and is one of our tree."""
    with pytest.raises(formats.UnknownFormat, match=says) as caught:
        formats.detect(items)
    assert "secret" not in str(caught.value)
    for name in ("responses", "anthropic", "gemini", "chat"):
        with pytest.raises(formats.UnknownFormat):
            formats.to_chat([{"speaker": "user", "utterance": "secret", "role": "narrator"}], name)
    for name in ("responses", "anthropic", "chat"):
        with pytest.raises(formats.UnknownFormat, match="keys: parts, role"):  # Gemini's: nothing is lost in silence
            formats.to_chat([{"role": "user", "parts": [{"text": "secret"}]}], name)
    with pytest.raises(formats.UnknownFormat, match="there is no format 'xml'; the known ones are chat,"):
        formats.from_chat([], "xml")


@pytest.mark.parametrize("source", formats.FORMATS)
@pytest.mark.parametrize(("target", "check"), [("anthropic", check_anthropic), ("responses", check_responses)])
def test_a_history_goes_on_with_another_provider(source: str, target: str, check: Callable[[Any], None]) -> None:
    """Texts, calls and results are there; nothing of the first provider's own is."""
    asked = (
        [{"role": "user", "parts": [{"text": "Look."}]}]
        if source == "gemini"
        else [{"role": "user", "content": "Look."}]
    )
    again = json.loads(json.dumps([*asked, *PAIR[source]]).replace("LONG", "TWICE").replace('"a"', '"b"'))
    request = come_back(getattr(formats, target), formats.to_chat([*asked, *PAIR[source], *again], source))
    written = json.dumps(request)
    assert {"native", "thoughtSignature"}.isdisjoint(written.split('"'))
    assert written.count("LONG") == written.count("TWICE") == 1
    assert written.index("LONG") < written.index("And now?") < written.index("TWICE")
    if target != source:
        check(request)


def test_pictures_go_over_to_every_format() -> None:
    """In the words of each."""
    said = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PICTURE}}
    messages = anthropic.to_chat([{"role": "user", "content": [said, {"type": "text", "text": "What is this?"}]}])
    url = f"data:image/png;base64,{PICTURE}"

    assert come_back(chat, messages)["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": url}}
    assert come_back(responses, messages)["input"][0]["content"][0] == {"type": "input_image", "image_url": url}
    blob = {"mime_type": "image/png", "data": PICTURE}
    assert come_back(gemini, messages)["contents"][0]["parts"][0] == {"inline_data": blob}
    assert come_back(anthropic, messages)["messages"][0]["content"][0] == said


def test_a_summary_becomes_part_of_the_system_prompt() -> None:
    """After a compaction: for Anthropic and Gemini in the system prompt, for Responses an item."""
    history: list[Item] = []
    for number in range(12):
        history += [
            {"role": "user", "content": f"Question {number}?"},
            {"role": "assistant", "content": f"Answer {number}. " * 20},
        ]
    memory = keep([{"role": "system", "content": "Be brief."}, *history, {"role": "user", "content": "And now?"}])
    with ContextCompactor.for_role(memory, "assistant", summarizer=ExtractiveSummarizer()) as compactor:
        compactor.compact_now()
    prompt = compose(memory, budget=PLENTY).messages

    for module, check in ((anthropic, check_anthropic), (gemini, check_gemini), (responses, check_responses)):
        request = module.from_chat(prompt)
        check(request)
        assert "Be brief." in json.dumps(next(iter(request.values())))
        assert len(list(request.values())[-1]) < len(history)


def test_objects_of_sdks_are_taken() -> None:
    """Whatever has ``model_dump``, also within a mapping."""

    class Block:
        def model_dump(self, **options: Any) -> Item:
            assert options == {"mode": "json", "exclude_none": True}
            return {"type": "text", "text": "Hi"}

    messages = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": [Block()]}]
    assert come_back(anthropic, anthropic.to_chat(messages))["messages"][1]["content"] == [
        {"type": "text", "text": "Hi"}
    ]


KEYS = [
    "role",
    "content",
    "type",
    "text",
    "id",
    "name",
    "parts",
    "native",
    "blocks",
    "as_is",
    "call",
    "but",
    "keys",
    "each",
    "item",
    "result",
    "tool_calls",
    "function_call",
]
VALUES = ["user", "assistant", "model", "text", "tool_use", "tool_result", "message", "function_call", *formats.FORMATS]
ANYTHING = st.recursive(
    st.none() | st.integers(-2, 2) | st.sampled_from(VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)
LEFT = st.fixed_dictionaries(
    {"format": st.sampled_from(formats.FORMATS), "v": st.just(1)}, optional=dict.fromkeys(KEYS[7:], ANYTHING)
)
HOSTILE = st.fixed_dictionaries(
    {"role": st.sampled_from(VALUES[:3])},
    optional={"content": ANYTHING, "parts": ANYTHING, "type": ANYTHING, "native": LEFT, "tool_calls": ANYTHING},
)


@MANY
@given(st.lists(HOSTILE | ANYTHING, max_size=3), st.sampled_from(formats.FORMATS), st.booleans())
def test_whatever_comes_in_is_refused_with_an_error_of_ours_or_goes_out(
    items: list[Any], name: str, converts: bool
) -> None:
    """Also what pretends to be kept by a format."""
    try:
        messages = formats.to_chat(items, name) if converts else items
        prompt = compose(Memory.from_messages(messages), budget=PLENTY).messages
    except ContextError:
        return
    with suppress(formats.UnknownFormat):  # a native without a version
        json.dumps(formats.from_chat(prompt, name))


def test_a_message_of_the_user_that_says_nothing_comes_back() -> None:
    items: list[Item] = [{"role": "user", "content": ""}, {"role": "assistant", "content": "Hello."}]
    assert json.dumps(come_back(responses, responses.to_chat(items))) == json.dumps({"input": items})


@pytest.mark.parametrize("own", ["call_1", "lsh_1"], ids=["by call_id", "by id"])
def test_a_local_shells_output_answers_the_call_that_its_id_names(own: str) -> None:
    """OpenAI's types give it no ``call_id``: no other output may be added for the call."""
    action = {"type": "exec", "command": ["ls"], "env": {}}
    items: list[Item] = [
        {"role": "user", "content": "What is there?"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "call_1", "action": action, "status": "completed"},
        {"type": "local_shell_call_output", "id": own, "output": "a.txt"},
        {"type": "local_shell_call_output", "id": ["odd"], "output": "b.txt"},
        {"role": "user", "content": "And then?"},
    ]
    assert json.dumps(come_back(responses, responses.to_chat(items))) == json.dumps({"input": items})


@pytest.mark.parametrize("item", [{"id": "rs_1"}, {"id": "rs_1", "type": None}])
def test_a_reference_needs_no_type(item: Item) -> None:
    items: list[Item] = [{"role": "user", "content": "q"}, item, {"role": "assistant", "content": "a"}]
    assert json.dumps(come_back(responses, responses.to_chat(items))) == json.dumps({"input": items})


def test_a_program_that_the_provider_runs_comes_back_with_its_output() -> None:
    caller = {"type": "program", "caller_id": "call_1"}
    items: list[Item] = [
        {"role": "user", "content": "How many rows?"},
        {"type": "program", "id": "prog_1", "call_id": "call_1", "code": "count()", "fingerprint": "f"},
        {"type": "function_call", "call_id": "call_2", "name": "count", "arguments": "{}", "caller": caller},
        {"type": "function_call_output", "call_id": "call_2", "output": "7", "caller": caller},
        {"type": "program_output", "id": "po_1", "call_id": "call_1", "result": "7", "status": "completed"},
        {"role": "assistant", "content": "Seven."},
        {"role": "user", "content": "Thanks."},
    ]
    assert json.dumps(come_back(responses, responses.to_chat(items))) == json.dumps({"input": items})


def test_results_come_back_in_the_order_of_keys_that_openai_documents() -> None:
    history: list[Item] = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": "{}"}},
        {"role": "function", "name": "look", "content": "found"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "found"},
    ]  # fmt: skip
    assert json.dumps(come_back(chat, chat.to_chat(history))) == json.dumps({"messages": history})


def test_keys_without_a_value_come_back() -> None:
    """As clients' own objects have them; an empty list of calls is what providers refuse."""
    history: list[Item] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": None}]
    history[1]["function_call"] = None
    assert json.dumps(come_back(chat, chat.to_chat(history))) == json.dumps({"messages": history})
    history[1]["tool_calls"] = []
    assert "tool_calls" not in str(come_back(chat, chat.to_chat(history)))


def test_what_is_no_chat_message_does_not_go_out() -> None:
    """As where a host gives the prompt, or its own objects."""
    for given_ in (
        [3],
        [{"role": "narrator", "content": "Hi"}],
        compose(keep([{"role": "user", "content": "Hi"}]), budget=PLENTY),
    ):
        with pytest.raises(formats.UnknownFormat, match=r"prompt\.messages"):
            formats.from_chat(given_, "anthropic")  # type: ignore[arg-type]
    with pytest.raises(formats.UnknownFormat, match="no JSON"):
        formats.to_chat([{"role": "user", "content": {1, 2}}])
    looped: list[Any] = []
    looped.append(looped)
    with pytest.raises(formats.UnknownFormat, match=r"item 1\.content\[0\].* holds itself"):
        formats.to_chat([{"role": "user", "content": looped}])
