"""The checks that a summary must pass before it may be shown, each with a name and in this order:

``not_text``     something else than a text, or a ``Summary`` of one
``empty``        no letter and no digit
``malformed``    not the changes of notes that were asked for
``greeting``     a reply to the conversation: it greets, offers help or refuses
``echo``         a stretch of what it should sum up, word for word
``larger``       longer than all that it replaces
``no_progress``  it saves less than a tenth of the new rounds; the summary before may stand again in full
``oversized``    over twice as long as it was asked to be
``voice``        of tool calls: told in the assistant's voice ("I called ..."), which agents repeat to users
``invented``     over 3 of its identifiers, and over a quarter of them, stand nowhere in what it was made from

Where changes of notes were asked for, the notes are measured as they are then, all of them; a reply, an echo and what
is invented are looked for in the new ones alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from memory.once import once
from prompts import TAGS

from .checks.identifiers import identifiers, unknown
from .checks.voice import in_own_voice
from .errors import SummaryRejected
from .summarizers.base import RequestKind, Summary, strip_tags
from .summarizers.replies import is_reply
from .tokens import TokenCounter

__all__ = [
    "CHECKS",
    "LEAST_SAVING",
    "MOST_INVENTED",
    "MOST_INVENTED_SHARE",
    "MOST_OVER_TARGET",
    "Accepted",
    "Reading",
    "Source",
    "accept",
    "repeats",
]

#: Makes a summary of an answer that is none itself; raises ``SummaryRejected`` where that cannot be done.
Reading = Callable[[str], Summary]

#: A summary may grow by at most this share of the new rounds that it takes in.
LEAST_SAVING = 0.9
#: A summary may be this many times as long as it was asked to be: models count badly.
MOST_OVER_TARGET = 2.0
#: So many unknown identifiers are let pass, and as many as are this share of all: some are worked out or put together.
MOST_INVENTED = 3
MOST_INVENTED_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class Source:
    """What a summary is made from, and measured against."""

    #: The conversation as the summarizer read it. Without the previous summary: that may stand again, word for word,
    #: where nothing worth keeping was said since.
    text: str
    #: Tokens of all new rounds that the summary takes in; more than the text's where this is not the first request.
    tokens: int
    #: Tokens of the published summary that it replaces.
    previous_tokens: int = 0
    #: What else it may take identifiers from: the previous summary, the plan.
    beside: tuple[str, ...] = ()
    #: What notes said before that changes are asked for: what stays of them is not judged again.
    notes: frozenset[str] = frozenset()
    #: Tokens of the rounds in this request; None: those of the text.
    sent: int | None = None


class Accepted(NamedTuple):
    #: The answer without the tags around it; or what was read in that.
    summary: Summary
    tokens: int
    #: Identifiers that stand nowhere in its source.
    unknown: tuple[str, ...]
    #: The answer as it was read, without the tags around it.
    said: str


@dataclass(frozen=True)
class _Candidate:
    """An answer that may become a summary."""

    answer: object
    source: Source
    kind: RequestKind
    target_tokens: int | None
    count: TokenCounter
    reading: Reading | None = None

    @property
    def summary(self) -> Summary | None:
        """The answer, if it is one."""
        made = Summary(self.answer) if isinstance(self.answer, str) else self.answer
        return made if isinstance(made, Summary) and isinstance(made.text, str) else None

    @once
    def said(self) -> str:
        return strip_tags(self.summary.text) if self.summary is not None else ""

    @once
    def read(self) -> Summary:
        """What it says. Tags are taken off before it is read: what stands in a note is no tag around it."""
        return self.reading(self.said) if self.reading is not None else Summary(self.said)

    @once
    def text(self) -> str:
        return self.read.text

    @once
    def tokens(self) -> int:
        return self.count(self.text)

    @once
    def new(self) -> str:
        """What it says of its own: without the notes that stayed as they were."""
        if self.kind != "changes":
            return self.said
        return "\n".join(note.text for note in self.read.notes if note.text not in self.source.notes)

    @once
    def names(self) -> tuple[str, ...]:
        return identifiers(self.new)

    @once
    def unknown(self) -> tuple[str, ...]:
        return unknown(self.names, (self.source.text, *self.source.beside))


def accept(
    answer: object,
    source: Source,
    *,
    target_tokens: int | None,
    count: TokenCounter,
    kind: RequestKind = "rounds",
    reading: Reading | None = None,
) -> Accepted:
    """Return the summarizer's *answer* without the tags around it, its tokens, and what in it is of unknown origin.

    With *reading*, the summary that it makes of that.

    Raises ``SummaryRejected`` naming the first of ``CHECKS`` that the answer fails.
    """
    made = _Candidate(answer, source, kind, target_tokens, count, reading)
    for name, check in CHECKS.items():
        if (wrong := check(made)) is not None:
            raise SummaryRejected(name, wrong, made.unknown if name == "invented" else ())
    assert made.summary is not None  # noqa: S101  (the first check)
    summary = replace(made.read, usage=made.summary.usage, model=made.summary.model)
    return Accepted(summary, made.tokens, made.unknown, made.said)


def repeats(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, white space and tags aside."""
    said = _bare(text)
    if any(word not in source for word in said.split() if "<" not in word):
        return False  # as with most summaries, at one of the first words
    read = _bare(source)
    return 2 * len(said) >= len(read) and said in read


# -- the checks: each says what is wrong, or None ---------------------------------------------------------------------


def _not_text(made: _Candidate) -> str | None:
    if made.summary is not None:
        return None
    return f"the summarizer returned {type(made.answer).__name__}; it must return a str or a Summary"


def _empty(made: _Candidate) -> str | None:
    if any(character.isalnum() for character in made.said) or (made.kind == "changes" and made.said):
        return None
    return "the summarizer's answer holds no text; look at its prompt and its token limit"


def _malformed(made: _Candidate) -> str | None:
    try:
        _ = made.read
    except SummaryRejected as rejected:
        return str(rejected)
    return None


def _greeting(made: _Candidate) -> str | None:
    if (made.kind == "changes" and not made.new) or not is_reply(made.new):
        return None
    return "the summarizer replied to the conversation instead of summarising it; look at its prompt"


def _echo(made: _Candidate) -> str | None:
    if (made.kind == "changes" and not made.new) or not repeats(made.new, made.source.text):
        return None
    return "the summarizer repeated the conversation instead of summarising it"


def _larger(made: _Candidate) -> str | None:
    return _replaces(made) if made.tokens > made.source.previous_tokens + made.source.tokens else None


def _no_progress(made: _Candidate) -> str | None:
    most = made.source.previous_tokens + made.source.tokens * LEAST_SAVING
    return _replaces(made) if made.tokens > most else None


def _replaces(made: _Candidate) -> str:
    before, new = made.source.previous_tokens, made.source.tokens
    return f"the summary has {made.tokens} tokens; what it replaces, {before} and {new} new ones"


def _oversized(made: _Candidate) -> str | None:
    target = made.target_tokens
    if target is None or made.tokens <= MOST_OVER_TARGET * target:
        return None
    return (
        f"the summary has {made.tokens} tokens, over {MOST_OVER_TARGET:g} times the {target} it was asked for;"
        " raise target_tokens, or state the length in the prompt"
    )


def _voice(made: _Candidate) -> str | None:
    if made.kind != "tool_run" or not in_own_voice(made.text):
        return None
    return "the summarizer told of tool calls in the first person, which agents repeat to users; look at its prompt"


def _invented(made: _Candidate) -> str | None:
    found, among = len(made.unknown), len(made.names)
    if found <= MOST_INVENTED or found <= MOST_INVENTED_SHARE * among:
        return None
    return f"{found} of the {among} identifiers in the summary stand nowhere in what it was made from"


#: Each check by its name, in the order in which they are made.
CHECKS: dict[str, Callable[[_Candidate], str | None]] = {
    "not_text": _not_text,
    "empty": _empty,
    "malformed": _malformed,
    "greeting": _greeting,
    "echo": _echo,
    "larger": _larger,
    "no_progress": _no_progress,
    "oversized": _oversized,
    "voice": _voice,
    "invented": _invented,
}

_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})\b[^<>]*>", re.IGNORECASE)


def _bare(text: str) -> str:
    return " ".join(_TAG.sub(" ", text.replace("&lt;", "<")).split())
