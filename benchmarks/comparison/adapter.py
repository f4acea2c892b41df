"""What a library must do to be compared: take in a conversation, and give the prompt of every call of the agent.

An adapter is `benchmarks/peers/NAME.py` with `make(setting) -> Adapter`. It runs in an environment of its own
(`NAME.txt` beside it pins what is installed there), so this module and the driver need the standard library alone.

A turn, as the driver plays it:

    messages = adapter.prompt([{"role": "user", "content": "..."}])     # timed: this is what the chat loop waits for
    ...the driver asks the model server as the agent, with these messages...
    adapter.billed(6_200, 5_760)                                        # what the provider says of that call
    adapter.answered({"role": "assistant", "content": "...", "tool_calls": [...]})                  # timed likewise
    messages = adapter.prompt([{"role": "tool", "tool_call_id": "...", "content": "..."}, ...])     # if it called any

What summarises asks `setting.base_url` (OpenAI's chat completions, also streamed) as the model `setting.model`.
Time is virtual there. While a *blocking* adapter is inside `prompt` or `answered`, its requests are answered at once,
and what they would have taken is added to its time. A *background* adapter's are answered when the conversation, in
virtual time, has gone on for as long; should it wait for one inside `prompt` or `answered` all the same, the server
notices, answers, and adds what was left to its time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]
"""An OpenAI chat message, as it goes over the wire."""


@dataclass(frozen=True)
class Setting:
    """What every adapter is given alike in one scenario. How it cuts, and when, is its own documented default."""

    #: Of the server, with `/v1` at its end. Any API key is accepted.
    base_url: str
    #: The name that the summarizer's requests carry.
    model: str
    #: Tokens (o200k_base, tools and system message included) that no prompt should pass.
    budget: int
    #: The system message. `prompt` returns it first.
    system: str
    #: OpenAI tool definitions that the agent's calls carry; the driver sends them, they are counted in the budget.
    tools: Sequence[Mapping[str, Any]]
    #: The agent's model's context window, in tokens; the budget is at most this.
    window: int
    #: A summary's length in tokens: what the server's summaries have, for libraries that must be told.
    summary_tokens: int = 400
    #: An empty folder of this run's own, for what is kept on disk.
    folder: str = ""
    #: Which variant of one file's adapters; empty for most.
    variant: str = ""
    #: What else a control or a variant takes.
    options: Mapping[str, Any] = field(default_factory=dict)


class Adapter(ABC):
    """One library holding one conversation. Subclasses fill in `prompt`, `answered` and `kept`."""

    #: As the tables show it.
    name: str = ""
    #: Of the library that was measured, such as "1.2.3".
    version: str = ""
    #: Whether its requests to the summarizer are made while the chat goes on.
    background: bool = False
    #: What is worth saying of its settings, in one line; shown below the tables.
    settings: str = ""
    #: Definitions of tools that its agent's calls carry beside those of the conversation.
    tools: Sequence[Mapping[str, Any]] = ()

    @abstractmethod
    def prompt(self, new: list[Message]) -> list[Message]:
        """Take in *new* messages (the user's, or results of tools) and return those of the agent's next call.

        The system message comes first. An exception is a failed turn: the driver counts it and goes on with the
        next turn.
        """

    @abstractmethod
    def answered(self, message: Message) -> None:
        """Take in what the agent answered, calls of tools included."""

    def billed(self, tokens: int, cached: int) -> None:  # noqa: B027  (most do not use it)
        """The provider has counted *tokens* in the agent's last prompt, and *cached* of them were in its cache. Called
        before ``answered``."""

    def wait_idle(self, timeout: float) -> bool:
        """Return True once nothing is under way in the background; False after *timeout* real seconds, 0 for at once.

        Between turns the driver lets the real time pass until this is so, or the server holds a request of the
        adapter's: so whatever can be done at this moment of the virtual time is done. Called in any thread.
        """
        return True

    def advanced(self, now: float) -> None:  # noqa: B027  (most have no clock)
        """The virtual clock stands at *now*, in seconds. For libraries that can be given a clock."""

    def wakes_at(self) -> float | None:
        """When, in virtual time, it does something by itself next; None: it waits for nothing but what it is told.
        For libraries that can be given a clock: the driver stops there."""
        return None

    @abstractmethod
    def kept(self) -> list[str]:
        """Return the texts that it still has raw, word for word, in memory or in its store: not in summaries."""

    def measures(self) -> dict[str, float]:
        """Return what else it can say of itself at the end: named numbers, kept beside the results."""
        return {}

    def close(self) -> None:  # noqa: B027  (most start nothing)
        """Stop what it started."""
