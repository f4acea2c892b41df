"""What a process loads, and when: not before it is needed, and once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("model", ["", "gpt-4"])
def test_after_warming_up_the_first_prompt_loads_nothing(model: str) -> None:
    """Neither a module nor an encoding is left for the first user to wait for."""
    code = f"""
import sys
from compactor import Memory, compose, tokens, warm_up
warm_up({model!r})
modules, encodings = set(sys.modules), dict(tokens._encodings.loaded)
memory = Memory()
memory.append({{"role": "user", "content": "Where is order 48213-QX?"}})
compose(memory, budget=8_000, model={model!r})
print(*(set(sys.modules) - modules), *(tokens._encodings.loaded.keys() - encodings.keys()), *encodings)
"""
    assert run(code) == ["cl100k_base" if model else "o200k_base"]
