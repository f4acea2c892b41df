"""Conversations, a model server and a driver in this process, for the tests of the comparison."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import openai

from benchmarks.comparison.adapter import Message, Setting
from benchmarks.comparison.conversations import Scenario, chat, tools
from benchmarks.comparison.door import Door
from benchmarks.comparison.driver import play
from benchmarks.comparison.facts import told
from benchmarks.comparison.model_server import MODEL, ModelServer
from benchmarks.comparison.playing import Contender, job_of, server_of

LONG = "word " * 600
#: To make them takes a while.
CHAT, TOOLS = cache(chat), cache(tools)


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def client_of(url: str) -> openai.OpenAI:
    """Return one that is made quickly: it knows no certificates."""
    return openai.OpenAI(
        base_url=url, api_key="none", max_retries=0, http_client=openai.DefaultHttpxClient(verify=False)
    )


def setting_of(server: ModelServer) -> Setting:
    return Setting(f"{server.url}/v1", MODEL, 8_000, "", (), 8_000)


def ask(server: ModelServer, messages: list[Message], **more: Any) -> Any:
    with client_of(f"{server.url}/v1") as client:
        return client.chat.completions.create(model=MODEL, messages=messages, **more)  # type: ignore[call-overload]


def texts_of(scenario: Scenario) -> str:
    return "\n".join(message["content"] or "" for turn in scenario.turns for step in turn for message in step["new"])


def small(turns: int = 24) -> Scenario:
    plain = CHAT()
    facts = tuple(fact for fact in plain.facts if told(*fact) in texts_of(replace(plain, turns=plain.turns[:turns])))
    return replace(plain, turns=plain.turns[:turns], budget=3_000, facts=facts, summary_tokens=200)


def through(scenario: Scenario, make: Any, variant: str = "", module: str = "ours") -> tuple[dict[str, Any], Any]:
    """Return what the driver measured and the server's log, both in this process."""
    with server_of(scenario) as server:
        job = job_of(scenario, Contender(module, variant), server.url, "")
        adapter = make(Setting(**job["setting"]))
        door = Door(server.url)
        try:
            return play(adapter, door, job), server.log
        finally:
            door.close()
            adapter.close()
            assert not server.errors
