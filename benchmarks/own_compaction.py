"""What the frameworks' own compaction does, beside the adapter: the application of the adapter's tests, with each.

For each framework that is installed, prints rows of a table in Markdown: the characters that the model read, those of
summaries as well; the calls of a summarizing model that turns waited for; whether answers and kept history are those
of the run without any compaction; whether each request has whole pairs of calls and results. The models are scripted.
A turn waited for a call if it had not ended PATIENCE seconds after the call began, on the adapter's side too.

    python -m benchmarks.own_compaction [--turns 25]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from functools import cache, partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from benchmarks.adapters import find_applications
from compactor import SummaryRequest
from compactor.integrations.contract import BUDGET, TIMEOUT, Host, _check_pairs, ask
from compactor.testing import AdapterContract, summarize_by_terms

#: Messages that the framework's own compaction leaves as they are, and what the scripted model says of the others.
RECENT, SUMMARY = 10, "The user asked questions about rows of a table, and got answers."
#: Seconds in which a turn ends if it does not wait for a call.
PATIENCE = 1.0


class Turns:
    """A conversation's turns, and the summarizing model: a call takes until the turn ends, or PATIENCE is over."""

    def __init__(self) -> None:
        #: Calls that turns waited for, and what the agent's model read that ``Host.seen`` does not have.
        self.waited = 0
        self.added: list[str] = []
        self._ended = threading.Event()

    def call(self) -> str:
        if not self._ended.wait(PATIENCE):
            self.waited += 1
        return SUMMARY

    async def acall(self) -> str:
        return await asyncio.to_thread(self.call)

    async def say(self, host: Host, number: int) -> str:
        self._ended.clear()
        try:
            return await host.say("s", ask(number))
        finally:
            self._ended.set()


# Each of these returns what stands in for names in the tests of the adapter; `compaction` is what `make_host` is given.


def langchain(tests: Any, turns: Turns) -> dict[str, Any]:
    from langchain.agents.middleware import SummarizationMiddleware
    from langchain_core.language_models import FakeListChatModel

    class Model(FakeListChatModel):
        def _call(self, *_args: Any, **_options: Any) -> str:
            return turns.call()

    model = Model(responses=[SUMMARY])
    return {"compaction": SummarizationMiddleware(model, trigger=("tokens", BUDGET), keep=("messages", RECENT))}


def openai_compaction(tests: Any, turns: Turns) -> dict[str, Any]:
    """OpenAI's endpoint returns all user messages, then one compaction item."""
    from agents import OpenAIResponsesCompactionSession, SQLiteSession

    class Model(tests.Scripted):  # type: ignore[misc]
        async def get_response(self, *args: Any, **options: Any) -> Any:
            done = await super().get_response(*args, **options)
            done.response_id = "r"
            return done

    async def compact(*, input: list[Any], **_options: Any) -> Any:  # noqa: A002  (OpenAI's name)
        item = {"type": "compaction", "id": "c", "encrypted_content": await turns.acall()}
        return SimpleNamespace(output=[*(one for one in input if one.get("role") == "user"), item], usage=None)

    @cache
    def open_session(name: str) -> Any:
        return OpenAIResponsesCompactionSession(
            name,
            SQLiteSession(name),
            client=SimpleNamespace(responses=SimpleNamespace(compact=compact)),  # type: ignore[arg-type]
            compaction_mode="input",
            should_trigger_compaction=lambda context: _count(tests, context["session_items"]) > BUDGET,
        )

    return {"Scripted": Model, "SQLiteSession": open_session}


def openai_limit(tests: Any, turns: Turns) -> dict[str, Any]:
    from agents import SessionSettings

    return {"RunConfig": partial(tests.RunConfig, session_settings=SessionSettings(limit=RECENT))}


def pydantic_ai(tests: Any, turns: Turns) -> dict[str, Any]:
    """As the documentation summarizes old messages; the newest ones begin with a question, so that pairs stay whole."""
    from pydantic_ai.capabilities import ProcessHistory

    async def answer(_messages: Any, _info: Any) -> Any:
        return tests.ModelResponse(parts=[tests.TextPart(await turns.acall())])

    summarizer = tests.Agent(tests.FunctionModel(answer), instructions="Summarize this conversation.")

    async def summarize_old(messages: list[Any]) -> list[Any]:
        cut = max(0, len(messages) - RECENT)
        while cut and not isinstance(messages[cut].parts[0], tests.UserPromptPart):
            cut -= 1
        if not cut or _count(tests, messages) <= BUDGET:
            return messages
        summary = await summarizer.run(message_history=messages[:cut])
        return [*summary.new_messages(), *messages[cut:]]

    class Messages(tests.Host):  # type: ignore[misc]
        """Gives a run the messages that the last one returned; a stored conversation would have no summary in it."""

        kept: Any = ()

        async def say(self, session: str, text: str) -> str:
            done = await self._agent.run(text, message_history=self.kept, usage_limits=tests.UNLIMITED)
            self.kept = done.all_messages()
            return str(done.output)

        async def list_history(self, session: str) -> Any:
            return self.kept

    return {"compaction": ProcessHistory(summarize_old), "Host": Messages}


def google_adk(tests: Any, turns: Turns) -> dict[str, Any]:
    from google.adk.apps.app import EventsCompactionConfig
    from google.adk.apps.llm_event_summarizer import LlmEventSummarizer

    class Model(tests.Scripted):  # type: ignore[misc]
        async def generate_content_async(self, *_args: Any, **_options: Any) -> Any:
            part = tests.Part(text=await turns.acall())
            yield tests.LlmResponse(content=tests.Content(role="model", parts=[part]))

    summarizer = LlmEventSummarizer(llm=Model(model="scripted", seen=[]))
    config = EventsCompactionConfig(token_threshold=BUDGET, event_retention_size=RECENT, summarizer=summarizer)
    return {"App": partial(tests.App, events_compaction_config=config)}


def strands(tests: Any, turns: Turns) -> dict[str, Any]:
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
            yield {"messageStart": {"role": "assistant"}}
            yield {"contentBlockDelta": {"delta": {"text": await turns.acall()}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}

    make = partial(SummarizingConversationManager, preserve_recent_messages=RECENT, proactive_compression=True)
    return {"NullConversationManager": make, "Scripted": Model}


def agent_framework(tests: Any, turns: Turns) -> dict[str, Any]:
    from agent_framework import ChatResponse, SummarizationStrategy

    class Model(tests.Scripted):  # type: ignore[misc]
        async def _inner_get_response(self, **_options: Any) -> Any:
            return ChatResponse(messages=[tests.Message("assistant", [await turns.acall()])])

    strategy = SummarizationStrategy(client=Model([]), target_count=RECENT)
    return {"Agent": partial(tests.Agent, compaction_strategy=strategy)}


def llama_index(tests: Any, turns: Turns, *, in_blocks: bool) -> dict[str, Any]:
    from llama_index.core.memory import ChatSummaryMemoryBuffer, FactExtractionMemoryBlock, Memory

    class Model(tests.MockFunctionCallingLLM):  # type: ignore[misc]
        def chat(self, *_args: Any, **_options: Any) -> Any:
            return tests.ChatResponse(message=tests.ChatMessage(turns.call(), role="assistant"))

        async def achat(self, *_args: Any, **_options: Any) -> Any:
            fact = f"<facts><fact>{await turns.acall()}</fact></facts>"
            return tests.ChatResponse(message=tests.ChatMessage(fact, role="assistant"))

    class Agents(tests.Scripted):  # type: ignore[misc]
        async def astream_chat_with_tools(self, tools: Any, *, chat_history: Any = None, **options: Any) -> Any:
            said = [str(one.content) for one in chat_history if one.role == "system" and one.content != "Be brief."]
            turns.added.extend(said)
            return await super().astream_chat_with_tools(tools, chat_history=chat_history, **options)

    @cache
    def remember(session: str) -> Any:
        blocks = [FactExtractionMemoryBlock(llm=Model(), max_facts=50, priority=1)]
        limits = {"token_limit": BUDGET, "token_flush_size": BUDGET // 10}  # in proportion, as the defaults are
        return Memory.from_defaults(session, memory_blocks=blocks, **limits)

    summary = partial(ChatSummaryMemoryBuffer.from_defaults, llm=Model(), token_limit=BUDGET)
    return {
        "Scripted": Agents,
        "Plain": (lambda *, chat_store_key, **_: remember(chat_store_key)) if in_blocks else summary,
    }


def autogen(tests: Any, turns: Turns, *, in_tokens: bool) -> dict[str, Any]:
    from autogen_core.model_context import BufferedChatCompletionContext, TokenLimitedChatCompletionContext

    class Model(tests.Scripted):  # type: ignore[misc]
        def count_tokens(self, messages: Any, **_options: Any) -> int:
            return _count(tests, messages)

    limited = partial(TokenLimitedChatCompletionContext, Model([]), token_limit=BUDGET)
    buffered = partial(BufferedChatCompletionContext, RECENT)
    return {"UnboundedChatCompletionContext": limited if in_tokens else buffered}


def anthropic(tests: Any, turns: Turns) -> dict[str, Any]:
    """The SDK's tool runner; Anthropic's endpoint returns one block for the whole conversation."""
    from anthropic import beta_async_tool

    class Runner(tests.Host):  # type: ignore[misc]
        def _answer(self, request: Any) -> Any:
            asked = json.loads(request.content)
            if "compaction" not in asked:
                return super()._answer(request)
            blocks = [{"type": "compaction", "content": turns.call(), "signature": "c2lnbmVk"}]
            usage = {"input_tokens": 1, "output_tokens": 1}
            message = {"id": "m", "type": "message", "role": "assistant", "model": "scripted", "usage": usage}
            return tests.httpx.Response(200, json={**message, "content": blocks, "stop_reason": "compaction"})

        async def _turn(self, session: str, text: str, *, stream: bool) -> str:
            messages = [*self.kept.get(session, []), {"role": "user", "content": text}]
            runner = self._client.beta.messages.tool_runner(
                model="scripted",
                max_tokens=100,
                messages=messages,
                system="Be brief.",
                tools=tools,
                thread=False,
                betas=["compact-2026-09-04"],
            )
            said = ""
            async for message in runner:
                if message.stop_reason == "end_turn":
                    said = message.content[0].text
                    if _count(tests, self.seen[-1]) > BUDGET:
                        runner.compact_before_next_turn()
            self.kept[session] = list(runner._thread.messages)
            return said

    def make_tool(tool: Callable[[int], str]) -> Any:
        @wraps(tool)
        async def run(row: int) -> str:
            return tool(row)

        return beta_async_tool(run)

    tools = [make_tool(tests.contract.look), make_tool(tests.contract.fail)]
    return {"Host": Runner}


Own = Callable[[Any, Turns], dict[str, Any]]
#: For each framework its own compaction.
OWN: dict[str, dict[str, Own]] = {
    "langchain": {"SummarizationMiddleware": langchain},
    "openai-agents": {"OpenAIResponsesCompactionSession": openai_compaction, "SessionSettings(limit)": openai_limit},
    "pydantic-ai-slim": {"ProcessHistory, summarizing": pydantic_ai},
    "google-adk": {"EventsCompactionConfig": google_adk},
    "strands-agents": {"SummarizingConversationManager": strands},
    "agent-framework-core": {"SummarizationStrategy": agent_framework},
    "llama-index-core": {
        "Memory, FactExtractionMemoryBlock": partial(llama_index, in_blocks=True),
        "ChatSummaryMemoryBuffer": partial(llama_index, in_blocks=False),
    },
    "autogen-agentchat": {
        "BufferedChatCompletionContext": partial(autogen, in_tokens=False),
        "TokenLimitedChatCompletionContext": partial(autogen, in_tokens=True),
    },
    "anthropic": {"tool_runner, compact_before_next_turn": anthropic},
}


async def measure(name: str, application: AdapterContract, count: int) -> None:
    tests = sys.modules[type(application).__module__]
    plain, turns = application.make_host(None), Turns()
    answers = [await turns.say(plain, number) for number in range(count)]
    kept = [plain.read_text(one) for one in await plain.list_history("s")]

    async def report(side: str, host: Host, turns: Turns, said: list[str]) -> None:
        history = [host.read_text(one) for one in await host.list_history("s")]
        read = sum(len(host.read_text(message)) for seen in host.seen for message in seen) + sum(map(len, turns.added))
        answered = sum(map(str.__eq__, said, answers))
        is_whole = history == kept
        print(
            f"| {name} | {side} | {read:,} | {turns.waited} | {answered} of {count} |"
            f" {'whole' if is_whole else f'{len(history)} of {len(kept)}'} | {_count_torn(host)} of {len(host.seen)} |",
            flush=True,
        )

    await report("none", plain, turns, answers)
    for own, replace in OWN[name.split(maxsplit=1)[0]].items():
        turns = Turns()
        replaced = replace(tests, turns)
        compaction = replaced.pop("compaction", None)
        with patch.dict(vars(tests), replaced):
            host = application.make_host(compaction)
            await report(own, host, turns, [await turns.say(host, number) for number in range(count)])

    turns = Turns()

    def summarize(request: SummaryRequest) -> str:
        turns.call()
        return summarize_by_terms(request)

    with application.make_compaction(budget=BUDGET, summarizer=summarize) as adapter:
        fit = adapter._fit

        def fit_and_count(*args: Any) -> Any:
            fitted = fit(*args)
            turns.added.append(fitted.added)
            return fitted

        adapter._fit = fit_and_count  # type: ignore[method-assign]
        host, said = application.make_host(adapter), []
        for number in range(count):
            said.append(await turns.say(host, number))
            with adapter.sessions().open("s") as session:
                await asyncio.to_thread(session.compactor.wait_idle, TIMEOUT)
        await report("the adapter", host, turns, said)


def _count(tests: Any, messages: Iterable[Any]) -> int:
    """Return the tokens of *messages*, as LangChain and ADK estimate them."""
    return sum(len(tests.Host.read_text(None, message)) for message in messages) // 4


def _count_torn(host: Host) -> int:
    """Return how many requests have a call without its result, or a result without its call."""
    torn = 0
    for seen in host.seen:
        try:
            _check_pairs(host, seen)
        except AssertionError:
            torn += 1
    return torn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else None)
    parser.add_argument("--turns", type=int, default=25)
    options = parser.parse_args()
    print(
        "| framework | compaction | characters read | calls waited for | answers | history | requests with torn pairs |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, application in find_applications():
        with tempfile.TemporaryDirectory() as folder:
            application._path = Path(folder)
            asyncio.run(measure(name, application, options.turns))


if __name__ == "__main__":
    main()
