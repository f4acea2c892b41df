"""What a process loads, and when: not before it is needed, and once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest
from pydantic import BaseModel

from compactor import events
from memory import Round
from memory.entries import KINDS

ROOT = Path(__file__).resolve().parents[2]


def run(code: str) -> list[str]:
    """Return the words that *code* prints, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_importing_compiles_none_of_our_patterns() -> None:
    """A program pays for a pattern when it first needs it."""
    code = """
import re, sys
compiled, compile_now = set(), re.compile
def compile_and_tell(*arguments):
    compiled.add(sys._getframe(1).f_globals["__name__"])
    return compile_now(*arguments)
re.compile = compile_and_tell
import compactor
print(*(name for name in compiled if name.partition(".")[0] in ("compactor", "memory", "prompts")))
"""
    assert run(code) == []


@pytest.mark.slow
def test_each_public_name_is_there_from_the_start() -> None:
    """Whether it was imported with the package or is when it is first used; and no other name is."""
    code = """
import compactor
assert set(compactor.__all__) <= set(dir(compactor))
assert not [name for name in compactor.__all__ if not hasattr(compactor, name)]
assert compactor.events  # a module of it
compactor.ZZZ
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == "AttributeError: module 'compactor' has no attribute 'ZZZ'"


@pytest.mark.slow
def test_a_chat_that_gives_no_history_does_not_load_what_compares_it() -> None:
    """``sync`` imports that when it is first called."""
    code = """
import sys
from compactor import Memory, Synced, compose
memory = Memory()
memory.append({"role": "user", "content": "Hello"})
compose(memory, budget=1_000)
loaded = ["memory.sync" in sys.modules]
assert isinstance(memory.sync([{"role": "user", "content": "Hello"}]), Synced)
print(*loaded, "memory.sync" in sys.modules)
"""
    assert run(code) == ["False", "True"]


@pytest.mark.slow
def test_a_compactor_without_work_loads_no_strategy() -> None:
    """What makes and checks summaries is imported when the first compaction is due, and what reads prompts for them."""
    code = """
import sys
from compactor import CompactorConfig, ContextCompactor, Memory
memory = Memory()
with ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=1, retain_recent=1)) as compactor:
    for place in range(3):
        memory.append({"role": "user", "content": "Where is order 48213-QX? " * 50})
        memory.append({"role": "assistant", "content": "On its way. " * 50})
        assert compactor.wait_idle(60)
        names = ("compactor.strategies", "compactor.acceptance", "yaml")
        print(place, *(name.rpartition(".")[2] for name in names if name in sys.modules))
    print("covers", compactor.status().end_index)
"""
    loaded = ("strategies", "acceptance", "yaml")
    assert run(code) == ["0", "1", *loaded, "2", *loaded, "covers", "2"]


@pytest.mark.slow
@pytest.mark.parametrize("model", ["", "gpt-4o"])
def test_after_warming_up_the_first_turn_loads_nothing(model: str) -> None:
    """Neither a module nor an encoding is left for the first user to wait for, in the turn or in the background."""
    code = f"""
import sys
from compactor import ContextCompactor, Memory, OpenAISummarizer, compose, tokens, warm_up
warm_up({model!r})
modules, encodings = set(sys.modules), dict(tokens._encodings.loaded)
memory = Memory()
with ContextCompactor.for_role(memory, "assistant", summarizer=OpenAISummarizer("gpt-5-mini", api_key="none")) as compactor:
    for text in ("Where is order 48213-QX?", "And order 48214-QX?"):
        memory.append({{"role": "user", "content": text}})
        compose(memory, budget=8_000, model={model!r})
        memory.append({{"role": "assistant", "content": "On its way."}})
        compactor.wait_idle(60)
print(*(set(sys.modules) - modules), *(tokens._encodings.loaded.keys() - encodings.keys()), *encodings)
"""
    assert run(code) == ["o200k_base"]


@pytest.mark.slow
def test_first_compactions_at_once_read_the_cues_once() -> None:
    """A new worker begins with as many jobs as it has threads."""
    code = """
import threading, yaml
from compactor import CompactorConfig, ContextCompactor, Memory
reads, again, load = [], threading.Event(), yaml.load
def load_slowly(text, loader):
    if "forbids" in text:
        reads.append(text)
        again.set() if len(reads) > 1 else again.wait(2)
    return load(text, loader)
yaml.load = load_slowly
def compact():
    memory = Memory()
    for _ in range(3):
        memory.append({"role": "user", "content": "Where is order 48213-QX? " * 50})
        memory.append({"role": "assistant", "content": "On its way. " * 50})
    with ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=1, retain_recent=1)) as compactor:
        assert compactor.compact_now(60).end_index == 2
threads = [threading.Thread(target=compact) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(reads))
"""
    assert run(code) == ["1"]


def test_a_worker_is_ready_before_its_first_job() -> None:
    """Another worker may be able to run that job sooner."""
    code = """
import sys
from compactor import open_store
from compactor.workers import Worker
print("compactor.strategies" in sys.modules)
Worker(store=open_store("memory://"))
print("compactor.strategies" in sys.modules)
"""
    assert run(code) == ["False", "True"]


RECORDS = [*KINDS.values(), Round, *(kind for kind in vars(events).values() if isinstance(kind, type(Round)))]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_a_record_is_built_with_the_warnings_of_the_process_left_alone(record: type[BaseModel]) -> None:
    """They are all threads', and the thread that first uses a record builds it."""
    unbuilt = type(record.__name__, (record,), {"__module__": record.__module__})
    with mock.patch.object(warnings, "catch_warnings", pytest.fail):
        unbuilt.model_rebuild()
