"""What a framework's own compaction does, beside the adapter: the application of the adapter's tests, with each.

For each framework that is installed, prints rows of a table in Markdown: the characters that the model read, those of
summaries as well; the model calls beyond the plain run's that a turn waited for; whether answers and kept history are
those of the run without any compaction; whether each request has whole pairs of calls and results. The models are
scripted.

    python -m benchmarks.own_compaction [--turns 25]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.adapters import find_applications
from compactor.integrations.contract import BUDGET, TIMEOUT, AdapterContract, Host, _check_pairs, ask
from compactor.testing import summarize_by_terms

#: Messages that the framework's own compaction leaves as they are, and what its scripted model says of the others.
RECENT, SUMMARY = 10, "The user asked questions about rows of a table, and got answers."


def langchain(application: AdapterContract, tests: Any, asked: list[Any]) -> Host:
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import FakeListChatModel

    class Model(FakeListChatModel):
        def _call(self, *args: Any, **options: Any) -> str:
            asked.append(args)
            return super()._call(*args, **options)

    model = Model(responses=[SUMMARY])
    middleware: Any = SummarizationMiddleware(model, trigger=("tokens", BUDGET), keep=("messages", RECENT))
    return application.make_host(middleware)


def google_adk(application: AdapterContract, tests: Any, asked: list[Any]) -> Host:
    from google.adk.apps.app import EventsCompactionConfig
    from google.adk.apps.llm_event_summarizer import LlmEventSummarizer

    class Model(tests.Scripted):  # type: ignore[misc]
        async def generate_content_async(self, *_args: Any, **_options: Any) -> Any:
            asked.append(_args)
            yield tests.LlmResponse(content=tests.Content(role="model", parts=[tests.Part(text=SUMMARY)]))

    summarizer = LlmEventSummarizer(llm=Model(model="scripted", seen=[]))
    config = EventsCompactionConfig(token_threshold=BUDGET, event_retention_size=RECENT, summarizer=summarizer)
    return _make_with(application, tests, App=partial(tests.App, events_compaction_config=config))


def strands(application: AdapterContract, tests: Any, asked: list[Any]) -> Host:
    from strands.agent.conversation_manager import SummarizingConversationManager

    class Model(tests.Scripted):  # type: ignore[misc]
        def get_config(self) -> Any:
            return {"context_window_limit": BUDGET}

        async def stream(self, *args: Any, **_options: Any) -> Any:
            if len(args) > 2 and args[2] == "Be brief.":
                async for event in super().stream(*args):
                    yield event
                tokens = len(str(args[0])) // 4
                usage = {"inputTokens": tokens, "outputTokens": 0, "totalTokens": tokens}
                yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}
                return
            asked.append(args)
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockDelta": {"delta": {"text": SUMMARY}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    make = partial(SummarizingConversationManager, preserve_recent_messages=RECENT, proactive_compression=True)
    return _make_with(application, tests, NullConversationManager=make, Scripted=Model)


def agent_framework(application: AdapterContract, tests: Any, asked: list[Any]) -> Host:
    from agent_framework import SummarizationStrategy

    class Model(tests.Scripted):  # type: ignore[misc]
        def _reply(self, messages: Any) -> Any:
            asked.append(messages)
            return [tests.Content.from_text(SUMMARY)]

    strategy = SummarizationStrategy(client=Model([]), target_count=RECENT)
    return _make_with(application, tests, Agent=partial(tests.Agent, compaction_strategy=strategy))


def _make_with(application: AdapterContract, tests: Any, **classes: Any) -> Host:
    """Return a plain application, made with *classes* instead of those that its *tests* import."""
    with patch.multiple(tests, **classes):
        host: Any = application.make_host(None)
        if hasattr(host, "_agents"):
            host._agent("s")  # Strands' is made when it is first used
    return host


OWN: dict[str, Callable[[AdapterContract, Any, list[Any]], Host]] = {
    "langchain": langchain,
    "google-adk": google_adk,
    "strands-agents": strands,
    "agent-framework-core": agent_framework,
}


async def measure(name: str, application: AdapterContract, turns: int) -> None:
    tests = sys.modules[type(application).__module__]
    plain = application.make_host(None)
    answers = [await plain.say("s", ask(number)) for number in range(turns)]
    kept = [plain.text_of(one) for one in await plain.history("s")]
    print(f"| {name} | none | {_count(plain):,} | 0 | as it was | as it was | whole |")

    asked: list[Any] = []
    host = OWN[name.split(maxsplit=1)[0]](application, tests, asked)
    said = [await host.say("s", ask(number)) for number in range(turns)]
    await _print(name, "its own", host, 0, len(asked), said == answers, kept)

    added: list[str] = []
    with application.make_compaction(budget=BUDGET, summarizer=summarize_by_terms) as compaction:
        fit = compaction._fit

        def fit_and_count(*args: Any) -> Any:
            fitted = fit(*args)
            added.append(fitted.added)
            return fitted

        compaction._fit = fit_and_count  # type: ignore[method-assign]
        host, said = application.make_host(compaction), []
        for number in range(turns):
            said.append(await host.say("s", ask(number)))
            with compaction.sessions().open("s") as session:
                await asyncio.to_thread(session.compactor.wait_idle, TIMEOUT)
        await _print(name, "the adapter", host, sum(map(len, added)), 0, said == answers, kept)


async def _print(name: str, side: str, host: Host, added: int, waited: int, same: bool, kept: list[str]) -> None:
    history = [host.text_of(one) for one in await host.history("s")]
    try:
        for seen in host.seen:
            _check_pairs(host, seen)
        pairs = "whole"
    except AssertionError:
        pairs = "BROKEN"
    cells = [name, side, f"{_count(host) + added:,}", str(waited), "as it was" if same else "OTHERS"]
    print("|", " | ".join([*cells, "as it was" if history == kept else f"{len(history)} of {len(kept)}", pairs]), "|")


def _count(host: Host) -> int:
    return sum(len(host.text_of(message)) for seen in host.seen for message in seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=25)
    options = parser.parse_args()
    print("| framework | compaction | characters read | calls that turns waited for | answers | history | pairs |")
    print("|---|---|---|---|---|---|---|")
    for name, application in find_applications():
        if name.split(maxsplit=1)[0] in OWN:
            with tempfile.TemporaryDirectory() as folder:
                application._path = Path(folder)
                asyncio.run(measure(name, application, options.turns))


if __name__ == "__main__":
    main()
