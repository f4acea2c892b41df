"""A summarizer as a model is one, in one respect: of each fact that it reads, it now and then says nothing."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from benchmarks.surface_retention import Fact
from compactor import SummaryRequest, count_tokens

__all__ = ["KEEPS", "ImperfectModel"]

#: With what probability it keeps a fact, each time that it writes a summary.
KEEPS = 0.95

_WORDS = (
    "the user asked about a delivery and wanted to know when it comes then the order was found in the list and its"
    " state was told while another question came up that had to wait until more is known of the cause which was"
    " settled later after both had looked at it again and agreed on how to go on with what was left"
)
_KEPT, _DONE = "Goal", "Done"
_WORD = re.compile(r"\b[A-Za-z]{5,}\b")
_LENGTH = re.compile(r"at most (\d+) tokens")


class ImperfectModel:
    """Answers with those of *facts* that it reads, in their own words, each kept with probability *keeps*; and with
    plain words up to the length that it is asked for, or half of what it reads.

    Asked for changes of notes, it adds what is new to them, and one sentence of what was done. The same for the same
    *seed*.
    """

    def __init__(self, facts: Sequence[Fact], seed: int, keeps: float = KEEPS) -> None:
        self._facts = facts
        self._rng = random.Random(seed)
        self._keeps = keeps
        #: What it tells beside facts: words of the new rounds, for a summary that says nothing of them is refused.
        self._words = _WORDS.split()

    def __call__(self, request: SummaryRequest) -> str:
        text = "\n".join(message["content"] for message in request.messages)
        if request.kind == "changes":
            noted = "\n".join(note.text for note in request.notes)
            added = [(_KEPT, fact.text) for fact in self._kept(text) if fact.text not in noted]
            return "\n".join(f"add [{section}]: {said}" for section, said in [*added, (_DONE, self._sentence(24))])
        said = " ".join(post.message for round_ in request.rounds for post in round_.post_list)
        self._words = _WORD.findall(said) or _WORDS.split()
        return self._summary(self._kept(text), min(int(_LENGTH.findall(text)[-1]), count_tokens(text) // 2))

    def _kept(self, text: str) -> list[Fact]:
        read = (fact for fact in self._facts if fact.text in text)
        return [fact for fact in read if self._rng.random() < self._keeps]

    def _summary(self, facts: Sequence[Fact], length: int) -> str:
        lines = [f"## {_KEPT}", *(f"- {fact.text}" for fact in facts), f"## {_DONE}"]
        left = length - count_tokens("\n".join(lines))
        while True:  # one sentence however long the facts are: it has read something new
            lines.append(f"- {self._sentence(min(max(left - 4, 8), 24))}")
            left -= count_tokens(lines[-1]) + 1
            if left <= 8:
                break
        return "\n".join(lines)

    def _sentence(self, words: int) -> str:
        return f"{' '.join(self._rng.choices(self._words, k=words))}."
