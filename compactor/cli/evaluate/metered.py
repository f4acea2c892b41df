"""A model's answers, each paid for once: asked for, counted, priced, and kept in a file."""

from __future__ import annotations

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memory.arguments import ConfigError
from memory.errors import ContextError
from memory.rounds import copy_with

from ...cost.limits import Limits
from ...cost.prices import Prices
from ...errors import classify_failure
from ...events import Prepared, Rejected
from ...summarize import compute_digest
from ...summarizers.answers import NoSummary
from ...summarizers.base import RequestKind, Summarizer, SummarizerError, Summary, SummaryRequest
from ...summarizers.extractive import ExtractiveSummarizer
from ...tokens import TokenCounter, count_prompt
from ..terminal import CommandError, is_lasting

#: Length of an answer that is estimated where a request names none, and of one that edits notes.
_LENGTH, _EDITS = 1_000, 200


class SpendReached(ContextError):
    """The next call would cost more than may be spent."""


class Unanswered(ContextError):
    """A model that gave summaries before gave none this time."""


#: Returns the dollars of a usage.
PriceFunction = Callable[[Mapping[str, int]], float]


def find_price(model: str) -> PriceFunction | None:
    """Return the price of *model*; None if it is unknown here."""
    try:
        return make_price(Prices.of_model(model))
    except ConfigError:
        return None


def make_price(prices: Prices) -> PriceFunction:
    """Return the cost of usage by *prices*, which have a dollar price per token."""
    return Limits(max_concurrency=1, prices=prices).compute_cost


class ResponseCache:
    """Answers by a hash of their request, as lines of JSON in a file that only its owner can read.

    Each line is written when its answer arrives, so an interrupted evaluation goes on from there. Lines that cannot
    be read, such as one that was cut off, are ignored: their answers are asked for again.
    """

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        """Read the answers at *path*, if there are any; with *read_only*, none are added.

        Raises ``CommandError`` if the file cannot be read or written: nobody wants to learn that after paying for one.
        """
        self.path, self._read_only = path, read_only
        self._answers: dict[str, Mapping[str, Any]] = {}
        try:
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{path}: the paid answers cannot be read ({_describe_reason(error)}); give --answers"
            ) from error
        for line in lines:
            answer = _read_answer(line)
            if answer is not None:
                self._answers[answer["key"]] = answer
        if not read_only:
            self._append("")

    def find(self, key: str) -> Mapping[str, Any] | None:
        """Return the answer to the request with the hash *key*; None if there is none."""
        return self._answers.get(key)

    def add(self, key: str, answer: Summary, seconds: float) -> None:
        """Add an answer to the request with the hash *key*. Raises ``CommandError`` if the file cannot be written."""
        if self._read_only:
            return
        line = {"key": key, "text": answer.text, "usage": answer.usage, "model": answer.model, "seconds": seconds}
        self._answers[key] = line
        self._append(json.dumps(line))

    def _append(self, line: str) -> None:
        try:
            with open(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "ab+") as file:
                file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
                torn = file.read(1) not in (b"", b"\n")  # the line of an interrupted process
                file.write((("\n" if torn else "") + (f"{line}\n" if line else "")).encode())
        except (OSError, ValueError) as error:
            raise CommandError(
                f"{self.path}: answers cannot be written ({_describe_reason(error)}); give --answers"
            ) from error


def _read_answer(line: str) -> Mapping[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("key", "text")):
        return None
    seconds, model = value.get("seconds"), value.get("model")
    is_time = isinstance(seconds, (int, float)) and 0 <= seconds < math.inf
    return value if is_time and (model is None or isinstance(model, str)) else None


def _describe_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or "it is no usable path"


@dataclass
class MeteredSummarizer:
    """Asks a model by *summarizer* and keeps account of its answers. A summarizer, for one compactor at a time.

    A stored answer costs nothing again. Raises ``SpendReached`` before a call that could exceed *max_spend* dollars,
    and ``Unanswered`` if the model gives no summary although it gave others.
    """

    summarizer: Summarizer
    count: TokenCounter
    price: PriceFunction | None = None
    #: The same request to another endpoint, or to another model there, has another answer.
    endpoint: str = ""
    model: str = ""
    file: ResponseCache | None = None
    max_spend: float | None = None
    clock: Callable[[], float] = time.monotonic

    #: The agent's last prompt is not known here; asking always in one form makes two runs comparable.
    takes_continued = False

    #: Why no more is asked, if the spend is reached.
    stop_reason: str = ""
    calls: int = 0
    reused: int = 0
    estimated: int = 0
    seconds: float = 0.0
    #: Of all answers, and of those that were asked for now.
    usage: Counter[str] = field(default_factory=Counter)
    usage_now: Counter[str] = field(default_factory=Counter)
    kinds: Counter[RequestKind] = field(default_factory=Counter)
    #: Checks that rejected answers, by their names; those of answers that edit notes by themselves.
    rejected: Counter[str] = field(default_factory=Counter)
    rejected_edits: Counter[str] = field(default_factory=Counter)
    restored: int = 0
    #: Calls that gave no answer, or none that is a text.
    failed: int = 0
    _kind: RequestKind = "rounds"
    _is_new: bool = True
    _counted: set[str] = field(default_factory=set)

    def __call__(self, request: SummaryRequest) -> Summary:
        key = hashlib.sha256(
            "\n".join((self.endpoint, self.model, request.kind, compute_digest(request))).encode()
        ).hexdigest()
        stored = self.file.find(key) if self.file is not None else None
        if stored is not None:
            answer, seconds = Summary(stored["text"], stored.get("usage"), stored.get("model")), stored["seconds"]
        else:
            self._require_room(request)
            began = self.clock()
            answer = self._summarize(request)
            seconds = self.clock() - began
        # A compaction that is tried again asks the same again; that counts once.
        self._kind, self._is_new = request.kind, key not in self._counted
        if self._is_new:
            self._counted.add(key)
            self.kinds[request.kind] += 1
            self.reused += stored is not None
            self.seconds += seconds
            self._charge(self._read_usage(request, answer), paid_now=stored is None)
        if stored is None and self.file is not None:
            self.file.add(key, answer, seconds)
        return answer

    def _summarize(self, request: SummaryRequest) -> Summary:
        self.calls += 1
        try:
            answer = self.summarizer(request)
        except SummarizerError as error:
            self.failed += 1
            self._charge(error.usage or {}, paid_now=True)
            if is_lasting(*classify_failure(error)):
                raise
            if self.kinds and (error.usage is not None or isinstance(error, NoSummary)):
                raise Unanswered(str(error)) from error
            raise
        return answer if isinstance(answer, Summary) else Summary(answer)

    def _charge(self, usage: Mapping[str, int], *, paid_now: bool) -> None:
        self.usage.update(usage)
        if paid_now:
            self.usage_now.update(usage)

    def record_event(self, event: object) -> None:
        """Take note of the compactor's *event* about the newest answer."""
        if not self._is_new:
            return
        if isinstance(event, Rejected):
            (self.rejected_edits if self._kind == "changes" else self.rejected)[event.check] += 1
        elif isinstance(event, Prepared):
            self.restored += event.restored

    def compute_cost(self, usage: Mapping[str, int]) -> float | None:
        """Return the dollars that *usage* costs; None if the price is unknown."""
        return self.price(usage) if self.price is not None else None

    def make_account(self) -> dict[str, Any]:
        """Return the work for the summaries, as the JSON document has it.

        ``failed`` are calls without a text, ``format`` answers in the form of edits out of those that should have it,
        ``restored`` prohibitions that were put back, ``estimated`` answers whose tokens were counted here. What ends
        in ``_now`` is of this run alone.
        """
        edits = self.kinds["changes"]
        return {
            "answers": self.kinds.total(),
            "rejected": dict(sorted((self.rejected + self.rejected_edits).items())),
            "failed": self.failed,
            "format": {"part": edits - self.rejected_edits["malformed"], "of": edits},
            "restored": self.restored,
            **{name: self.usage[name] for name in ("input_tokens", "cached_tokens", "output_tokens")},
            "estimated": self.estimated,
            "dollars": self.compute_cost(self.usage),
            "dollars_now": self.compute_cost(self.usage_now),
            "calls_now": self.calls,
            "seconds": round(self.seconds, 3),
        }

    def _read_usage(self, request: SummaryRequest, answer: Summary) -> Mapping[str, int]:
        usage = answer.usage
        if usage and "input_tokens" in usage and "output_tokens" in usage:
            return usage
        self.estimated += 1
        return {"input_tokens": self._count_request(request), "output_tokens": self.count(answer.text)}

    def _require_room(self, request: SummaryRequest) -> None:
        if self.max_spend is None or self.price is None:
            return
        answers = sum(self.kinds.values())
        length = max(request.target_tokens or _LENGTH, self.usage["output_tokens"] // answers if answers else 0)
        cost = self.price({"input_tokens": self._count_request(request), "output_tokens": length})
        spent = self.price(self.usage_now)
        if spent + cost > self.max_spend:
            self.stop_reason = (
                f"${spent:.4f} is spent and the next call costs about ${cost:.4f}: more than --max-spend"
                f" {self.max_spend:g}"
            )
            raise SpendReached(self.stop_reason)

    def _count_request(self, request: SummaryRequest) -> int:
        return count_prompt(request.messages, self.count)


def rehearse(request: SummaryRequest) -> Summary:
    """Return an answer about as long as a model's, without a model: to estimate the cost of an evaluation."""
    length = request.target_tokens or _LENGTH
    if request.kind != "changes":
        return ExtractiveSummarizer()(copy_with(request, target_tokens=length))
    new = ExtractiveSummarizer()(copy_with(request, previous=None, target_tokens=min(_EDITS, length)))
    edits = [{"section": "", "text": line} for line in new.text.splitlines() if line.strip()]
    return copy_with(new, text=json.dumps({"add": edits, "replace": [], "remove": []}))
