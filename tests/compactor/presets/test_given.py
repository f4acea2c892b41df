"""A wrong argument is refused at once, by an error that names it; nothing is lost."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from chats import user
from compressed_memory import run, turns

from compactor import CompactorConfig, ConfigError, ContextCompactor, ContextError, MessageError
from compactor.presets import (
    AutoContextMemory,
    MemoryWithCompress,
    OffloadFiles,
    PromptConfig,
    auto_context,
    context_offload,
    count_words,
    expire_files,
    memory_with_compress,
    offload_context,
    read_archive,
)
from memory import Memory, open_store

WRONG: tuple[Any, ...] = (None, "", "x", -1, 0, 1.5, True, float("nan"), 10**30, [], {}, [None], b"x", object())


def _auto_context(**options: Any) -> object:
    return ContextCompactor.for_role(Memory(), "assistant", **auto_context(**options))


def _memory_with_compress(**options: Any) -> object:
    return ContextCompactor.for_role(Memory(), "assistant", **memory_with_compress(**options))


def _context_offload(**options: Any) -> object:
    given = {"store_dir": "kept", "chat_id": "c"} | options
    return ContextCompactor.for_role(Memory(), "assistant", **context_offload(**given))


def _offload_context(**options: Any) -> object:
    return offload_context(turns(4), **{"max_total_tokens": 100, "keep_recent_count": 0} | options)


def _memory(**options: Any) -> object:
    memory = MemoryWithCompress(**{"max_token": 2_000} | options)
    run(memory.add(turns(4)))
    return run(memory.get_memory())


def _parameters(*functions: Callable[..., Any]) -> list[str]:
    return [name for function in functions for name in inspect.signature(function).parameters]


MADE = [
    *((_auto_context, name) for name in _parameters(auto_context)),
    *((_memory_with_compress, name) for name in _parameters(memory_with_compress)),
    *((_context_offload, name) for name in _parameters(context_offload)),
    *((_offload_context, name) for name in _parameters(offload_context) if name != "messages"),
    *((_memory, name) for name in _parameters(MemoryWithCompress) if name != "elsewhere"),
]
#: How an error names a setting that has another name where it is used.
NAMES = {"model": ("summarizer", "model"), "summarizer": ("summarizer",), "prompt": ("prompt_template_path",)}


@pytest.mark.parametrize(("make", "name"), MADE, ids=lambda one: one if isinstance(one, str) else one.__name__)
def test_a_setting_works_or_is_refused_by_its_name(
    make: Callable[..., object], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any value either works, or one error names the setting."""
    monkeypatch.chdir(tmp_path)
    for value in WRONG:
        try:
            make(**{name: value})
        except (ContextError, TypeError) as error:
            assert any(known in str(error) for known in (name, *NAMES.get(name, ()))), f"{value!r}: {error!r}"  # noqa: PT017


@pytest.mark.parametrize("config", [5, "x", {}, CompactorConfig])
@pytest.mark.parametrize("preset", [auto_context, memory_with_compress, context_offload])
def test_a_configuration_is_no_mapping(preset: Callable[..., object], config: Any) -> None:
    """Settings of another class or in a dict are refused, with the remedy."""
    with pytest.raises(ConfigError, match=r"config: must be a CompactorConfig"):
        preset(config=config)


@pytest.mark.parametrize("prompt", [5, b"text", ["text"], {}])
def test_a_prompt_is_a_text_or_a_template(prompt: Any) -> None:
    """A prompt of another type is refused when the preset is made, whichever of the four it is."""
    for field in fields(PromptConfig):
        with pytest.raises(ConfigError, match=f"custom_prompt.{field.name}: must be a text"):
            auto_context(custom_prompt={field.name: prompt})


@pytest.mark.parametrize("plan", ["Find P-1.", 5, True])
def test_a_plan_is_asked_for_by_a_function(plan: Any) -> None:
    """A plan that was handed over as it stood once would never change."""
    with pytest.raises(TypeError, match="plan: must be a function"):
        AutoContextMemory(Memory(), plan=plan)


@pytest.mark.parametrize("given", [(), ({"msg_threshold": 30}, len), (Memory(), {"msg_threshold": 30}), (None,)])
def test_the_first_argument_is_a_memory_and_the_second_a_role(given: tuple[Any, ...]) -> None:
    """Who hands over a configuration and a model, in the order of the other class, is told how it is done here."""
    with pytest.raises(TypeError, match=r"memory|Memory"):
        AutoContextMemory(*given)


def test_explicit_offloads_have_a_memory_of_their_own() -> None:
    """In the conversation's own log, offloads would be rounds of it."""
    store = open_store("memory://")
    memory = Memory("s", store=store)
    for offloads in (memory, Memory("s", store=store)):
        with pytest.raises(ValueError, match=r"s/offloads"):
            AutoContextMemory(memory, offloads=offloads)
    for wrong in ("folder", store, 5):
        with pytest.raises(TypeError, match="offloads: must be a Memory"):
            AutoContextMemory(memory, offloads=wrong)  # type: ignore[arg-type]
    assert AutoContextMemory(memory, offloads=Memory("s/offloads", store=store)).get_messages() == []


def test_a_compactor_of_another_memory_is_refused() -> None:
    """The shown and the compressed messages are of one conversation."""
    other = ContextCompactor.for_role(Memory(), "assistant", **auto_context())
    with pytest.raises(ValueError, match="another memory"):
        AutoContextMemory(Memory(), compactor=other)
    with pytest.raises(TypeError, match="ContextCompactor"):
        AutoContextMemory(Memory(), compactor=object())  # type: ignore[arg-type]


@pytest.mark.parametrize("ref", [None, 5, "", "forecast", b"r1"])
def test_what_was_never_offloaded_is_an_unknown_reference(ref: Any) -> None:
    """It is a ``KeyError`` for any value, and names the known references."""
    with pytest.raises(KeyError, match="nothing is offloaded under"):
        AutoContextMemory(Memory()).reload(ref)


@pytest.mark.parametrize("messages", [None, 5, {"role": "user", "content": "x"}, "text", [None], [5]])
def test_an_offload_is_a_list_of_messages(messages: Any) -> None:
    """Anything else is refused, and the id stays free."""
    context = AutoContextMemory(Memory())
    with pytest.raises(MessageError):
        context.offload("forecast", messages)
    context.offload("forecast", [user("Rain.")])
    assert context.reload("forecast") == [user("Rain.")]


@pytest.mark.parametrize(
    ("name", "instead"),
    [("formatter", "leave it out"), ("chat_history_storage", "memory="), ("memory_storage", "memory=")],
)
def test_what_the_other_class_takes_is_named_with_what_there_is_instead(name: str, instead: str) -> None:
    """The error for each argument of the original class names its replacement."""
    with pytest.raises(TypeError, match=f"{name}: .*{instead}"):
        MemoryWithCompress(**{name: object()})


def test_the_model_is_not_the_first_argument() -> None:
    """Model, formatter and limit by position: the error names the model's parameter."""
    with pytest.raises(ConfigError, match="summarizer= or model="):
        MemoryWithCompress(lambda request: "text")  # type: ignore[arg-type]


async def _nothing(*_given: object) -> bool:
    return False


@pytest.mark.parametrize(
    "call",
    [
        lambda memory: memory.get_memory(recent_n="3"),
        lambda memory: memory.get_memory(recent_n=1.5),
        lambda memory: memory.get_memory(recent_n=True),
        lambda memory: memory.get_memory(filter_func="user"),
        lambda memory: memory.get_memory(compress_func="x"),
        lambda memory: memory.get_memory(compression_trigger_func=True),
        lambda memory: memory.add(user("a"), compress_func="x"),
        lambda memory: memory.delete(None),
        lambda memory: memory.delete(1.5),
        lambda memory: memory.delete("0"),
        lambda memory: memory.delete(b"0"),
        lambda memory: count_words(len, None),
        lambda memory: count_words(None, 5),
        lambda memory: count_words("x", "text"),
        lambda memory: count_words(lambda text: None, "text"),
        lambda memory: count_words(lambda text: "many", [user("a")]),
        lambda memory: count_words(lambda text: float("nan"), [user("a")]),
        lambda memory: count_words(lambda text: -5, [user("a")]),
    ],
)
def test_a_wrong_argument_of_a_call_changes_nothing(call: Callable[[MemoryWithCompress], Any]) -> None:
    """It is refused by name; the shown messages and the log stay."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))
    with pytest.raises((TypeError, ValueError), match=r"recent_n|_func|indices|token_counter|chat message"):
        run(call(memory))
    assert memory.shown() == memory.history() == turns(2)


@pytest.mark.parametrize("index", [-1, 99])
def test_a_place_that_is_not_shown_has_no_references(index: int) -> None:
    """Places count from 0, here as for ``delete``: the last message is not the one before the first."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))
    with pytest.raises(IndexError, match="no message at"):
        memory.references(index)
    for wrong in (None, "x", True, 1.5):
        with pytest.raises(TypeError, match="whole numbers"):
            memory.references(wrong)  # type: ignore[arg-type]


def test_an_async_filter_is_awaited() -> None:
    """An unawaited answer would be true for every message."""
    memory = MemoryWithCompress()
    run(memory.add(turns(2)))
    assert run(memory.get_memory(filter_func=_nothing)) == []


def test_a_store_that_raises_anything_is_not_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's store may raise anything; its health is then false."""
    memory = MemoryWithCompress()

    def fail(*_given: object, **_named: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(memory.memory, "refresh", fail)
    assert run(memory.memory_storage.health()) is False


# -- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [None, 5, b"kept", ["kept"], "", "a\0b", "a\nb", "a\ud800b"])
def test_a_folder_that_messages_cannot_name_is_refused(path: Any) -> None:
    """A path stands in messages: on one line, in characters that can be sent."""
    with pytest.raises(ConfigError, match="store_dir"):
        OffloadFiles(path)
    if path is not None:
        with pytest.raises(ConfigError, match="store_dir"):
            offload_context([], store_dir=path)
    with pytest.raises(ConfigError, match="store_dir"):
        expire_files(path, timedelta(days=1))


@pytest.mark.parametrize("path", ["Ablage für Müller", "文件", "données/été", "a b"])
def test_a_folder_may_have_any_name_that_people_write(path: str, tmp_path: Path) -> None:
    """A path from a message reads the file."""
    files = OffloadFiles(tmp_path / path, "chat")
    kept = files.write("result", "Füße\n文件")
    assert path in kept
    assert files.read_file(kept).endswith("Füße\n文件")
    assert files.read_file(Path(kept)) == files.read_file(kept)


@pytest.mark.parametrize("wrong", [None, 5, 1.5, [], b"x", {}])
def test_tools_that_are_called_by_a_host_answer_as_they_answer_a_model(wrong: Any, tmp_path: Path) -> None:
    """The answer names the fault; optional arguments may be None."""
    files = OffloadFiles(tmp_path, "chat")
    path = files.write("result", "one\ntwo")
    assert files.grep(wrong).startswith("Error: pattern")
    assert files.read_file(wrong).startswith("Error: path")
    if wrong is None:
        assert files.read_file(path, None, None, None) == files.read_file(path)
        assert files.grep("two", None, None, None) == files.grep("two")
    else:
        assert files.grep("two", path=wrong).startswith("Error: path")
        assert files.grep("two", glob=wrong).startswith("Error: glob")
    with pytest.raises(ContextError):
        files.messages(wrong)
    with pytest.raises(ContextError):
        read_archive(wrong)
    with pytest.raises(TypeError, match="older_than"):
        files.expire(wrong)


def test_a_pattern_that_stands_in_names_of_files_finds_these(tmp_path: Path) -> None:
    """A search for ``compressed_group`` finds the files of that name, as a search of folders would."""
    files = OffloadFiles(tmp_path, "chat")
    name = files.write("compressed_group", "what was said").rpartition("/")[2]
    assert name in files.grep("compressed_group")
    assert name in files.grep("Compressed_Group")
    assert files.grep("said").startswith("[grep: 1 lines")


def test_messages_are_a_list(tmp_path: Path) -> None:
    """A single message, a text or nothing at all is refused before any file is written."""
    for wrong in (None, 5, user("x"), "text"):
        with pytest.raises(MessageError):
            offload_context(wrong, store_dir=tmp_path / "kept")  # type: ignore[arg-type]
    assert not (tmp_path / "kept").exists()
