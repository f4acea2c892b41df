"""A model on this machine's loopback, in virtual time: what it answers, when, and a log of every request with
what a provider's cache would have had of it. How it is asked is in ``wire``."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from compactor import count_tokens

from .fake_model import FakeModel
from .prefixes import Prefixes, shown
from .virtual_time import Latency, VirtualTime
from .wire import MODEL, Http

__all__ = ["HANG", "MODEL", "Answered", "ModelServer", "Outage"]

#: Virtual seconds after which whatever stands before a model that hangs gives up, with 504; sooner where the client
#: says that it will not wait for so long.
HANG = 60.0


@dataclass(frozen=True)
class Outage:
    """The turns, both inclusive, in which the summarizer fails at once or hangs."""

    first: int
    last: int
    how: Literal["fails", "hangs"]


@dataclass(frozen=True, slots=True)
class Answered:
    """One request, as the log has it."""

    by: Literal["agent", "summarizer"]
    turn: int
    #: Tokens in all, and how many of them the cache had.
    input: int
    cached: int
    output: int
    seconds: float
    status: int = 200
    #: The facts, in whatever words, that a prompt of the agent's had.
    facts: int = 0


class ModelServer:
    """Serves one conversation on a free port while in its ``with`` block."""

    def __init__(
        self,
        *,
        latency: Latency | None = None,
        summary_tokens: int = 400,
        change_words: int = 100,
        agent: str = MODEL,
        values: Mapping[str, str] | None = None,
        outage: Outage | None = None,
    ) -> None:
        self.time = VirtualTime()
        self.model = FakeModel(summary_tokens, change_words)
        self._agent = agent
        self._latency = latency or Latency()
        self._values = tuple((values or {}).values())
        self._outage = outage
        self._prefixes = Prefixes()
        self._lock = threading.Lock()  # guards the model, the prefixes, _turn and _log
        self._turn = 0
        self._log: list[Answered] = []
        #: What went wrong in the server itself, which no adapter is to blame for.
        self.errors: list[BaseException] = []

    def __enter__(self) -> ModelServer:
        self._http = Http(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.time.close()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def log(self) -> list[Answered]:
        """Every request so far, in the order in which they came."""
        with self._lock:
            return list(self._log)

    # -- the driver's door --------------------------------------------------------------------------------------------

    def begin(self, turn: int) -> dict[str, Any]:
        with self._lock:
            self._turn = turn
        self.time.begin()
        return {}

    def end(self) -> dict[str, Any]:
        return asdict(self.time.end())

    def agent(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer the agent's request: count it, and say until when it takes."""
        messages, answer = body["messages"], body["answer"]
        output = count_tokens(shown(answer))
        text = "\n".join(map(shown, messages))
        now = self.time.now
        with self._lock:
            tokens, cached = self._prefixes.taken(self._agent, messages, body.get("tools") or (), now)
            seconds = self._latency.of(tokens, output)
            facts = sum(value in text for value in self._values)
            answered = Answered("agent", self._turn, tokens, cached, output, seconds, facts=facts)
            self._log.append(answered)
        return asdict(answered) | {"now": now, "until": now + seconds}

    # -- the summarizer's ---------------------------------------------------------------------------------------------

    def summarizer(self, body: Mapping[str, Any], patience: float | None) -> tuple[int, dict[str, Any]]:
        """Return status and message, once it is time for them. The client waits no longer than *patience* seconds."""
        with self._lock:
            tokens, cached = self._prefixes.taken(
                str(body.get("model")), body["messages"], body.get("tools") or (), self.time.now
            )
            status, seconds, output, message = 200, 0.0, 0, dict[str, Any]()
            match self._how_it_is():
                case "fails":
                    status, seconds = 500, self._latency.of(0, 0)
                case "hangs":
                    status, seconds = 504, min(HANG, patience or HANG)
                case _:
                    message = self.model.answered(body)
                    output = count_tokens(shown(message))
                    seconds = self._latency.of(tokens, output)
            answered = Answered("summarizer", self._turn, tokens, cached, output, seconds, status)
            self._log.append(answered)
        self.time.wait(seconds)
        usage = {
            "prompt_tokens": tokens,
            "completion_tokens": output,
            "total_tokens": tokens + output,
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return status, {"message": message, "usage": usage}

    def _how_it_is(self) -> str:
        out = self._outage
        return out.how if out is not None and out.first <= self._turn <= out.last else "well"
