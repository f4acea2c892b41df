"""sawtooth-memory's SawtoothSyncWrapper, its non-blocking manager for synchronous hosts (sawtooth-memory 0.3.0).

Settings: its defaults for what is in tokens and messages (`soft_limit_tokens=1000`, `hard_limit_tokens=2500`,
`chunk_size=4`), by the factor that makes the hard limit the budget less the system message and tools. Where a turn
takes more than a quarter of the soft limit, as with large results of tools, a chunk stays 4 messages: more, of such a
length, would take along what the agent has yet to answer. The worker's model is a `CloudConfig` that points at the
server. All else is default: chunks are folded without a model (`compression_mode="dte"`), narrated by it within a tenth
of the prompts' tokens, and entities found by its patterns are kept in a ledger.
https://github.com/jackmannx/sawtooth-memory (README and DOCUMENTATION.md)

It keeps a role and a text of each message. Calls of tools are given to it as JSON text and, where its prompt shows the
message, put back as calls; results whose call it has folded are left out, as its adapter for LangGraph does.
litellm is installed for the encodings in its wheel, so that tiktoken need not download them.

Variant `always_llm`: `compression_mode="always_llm"`, where the worker summarises every chunk by the model.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.comparison.adapter import Adapter, Message, Setting

VARIANTS = ("", "always_llm")


def make(setting: Setting) -> Adapter:
    return Sawtooth(setting)


class Sawtooth(Adapter):
    name = "sawtooth-memory"
    background = True

    def __init__(self, setting: Setting) -> None:
        from importlib.metadata import version

        if (litellm := find_spec("litellm")) is not None and litellm.origin is not None:
            folder = Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"
            os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(folder))
        from sawtooth_memory import CloudConfig, ContextManagerConfig, Provider, SawtoothSyncWrapper
        from tiktoken import encoding_for_model

        self.version = version("sawtooth-memory")
        mode = setting.variant or "dte"
        if setting.variant:
            self.name = f"sawtooth-memory, {mode}"
        self.settings = f"limits and chunks by one factor, up to the budget; compression_mode={mode!r}"
        fixed = setting.system + json.dumps(list(setting.tools))
        hard = setting.budget - len(encoding_for_model("gpt-4o").encode(fixed))
        soft = hard * 2 // 5
        long_turns = float(setting.options["round"]) > soft / 4
        config = ContextManagerConfig(
            hard_limit_tokens=hard,
            soft_limit_tokens=soft,
            chunk_size=4 if long_turns else max(4, hard * 4 // 2_500),
            compression_mode=mode,
            cloud=CloudConfig(
                provider=Provider.OPENAI,
                model=setting.model,
                api_key="unused",
                base_url=setting.base_url.removesuffix("/v1"),
            ),
        )
        self._memory = SawtoothSyncWrapper(
            setting.system, config, journal_path=Path(setting.folder or ".") / "journal.jsonl"
        )
        self._memory.__enter__()
        #: By the library's id of a message: the message as it came.
        self._came: dict[str, Message] = {}

    def _add(self, message: Message) -> None:
        content = message.get("content") or ""
        if calls := message.get("tool_calls"):
            content = f"{content}{json.dumps(calls)}"
        self._memory.add_message(message["role"], content)
        working = self._memory.state.l1_working.messages
        if (message.get("tool_calls") or message["role"] == "tool") and working:
            self._came[working[-1].id] = message

    def prompt(self, new: list[Message]) -> list[Message]:
        for message in new:
            self._add(message)
        shown: list[Message] = list(self._memory.build_prompt())
        working = self._memory.state.l1_working.messages
        called: set[str] = set()
        messages = shown[:1]
        for message, one in zip(shown[1:], working, strict=True):
            came = self._came.get(one.id)
            if came is None:
                messages.append(message)
            elif calls := came.get("tool_calls"):
                called.update(call["id"] for call in calls)
                messages.append(came)
            elif came["tool_call_id"] in called:
                messages.append({**message, "tool_call_id": came["tool_call_id"]})
        return messages

    def answered(self, message: Message) -> None:
        self._add(message)

    def _worker(self) -> Any:
        return self._memory._cm._worker

    def wait_idle(self, timeout: float) -> bool:
        queue = self._worker()._queue
        if not queue._unfinished_tasks or not timeout:
            return not queue._unfinished_tasks
        done = self._memory._portal.start_task_soon(queue.join)
        try:
            done.result(timeout)
        except TimeoutError:
            done.cancel()
            return False
        return True

    def kept(self) -> list[str]:
        memory = self._memory._cm
        kept = [message.content for message in self._memory.state.l1_working.messages]
        return kept + list(memory._observation_cache.values())

    def measures(self) -> dict[str, float]:
        stats = self._memory.get_stats()
        return {"failed": stats["worker"]["failed"], "folds": stats["dte"]["fold_cycles"]}

    def close(self) -> None:
        self._memory._portal.call(self._given_up)
        self._memory.__exit__(None, None, None)

    async def _given_up(self) -> None:
        """Let go of the worker: the manager's own end waits until its queue is done."""
        worker = self._worker()
        worker._running = False
        worker._task.cancel()
        while worker._queue._unfinished_tasks:  # who waits for them waits no longer
            worker._queue.task_done()
