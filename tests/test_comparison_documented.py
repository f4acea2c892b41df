"""Ours as the documentation's code sets it up, and nothing that a reader would not have."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import compactor
from benchmarks.comparison import documented
from benchmarks.comparison.documented import Section, run
from benchmarks.peers import ours
from compactor import State
from compactor.testing import FakeClock
from memory import Event

URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("variant", sorted(ours.VARIANTS))
def test_a_variant_is_the_block_below_its_heading(variant: str, tmp_path: Path) -> None:
    """It runs up to where the compactor starts, in virtual time; endpoint and key come from outside."""
    section, clock = ours.VARIANTS[variant], FakeClock()
    block = run(section, url=URL, folder=str(tmp_path), clock=clock)
    try:
        assert block.compactor.status().state is State.NEW
        assert block.compactor.role == "assistant"
        assert block.memory.conversation.rounds == []
        assert not {"budget", "system"} & block.composing.keys()
        assert all(f"{name}=" in section.code for name in block.composing)
        if variant != "offline":
            assert f'OpenAISummarizer("{block.compactor.summarizer.model}"' in section.code  # type: ignore[attr-defined]
        clock.advance(3_600)
        block.memory.append({"role": "user", "content": "Hello"})
        assert block.memory.conversation.rounds[0].created_at == clock.now()
    finally:
        block.close()


def test_the_adapter_adds_no_setting_of_its_own() -> None:
    """Prices, triggers, strategies, styles and configurations are the blocks' matter alone."""
    tree = ast.parse(Path(ours.__file__).read_text(encoding="utf-8"))
    taken = {
        (node.module, name.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("compactor", "memory"))
        for name in node.names
    }
    names = {name for module, name in taken if module == "compactor"}
    events = {name for name in names if is_event(getattr(compactor, name))}  # facts that it reads: they set nothing
    assert names - events == {"State", "compose", "count_tokens"}
    assert taken - {("compactor", name) for name in names} == {("compactor.testing", "FakeClock"), ("memory", "Event")}


def is_event(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Event)


def test_tools_that_a_block_gives_its_agent_are_sent_with_every_call(tmp_path: Path) -> None:
    """Their definitions cost tokens as they would cost the reader."""
    block = run(ours.VARIANTS["long_runs"], url=URL, folder=str(tmp_path), clock=FakeClock())
    try:
        assert {tool["function"]["name"] for tool in block.composing["tools"]} >= {"context_reload"}
    finally:
        block.close()


def test_a_heading_without_a_block_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As is a block that starts no compactor: a page that changes does not go unmeasured in silence."""
    with pytest.raises(LookupError, match="No such heading"):
        run(Section("README.md", "No such heading"), url=URL, folder=str(tmp_path), clock=FakeClock())
    monkeypatch.setattr(documented, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text("# Here\n\n```python\nprint()\n```\n", encoding="utf-8")
    with pytest.raises(LookupError, match=r"page\.md below 'Here' starts no compactor"):
        run(Section("page.md", "Here"), url=URL, folder=str(tmp_path), clock=FakeClock())
