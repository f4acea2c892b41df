"""A chat with any OpenAI-compatible endpoint, in which nothing waits for the compaction that goes on behind it."""

from __future__ import annotations

import codecs
import contextlib
import json
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from memory import Memory, StaleCompaction, StoreError
from memory.events import Event, EventHook
from memory.messages import ASSISTANT, parse

from ..background import ContextCompactor
from ..compose import Prompt, compose
from ..config import CompactorConfig
from ..errors import BudgetExceeded, CompactionFailed
from ..summarizers.base import SummarizerError
from ..summarizers.extractive import ExtractiveSummarizer
from ..summarizers.openai import OpenAISummarizer, make_client, sendable
from .conversation_screen import ConversationScreen
from .resume import answered
from .terminal import CannotRun, counted, in_options, one_line
from .watch import sentence

HELP = """\
/prompt   what the next prompt holds, in tokens
/compact  compact now, whatever is due
/revert   go back to the summary before, or to none
/retry    send the last message again
/quit     end; so do Ctrl-D and Ctrl-C"""

#: Seconds between two pieces of an answer after which the endpoint counts as dead.
_READ_TIMEOUT = 120.0
#: A stream wraps each word in some hundred bytes.
_MAX_STREAM_BYTES = 200_000_000


@dataclass(frozen=True)
class Endpoint:
    """Where the model is. Its text names model and address, and never shows the key."""

    model: str
    #: Without a password that may stand in it.
    address: str
    summarizer: OpenAISummarizer
    client: Callable[[], Any]

    def __str__(self) -> str:
        return f"{self.model} at {self.address}"

    def stream(self, messages: Sequence[Mapping[str, Any]]) -> Generator[str, None, None]:
        """Give the answer to *messages* in pieces. Raises ``SummarizerError`` where there is none, or it breaks off."""
        try:
            with self.client().chat.completions.create(
                model=self.model, messages=sendable(messages), stream=True
            ) as answer:
                whole = _unstreamed(answer.response)
                said = (piece.choices[0].delta.content for piece in answer if piece.choices) if whole is None else whole
                yield from _whole_characters(text for text in said if text)
        except Exception as error:  # noqa: BLE001  (whatever a client raises is the failure of this answer only)
            # Without its cause, whose text may quote the request or the key.
            raise SummarizerError(_explained(error)) from None


def _unstreamed(response: Any) -> list[str] | None:
    """Return the text of a plain completion, where the server has ignored ``stream``; None for a stream."""
    if not response.headers.get("content-type", "").startswith("application/json"):
        return None
    body = response.read()
    if not body.lstrip().startswith((b"{", b"[")):
        return None
    message = json.loads(body)["choices"][0]["message"]
    return [parse({"role": ASSISTANT, "content": message.get("content")}).post.message]


def _whole_characters(pieces: Iterable[str]) -> Iterator[str]:
    """Give *pieces* with the halves of a character that was cut between two joined, and others replaced."""
    decoder = codecs.getincrementaldecoder("utf-16-le")("replace")
    for piece in pieces:
        if text := decoder.decode(piece.encode("utf-16-le", "surrogatepass")):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def endpoint(model: str, base_url: str | None) -> Endpoint:
    """Return the endpoint that options and environment name. Raises ``CannotRun`` where none is configured."""
    url = (base_url or os.environ.get("OPENAI_BASE_URL", "")).strip() or None
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    if url is None and not key:
        raise CannotRun(
            "no endpoint is configured: set OPENAI_API_KEY, or pass --base-url of a server that needs no key, such as"
            " http://localhost:11434/v1"
        )
    try:
        summarizer = OpenAISummarizer(model, base_url=url)  # which checks address and key
    except (ValueError, SummarizerError) as error:
        raise CannotRun(in_options(str(error))) from None
    made: list[Any] = []

    def client() -> Any:
        if not made:
            import openai  # half a second: only once somebody has said something

            timeout = openai.Timeout(_READ_TIMEOUT, connect=10.0)
            made.append(make_client(key or "not-needed", url, most=_MAX_STREAM_BYTES, timeout=timeout))
        return made[0]

    parts = urlsplit(url or "https://api.openai.com/v1")
    address = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    return Endpoint(model, address, summarizer, client)


def _explained(error: Exception) -> str:
    name, status = type(error).__name__, getattr(error, "status_code", None)
    if isinstance(error, SummarizerError):  # from the client itself, such as a body that is too large
        return in_options(str(error))
    if isinstance(status, int):
        return f"the endpoint answered HTTP {status} ({name}){_REMEDIES.get(status, '')}"
    if "Timeout" in name:
        return f"the endpoint did not answer in time ({name})"
    if "Connect" in name or "Protocol" in name or name == "ReadError":
        return f"no connection to the endpoint, or it broke off ({name}): check --base-url, and that the server runs"
    return f"the endpoint's answer cannot be read ({name}): check --base-url, which usually ends in /v1"


_REMEDIES = dict.fromkeys(
    (301, 302, 303, 307, 308),
    ": it redirects to another address, and the conversation is not sent there; if it may be, give that as --base-url",
) | {
    401: ": check the key in OPENAI_API_KEY",
    403: ": the key may not use this model",
    404: ": check --model and --base-url, which usually ends in /v1",
    429: ": too many requests; wait a little",
}


class Chat:
    """One conversation: ``Chat(...).run()`` reads until its end."""

    def __init__(
        self,
        source: Endpoint,
        screen: ConversationScreen,
        config: CompactorConfig,
        budget: int,
        memory: Memory,
        *,
        extractive: bool = False,
        hooks: Sequence[EventHook] = (),
    ) -> None:
        self._source, self._screen, self._budget = source, screen, budget
        self._model = config.model
        self._memory = memory
        summarizer = ExtractiveSummarizer() if extractive else source.summarizer
        self._compactor = ContextCompactor.for_role(self._memory, ASSISTANT, config, summarizer, on_event=self._emit)
        for hook in hooks:
            self._compactor.on_event(hook)
        self._commands: dict[str, Callable[[], None]] = {
            "/help": lambda: self._screen.emit(HELP),
            "/prompt": self._show_prompt,
            "/compact": self._compact,
            "/revert": self._revert,
            "/retry": self._retry,
        }

    def run(self) -> None:
        """Read and answer until ``/quit``, the end of input, or an interrupt."""
        self._compactor.start()
        try:
            while (said := self._screen.ask()) is not None and said != "/quit":
                if said.startswith("/"):
                    self._command(said)
                elif said and self._keep("user", said):
                    self._answer()
        except KeyboardInterrupt:
            self._screen.emit("")
        finally:
            self._compactor.stop(timeout=0.5)

    def _emit(self, event: Event) -> None:
        if text := sentence(event):
            self._screen.note(text)

    # -- answers ------------------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        try:
            prompt = self._prompt()
        except BudgetExceeded as error:
            # Hidden, or it would stand in the way of everything that is said after it.
            self._memory.finish_round(self._memory.conversation.rounds[-1], state="failed")
            self._screen.complain(f"{error}; the message is left out")
            return
        pieces: list[str] = []
        try:
            with self._screen.answer() as write, contextlib.closing(self._source.stream(prompt.messages)) as stream:
                for piece in stream:
                    pieces.append(piece)
                    write(piece)
        except SummarizerError as error:
            self._screen.complain(f"{error}; /retry sends the message again")
            return
        if not "".join(pieces).strip():
            self._screen.complain("the endpoint's answer is empty: check --model and --base-url; /retry asks again")
            return
        self._keep("assistant", "".join(pieces))

    def _keep(self, role: str, text: str) -> bool:
        """Add a message to the session; return False, and say why, where the store does not take it."""
        try:
            self._memory.append({"role": role, "content": text})
        except StoreError as error:
            again = "say it again" if role == "user" else "/retry asks for the answer again"
            self._screen.complain(f"{one_line(str(error))}; the message is not kept, {again}")
            return False
        return True

    def _retry(self) -> None:
        if answered(self._memory):
            self._screen.emit("nothing waits for an answer")
            return
        self._answer()

    def _prompt(self) -> Prompt:
        return compose(self._memory, ASSISTANT, budget=self._budget, model=self._model)

    # -- commands -----------------------------------------------------------------------------------------------------

    def _command(self, said: str) -> None:
        known = self._commands.get(said.split(maxsplit=1)[0].lower())
        if known is None:
            self._screen.emit(f"{one_line(said, 40)} is no command; these are:\n{HELP}")
        else:
            try:
                known()
            except StoreError as error:
                self._screen.complain(one_line(str(error)))

    def _show_prompt(self) -> None:
        try:
            prompt = self._prompt()
        except BudgetExceeded as error:
            self._screen.complain(str(error))
            return
        rounds, compaction = self._memory.get_role_rounds(ASSISTANT)
        end = compaction.end_index if compaction else 0
        left_out = prompt.report.omitted_rounds
        status = self._compactor.status()
        whole, messages = counted(len(rounds), "round"), counted(len(prompt.messages), "message")
        self._screen.emit(
            f"{whole}: {f'1-{end} as a summary, ' if end else ''}{len(rounds) - end} as they were said"
            + (f", {len(left_out)} of these left out" if left_out else "")
            + f"\n{messages}, {counted(prompt.tokens, 'token')} of at most {self._budget:,}"
            + (f"\nthe last summary failed: {in_options(status.last_error)}" if status.last_error else "")
        )

    def _compact(self) -> None:
        try:
            made = self._compactor.compact_now()
        except CompactionFailed as error:
            self._screen.complain(in_options(str(error)))
            return
        if made is None:
            self._screen.emit("nothing to compact yet: the newest rounds stay as they are")

    def _revert(self) -> None:
        shown = self._compactor.status().generation
        if self._compactor.get_compaction() is None:
            self._screen.emit("there is no summary to go back from")
            return
        try:
            self._compactor.revert(shown)
        except StaleCompaction as stale:  # published in the background, or by another process
            self._screen.complain(one_line(str(stale)))
