"""A chat with any OpenAI-compatible endpoint. It never waits for the compaction in the background."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

from memory import Memory, StaleCompaction, StoreError
from memory.events import Event, EventHook
from memory.messages import ASSISTANT, parse

from ..background import ContextCompactor
from ..compose import compose
from ..config import CompactorConfig
from ..errors import BudgetExceeded, CompactionFailed
from ..summarizers.base import SummarizerError
from ..summarizers.model import make_client, make_sendable
from ..summarizers.openai import OpenAISummarizer
from .savings import Messages, describe_event
from .sessions import open_named, show_name
from .terminal import CommandError, ConversationScreen, make_one_line, name_options, render_quantity

HELP = """\
/prompt   show the tokens of the next prompt
/compact  compact now, whether or not it is due
/revert   go back to the previous summary, or to none
/retry    send the last message again
/quit     end the chat; so do Ctrl-D and Ctrl-C"""

StreamAnswer = Callable[[Messages], Generator[str, None, None]]
#: Seconds without a piece of the answer after which the endpoint counts as dead.
_READ_TIMEOUT = 120.0
#: A stream wraps each word in about a hundred bytes.
_MAX_STREAM_BYTES = 200_000_000


def find_endpoint(model: str, base_url: str | None) -> tuple[OpenAISummarizer, StreamAnswer, str]:
    """Return the configured endpoint as a summarizer, as a model that answers, and as an address without its password.

    Options come before the environment. Raises ``CommandError`` if there is no endpoint.
    """
    url = (base_url or os.environ.get("OPENAI_BASE_URL", "")).strip() or None
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if url is None and not key:
        raise CommandError(
            "no endpoint is configured: set OPENAI_API_KEY, or pass --base-url of a server that needs no key, such as"
            " http://localhost:11434/v1"
        )
    try:
        summarizer = OpenAISummarizer(model, base_url=url)  # checks address and key
    except (ValueError, SummarizerError) as error:
        raise CommandError(name_options(str(error))) from None

    @cache
    def get_client() -> Any:
        import openai  # takes half a second: not before the first message

        timeout = openai.Timeout(_READ_TIMEOUT, connect=10.0)
        return make_client(("openai", "OpenAI"), key or "not-needed", url, max_bytes=_MAX_STREAM_BYTES, timeout=timeout)

    return summarizer, partial(stream_answer, get_client, model), summarizer.endpoint


def stream_answer(get_client: Callable[[], Any], model: str, messages: Messages) -> Generator[str, None, None]:
    """Yield the answer to *messages* in pieces. Raises ``SummarizerError`` if it fails or breaks off."""
    try:
        with get_client().chat.completions.create(model=model, messages=make_sendable(messages), stream=True) as answer:
            text = _read_unstreamed(answer.response)
            streamed = (piece.choices[0].delta.content for piece in answer if piece.choices)
            yield from _join_surrogates(piece for piece in (streamed if text is None else [text]) if piece)
    except Exception as error:  # noqa: BLE001  (any error of the client fails this answer only)
        # Without its cause, which may quote the request or the key.
        raise SummarizerError(_explain(error)) from None


def _read_unstreamed(response: Any) -> str | None:
    """Return the whole answer if the server ignored ``stream``, or else None."""
    if not response.headers.get("content-type", "").startswith("application/json"):
        return None
    body = response.read()
    if not body.lstrip().startswith((b"{", b"[")):
        return None
    message = json.loads(body)["choices"][0]["message"]
    return parse({"role": ASSISTANT, "content": message.get("content")}).message


def _join_surrogates(pieces: Iterable[str]) -> Iterator[str]:
    """Yield *pieces*, with a surrogate pair that was cut between two pieces joined, and lone surrogates replaced."""
    decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
    for piece in pieces:
        if text := decoder.decode(piece.encode("utf-16-le", "surrogatepass")):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def _explain(error: Exception) -> str:
    name, status = type(error).__name__, getattr(error, "status_code", None)
    if isinstance(error, SummarizerError):  # from the client itself, such as a body that is too large
        return name_options(str(error))
    if isinstance(status, int):
        remedy = _REDIRECTED if 300 <= status < 400 else _REMEDIES.get(status, "")
        return f"the endpoint answered HTTP {status} ({name}){remedy}"
    if "Timeout" in name:
        return f"the endpoint did not answer in time ({name})"
    if "Connect" in name or "Protocol" in name or name == "ReadError":
        return f"no connection to the endpoint, or it broke off ({name}): check --base-url, and that the server runs"
    return f"the endpoint's answer cannot be read ({name}): check --base-url, which usually ends in /v1"


_REDIRECTED = ": it redirects, and the conversation is not sent there; if it may be, give that address as --base-url"
_REMEDIES = {
    401: ": check the key in OPENAI_API_KEY",
    403: ": the key may not use this model",
    404: ": check --model and --base-url, which usually ends in /v1",
    429: ": too many requests; wait a little",
}


@contextlib.contextmanager
def open_memory(url: str | None, session: str | None) -> Iterator[Memory]:
    """Open *session* in the store at *url*, a new one if needed. Without a store, nothing is kept."""
    if url:
        with open_named(url, create=True) as store:
            yield Memory(session, store=store)
    elif session is not None:
        raise CommandError("--session names a session in a store: pass --store, or set COMPACTOR_STORE")
    else:
        yield Memory()


def add_system_message(memory: Memory, system: str) -> None:
    """Add *system* to a new session. Raises ``CommandError`` for one that began without it."""
    if not system or system in [post.message for post in memory.header]:
        return
    if memory.header or len(memory.conversation.rounds):
        raise CommandError(
            f"session '{show_name(memory.session_id, 80)}' has begun without this system message; leave --system"
            f" out, or give another --session"
        )
    memory.append({"role": "system", "content": system})


def describe_resumed(memory: Memory) -> str:
    """Return a line with the session's name and its present length."""
    text = f"session {show_name(memory.session_id)}"
    rounds, compaction = memory.get_role_rounds(ASSISTANT)
    if not len(rounds):
        return f"{text} is new"
    text = f"{text} goes on after {render_quantity(len(rounds), 'round')}"
    if compaction is not None and compaction.end_index:
        text += f", 1-{compaction.end_index} of these as a summary"
    return text if is_answered(memory) else f"{text}; the last message has no answer, /retry asks for it"


def is_answered(memory: Memory) -> bool:
    """Return whether no user message is waiting for an answer."""
    rounds = memory.conversation.rounds
    if len(rounds) == 0 or rounds[-1].is_hidden:
        return True
    return any(post.send_from == ASSISTANT for post in rounds[-1].post_list)


class Chat:
    """One conversation. ``run()`` reads and answers until its end."""

    def __init__(
        self,
        screen: ConversationScreen,
        memory: Memory,
        config: CompactorConfig,
        budget: int,
        summarizer: OpenAISummarizer | None,
        answer: StreamAnswer,
        hooks: Sequence[EventHook] = (),
    ) -> None:
        self._screen, self._memory, self._stream, self._budget = screen, memory, answer, budget
        self._compose = partial(compose, memory, ASSISTANT, budget=budget, model=config.model)
        self._compactor = ContextCompactor.for_role(memory, ASSISTANT, config, summarizer, on_event=self._note)
        for hook in hooks:
            self._compactor.on_event(hook)

    def run(self) -> None:
        """Read and answer until ``/quit``, the end of input, or an interrupt."""
        self._compactor.start()
        try:
            while (line := self._screen.ask()) is not None and line != "/quit":
                if line.startswith("/"):
                    self._run_command(line)
                elif line and self._append("user", line):
                    self._stream_answer()
        except KeyboardInterrupt:
            self._screen.emit("")
        finally:
            self._compactor.stop(timeout=0.5)

    def _note(self, event: Event) -> None:
        if text := describe_event(event):
            self._screen.note(text)

    def _append(self, role: str, text: str) -> bool:
        """Add a message to the session; if the store fails, say so and return False."""
        try:
            self._memory.append({"role": role, "content": text})
        except StoreError as error:
            again = "say it again" if role == "user" else "/retry asks for the answer again"
            self._screen.complain(f"{make_one_line(str(error))}; the message is not kept, {again}")
            return False
        return True

    def _stream_answer(self) -> None:
        try:
            prompt = self._compose()
        except BudgetExceeded as error:
            # Mark the round as failed: in the prompt, it would block everything after it.
            self._memory.finish_round(self._memory.conversation.rounds[-1], state="failed")
            self._screen.complain(f"{error}; the message is left out")
            return
        pieces: list[str] = []
        try:
            with self._screen.write_answer() as write, contextlib.closing(self._stream(prompt.messages)) as stream:
                for piece in stream:
                    pieces.append(piece)
                    write(piece)
        except SummarizerError as error:
            self._screen.complain(f"{error}; /retry sends the message again")
            return
        if not "".join(pieces).strip():
            self._screen.complain("the endpoint's answer is empty: check --model and --base-url; /retry asks again")
            return
        self._append("assistant", "".join(pieces))

    def _run_command(self, line: str) -> None:
        try:
            match line.split(maxsplit=1)[0].lower():
                case "/help":
                    self._screen.emit(HELP)
                case "/prompt":
                    self._show_prompt()
                case "/compact":
                    if self._compactor.compact_now() is None:
                        self._screen.emit("nothing to compact yet: the newest rounds stay as they are")
                case "/revert":
                    generation = self._compactor.status().generation
                    if self._compactor.get_compaction() is None:
                        self._screen.emit("there is no summary to go back from")
                    else:
                        self._compactor.revert(generation)  # refused if another was published meanwhile
                case "/retry" if is_answered(self._memory):
                    self._screen.emit("nothing waits for an answer")
                case "/retry":
                    self._stream_answer()
                case _:
                    self._screen.emit(f"{make_one_line(line, 40)} is no command; these are:\n{HELP}")
        except (StoreError, BudgetExceeded, CompactionFailed, StaleCompaction) as error:
            self._screen.complain(make_one_line(name_options(str(error))))

    def _show_prompt(self) -> None:
        prompt = self._compose()
        rounds, compaction = self._memory.get_role_rounds(ASSISTANT)
        end = compaction.end_index if compaction else 0
        omitted, error_text = len(prompt.report.omitted_rounds), self._compactor.status().last_error
        self._screen.emit(
            f"{render_quantity(len(rounds), 'round')}: {f'1-{end} as a summary, ' if end else ''}{len(rounds) - end} as"
            f" they were said{f', {omitted} of these left out' if omitted else ''}\n"
            f"{render_quantity(len(prompt.messages), 'message')}, {render_quantity(prompt.tokens, 'token')} of at most"
            f" {self._budget:,}" + (f"\nthe last summary failed: {name_options(error_text)}" if error_text else "")
        )
