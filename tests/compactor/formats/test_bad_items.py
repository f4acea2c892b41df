"""Whatever a host gives as items: an error of ours says where and what, or everything comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_histories import MANY, PLENTY, come_back, keep
from test_formats import PAIR
from test_native_items import RARE

from compactor import ContextError, Memory, compose, formats

Item = dict[str, Any]


class Dumped:
    """An object with a ``model_dump`` that gives *value*, or fails."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def model_dump(self, **_: Any) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


def nest(levels: int, *, keyed: bool = False) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value} if keyed else [value]
    return value


BAD: list[Any] = [
    *(None, True, 0, 1.5, float("nan"), 10**5_000, "", " ", "\ud800", "\x00", b"\xff", bytearray(b"x"), [], {}),
    *([[]], [None], [{}], {"": None}, {1: 2}, {(1, 2): 3}, ("a",), {1, 2}, object(), range(3)),
    *(Dumped({"x": {1}}), Dumped(ValueError("secret")), nest(3_000), nest(3_000, keyed=True), nest(150)),
    *({"type": None}, {"type": []}, {"type": "brand_new", "x": {"y": [1]}}, [{"type": "brand_new"}], {"role": ["x"]}),
    *("[" * 100_000, '{"a":' * 100_000, "9" * 5_000),
]


def find_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from find_paths(one, (*path, key))


def change(value: Any, path: tuple[Any, ...], how: str, bad: Any) -> Any:
    """Return a copy of *value* where the place at *path* is dropped, doubled, or *bad*."""
    if not path:
        return bad
    copied, (key, *rest) = value.copy(), path
    if rest or how == "replace":
        copied[key] = change(value[key], tuple(rest), how, bad)
    elif how == "drop":
        del copied[key]
    elif isinstance(copied, list):
        copied.insert(key, copied[key])
    return copied


SOURCES = [(name, items) for name in formats.FORMATS for items in (RARE[name], PAIR[name])]


@MANY
@given(
    st.sampled_from(SOURCES).flatmap(
        lambda source: st.tuples(st.just(source), st.sampled_from(list(find_paths(source[1]))[1:]))
    ),
    st.sampled_from(["replace", "replace", "drop", "double"]),
    st.sampled_from(BAD),
)
def test_an_item_with_a_fault_is_refused_or_goes_out_to_every_provider(
    place: tuple[tuple[str, list[Item]], tuple[Any, ...]], how: str, bad: Any
) -> None:
    """Wrong types at every place, missing keys, doubled items: never a bare traceback."""
    (name, items), path = place
    try:
        memory = Memory.from_messages(formats.to_chat(change(items, path, how, bad), name))
        prompt = compose(memory, budget=PLENTY).messages
    except ContextError:
        return
    for target in formats.FORMATS:
        json.dumps(formats.from_chat(prompt, target))


SAID: dict[str, Any] = {"anthropic": "content", "responses": "content", "chat": "content", "gemini": "parts"}


@pytest.mark.parametrize("name", formats.FORMATS)
@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (1 << 14_000, "is an integer of more than 14,000 bits; give it as a text"),
        ({1}, "is of type set, which is no JSON; convert it to text first"),
        (Dumped(ValueError("secret")), "is of type Dumped, whose model_dump failed; give it as a mapping"),
        ({(1, 2): 3}, "is a mapping with a key that is no text; make texts of its keys"),
    ],
    ids=["integer", "set", "dump", "key"],
)
def test_the_error_names_the_format_the_place_and_the_remedy(name: str, bad: Any, says: str) -> None:
    """The place is that of the item, counted from 1, with the path in it."""
    good = {"role": "user", SAID[name]: [{"type": "text", "text": "Hi"}]}
    with pytest.raises(formats.UnknownFormat) as caught:
        formats.to_chat([good, {"role": "user", SAID[name]: [{"type": "text", "x": [0, bad]}]}], name)
    assert str(caught.value) == f"{name}: item 2.{SAID[name]}[0].x[1] {says}"


def test_whatever_is_deeply_nested_comes_back_or_is_refused() -> None:
    """200 levels of an item; a text may hold any number."""
    for levels in (150, 190):
        called = {"type": "tool_use", "id": "a", "name": "f", "input": {"x": nest(levels)}}
        result = {
            "type": "tool_result",
            "tool_use_id": "a",
            "content": [{"type": "new", "y": nest(levels, keyed=True)}],
        }
        items = [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": [called]},
            {"role": "user", "content": [result]},
        ]
        assert come_back(formats.anthropic, formats.to_chat(items, "anthropic"))["messages"] == items
    with pytest.raises(formats.UnknownFormat, match=r"item 1\.content\[0\]\.x.* nested too deep; give it as a text"):
        formats.to_chat([{"role": "user", "content": [{"type": "new", "x": nest(300)}]}], "anthropic")


@pytest.mark.parametrize("name", formats.FORMATS)
def test_messages_of_another_release_are_refused(name: str) -> None:
    """Their provider would get something else than it gave; every other provider gets the plain form."""
    messages = formats.to_chat(RARE[name], name)
    converted = [message["native"] for message in messages if "native" in message]
    assert converted
    assert all(native["v"] == 1 for native in converted)
    for version in (2, "1.5", None):
        changed = [
            {**one, **({"native": one["native"] | {"v": version}} if "native" in one else {})} for one in messages
        ]
        prompt = compose(keep(changed), budget=PLENTY).messages
        with pytest.raises(formats.UnknownFormat, match=f"native has v {version!r}, this one reads 1. Upgrade "):
            formats.from_chat(prompt, name)
        for other in set(formats.FORMATS) - {name}:
            assert formats.from_chat(prompt, other) == formats.from_chat(
                compose(keep(messages), budget=PLENTY).messages, other
            )


def test_the_error_says_which_format_items_look_like() -> None:
    """Where it can be told."""
    called = {"role": "assistant", "content": None, "tool_calls": []}
    for items, name, other in (
        ([{"role": "model", "parts": [{"text": "Hi"}]}], "anthropic", "gemini"),
        ([{"role": "user", "parts": [{"text": "Hi"}]}], "responses", "gemini"),
        ([{"role": "user", "parts": [{"text": "Hi"}]}], "chat", "gemini"),
        ([{"type": "function_call", "call_id": "a"}], "chat", "responses"),
        ([{"role": "user", "content": [{"type": "tool_result"}]}], "gemini", "anthropic"),
        ([called], "anthropic", "chat"),
    ):
        with pytest.raises(
            formats.UnknownFormat, match=f"looks like {other}: convert it with compactor.formats.{other}"
        ):
            formats.to_chat(items, name)
    with pytest.raises(formats.UnknownFormat) as caught:
        formats.to_chat([{"speaker": "user"}], "gemini")
    assert "looks like" not in str(caught.value)
