"""The fenced blocks of a page, and a place to run them in: no key, no network, a model on loopback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, reply

ROOT = Path(__file__).resolve().parent.parent

#: The page that shows ``planner.yaml``.
PROMPTS = "docs/summarizers.md"

#: What blocks import that a newcomer's environment need not have; `.ci/framework` installs a framework by itself.
FRAMEWORKS = (
    "agent_framework",
    "agents",
    "anthropic",
    "autogen_agentchat",
    "fastapi",
    "google.adk",
    "langchain",
    "llama_index",
    "pydantic_ai",
    "strands",
)

#: What Anthropic's client is answered.
_CLAUDE = {
    "id": "m-1",
    "type": "message",
    "role": "assistant",
    "model": "model-1",
    "content": [{"type": "text", "text": "It is on its way."}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {"input_tokens": 10, "output_tokens": 5},
}

_FENCE = re.compile(r"^```(?P<language>\w+)(?P<info>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    page: str
    line: int
    language: str
    #: What follows the language.
    info: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def framework(self) -> str:
        """The framework that it imports; empty if none."""
        imported = re.findall(r"^(?:from|import) ([\w.]+)", self.text, re.MULTILINE)
        return next((one for one in FRAMEWORKS for name in imported if f"{name}.".startswith(f"{one}.")), "")

    def run(self) -> dict[str, Any]:
        """Run the block as a script is run, and return its names. Its lines are those of the page in a traceback.

        Its client is closed: a script leaves that to its end, but here another test would find the open connection.
        """
        code = compile("\n" * self.line + self.text, str(ROOT / self.page), "exec")
        names: dict[str, Any] = {"__name__": "__main__"}
        try:
            exec(code, names)  # noqa: S102  (our own pages)
        finally:
            close = getattr(names.get("client"), "close", None)
            if close is not None and not iscoroutinefunction(close):
                close()
        return names


def blocks(page: str, *languages: str) -> list[Block]:
    """Return the blocks of a page that are in one of *languages*; all of them where none is named."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"], match["info"].strip(), match["text"])
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


@contextmanager
def reader(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> Iterator[ModelServer]:
    """Be a reader of *page*: in a folder with the files that it shows, with a model on loopback, typing what is *said*."""
    for source, language, name in ((page, "json", "config.json"), (PROMPTS, "yaml", "planner.yaml")):
        for block in blocks(source, language):
            (folder / name).write_text(block.text, encoding="utf-8")
    monkeypatch.chdir(folder)
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    typed = iter([*said, ""])
    monkeypatch.setattr("builtins.input", lambda _prompt="": next(typed))
    with ModelServer() as server, ModelServer("/v1/messages") as claude:
        claude.always(reply(_CLAUDE))
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "none-is-needed-on-loopback")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", claude.base_url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", "none-is-needed-on-loopback")
        yield server
