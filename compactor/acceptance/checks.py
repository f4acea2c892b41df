"""The checks that a summary must pass before it may be shown, each with a name and in this order:

``not_text``     something else than a text, or a ``Summary`` of one
``empty``        no letter and no digit
``malformed``    not the changes of notes that were asked for
``greeting``     a reply to the conversation: it greets, offers help or refuses
``echo``         most of it is copied, in runs of words, and these are much of what it should sum up, or many
``markup``       it holds tags of the request that it was made from, and not in code that it quotes
``larger``       longer than all that it replaces, as prompts show that
``no_progress``  it saves less than a tenth of the new rounds; the summary before may stand again in full
``oversized``    over twice as long as it was asked to be
``cut_off``      it ends within a block of code, JSON, a sentence or a word
``voice``        of tool calls: told in the assistant's voice ("I called ..."), which agents repeat to users
``hollow``       it says next to nothing of what it was made from, or nothing of the new rounds
``invented``     over 3 of its identifiers, and over a quarter of them, stand nowhere in what it was made from
``partial``      under a third of the identifiers, numbers and prohibitions of the summary before are still in it, or of
                 those that the new rounds do not name again; or under a tenth of the words that only that has

If changes of notes were asked for, all resulting notes are measured; replies, echoes and inventions are looked for in
the new ones alone. A check that finds nothing to measure refuses nothing: small talk has no names, and words of two
languages cannot be compared. Text that the offline summarizer chose is not refused for copying, omissions or cuts: it
would choose the same again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..errors import SummaryRejected
from ..summarizers.answers import is_reply, strip_tags
from ..summarizers.base import RequestKind, Summary
from ..tokens import TokenCounter
from .content import Terms, had_nothing_to_say, identifiers, names_nothing_new, says_nothing, unknown
from .copying import bare, has_markup, measure_copied, repeats
from .prohibitions import find_missing

_FENCE = ("```", "~~~")
_END = frozenset(".!?…。！？।۔:;)]}\"'”’»」』`*_>|")
_FULL_STOP = frozenset(".!?…。！？।۔")
_PAIRS = (("(", ")"), ("[", "]"), ("“", "”"), ("「", "」"), ("«", "»"))
#: What no sentence ends with.
_GOES_ON_WORDS = """
    a an and as at because but by for from if in into is nor of or per than that the their to was were which while with
    whose
    und oder der die das ein eine mit von zu et ou le la les une de des avec y o el los las una con del il lo di
    che
"""
_GOES_ON = frozenset(_GOES_ON_WORDS.split())
_WORD = re.compile(r"[^\W_]+")
_MARK = re.compile(r"[ \t]{0,40}(?:[-*+•–]|\d{1,3}[.)])[ \t]{0,40}$")
_CLAUSE_END = re.compile(r"[.;!?] ")
#: So many characters of the last line are looked at; longer ones are data.
_LONGEST = 4_000
#: A line of as many words is a sentence; and so many of them that end in a full stop show that sentences do here.
_SENTENCE, _OTHERS = 6, 2
#: So many last words are looked for in the source.
_TAIL = 3


def is_cut_off(text: str, source: str) -> bool:
    """Return whether *text*, made from *source*, ends within a block of code, JSON, a sentence or a word."""
    text = text.strip()
    if not text:
        return False
    if text[0] in "{[" and text[-1] not in "}]" and _is_json_at_first(text):
        return True
    lines = text.splitlines()
    if sum(line.lstrip()[:3] in _FENCE for line in lines) % 2:
        return True
    last = lines[-1].strip()
    if not last or len(last) > _LONGEST or last.startswith(("|", "#")):
        return False
    if _MARK.match(lines[-1]) or last[-1] in ",(—[{“«「":
        return True
    if last[-1] in _END or not last[-1].isalnum():
        return False
    clause = _CLAUSE_END.split(last)[-1]  # brackets before it were left open on purpose, as in a piece of code
    if any(clause.count(opens) > clause.count(closes) for opens, closes in _PAIRS):
        return True
    words = _WORD.findall(last)
    if len(words) > 2 and last.endswith(words[-1]) and words[-1] in _GOES_ON and not _ends_there(last, source):
        return True
    return _is_piece(words[-1], text, source) or _others_end(lines[:-1], len(words))


def _is_json_at_first(text: str) -> bool:
    try:
        json.JSONDecoder(strict=False).raw_decode(text)
    except RecursionError:
        return True
    except ValueError:
        return re.match(r'[{\[]\s{0,100}["{\[]', text) is not None
    return False


def _ends_there(line: str, source: str) -> bool:
    """Return whether a line or sentence of *source* ends as *line* does: questions do in such words ("where it is")."""
    tail = " ".join(line.rsplit(maxsplit=_TAIL)[-_TAIL:])
    return re.search(rf"{re.escape(tail)}[ \t]{{0,40}}(?:[.!?…]|$)", source, re.IGNORECASE | re.MULTILINE) is not None


def _is_piece(word: str, text: str, source: str) -> bool:
    """Return whether *word* is only ever the beginning of longer ones."""
    if len(word) < 2 or not (word.isascii() and word.isalpha()):
        return False
    low = word.casefold()
    written = re.compile(rf"(?<![^\W_]){re.escape(low)}([^\W_]?)")
    found = [
        match[1] for read in (text[: -len(word)].casefold(), source.casefold()) for match in written.finditer(read)
    ]
    return bool(found) and "" not in found


def _others_end(lines: list[str], words: int) -> bool:
    """Return whether the lines before one of *words* words show that here sentences end in a full stop."""
    said = [line.rstrip() for line in lines if len(line.split()) >= _SENTENCE]
    return words >= _SENTENCE and len(said) >= _OTHERS and all(line[-1] in _FULL_STOP for line in said)


# --- tell a text in the first person from one that says what was done: agents repeat "I called ..." to their users


# Bounded, and no mark opens twice: one that is never closed must not be looked for to the end, from each one.
_OTHER_SPEAKERS = re.compile(
    r'"[^"\n]{0,2000}"|“[^“”\n]{0,2000}”|„[^„“”\n]{0,2000}[“”]|«[^«»\n]{0,2000}»|「[^「」\n]{0,2000}」'
    r"|```.{0,20000}?```|`[^`\n]{0,2000}`|(?:→|->|=>)[^\n]{0,4000}",
    re.DOTALL,
)
_LEAD = (
    r"(?:(?:then|next|first|firstly|second|secondly|third|finally|lastly|after (?:that|this)|afterwards|subsequently|so"
    r"|and|but|also|now|here|earlier|previously|as (?:the|an) (?:assistant|agent)|in (?:total|summary|short)),? ){0,3}"
)
# "Having called f(a, b), I ...", "After reading out.csv, we ...".
_CLAUSE = (
    r"(?:(?:(?:after )?having \w+|(?:after|before|by|upon|on|when|while) \w+ing)\b"
    r"(?:[^.!?;:\n]|[.:](?=\S)){0,120}?, (?=(?:i|we)\b))?"
)
_BY_ME = r"\b(?:was|were|been|being|is|are) (?:\w{1,40} ){1,3}by (?:me|us)\b(?![/-])"


def _spaced(pattern: str) -> str:
    """Return *pattern* with its spaces kept in a pattern whose spaces do not count."""
    return pattern.replace(" ", r"\ ")


_OWN_VOICE = re.compile(
    rf"""(?:^|[.!?;…]\s|[。！？；]) [\s>*_#()\d.•–-]{{0,20}}+
      (?: {_spaced(_LEAD + _CLAUSE)}
          (?: (?:i|we) (?: ['’](?:ve|d|ll|m|re)\b | \ (?!/|-)[a-z] )
            | my\ (?:next|first|last|search|query|call|tool) )
        | ich\ (?:habe|werde|rief) | j['’](?:ai|appelle) | je\ (?:vais|suis) | he\ (?:llamado|buscado|ejecutado|usado)
        | ho\ (?:chiamato|cercato|eseguito|usato) | (?:eu\ )?(?:chamei|executei|pesquisei) | я\ \w | ik\ heb
        | 我(?:已|们|調用|调用|搜索|查询|使用|执行|運行|运行|先|將|会|會) | 私は | 제가 | 저는 )
    | {_spaced(_BY_ME)}""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


def in_own_voice(text: str) -> bool:
    """Return whether a sentence of *text* tells in the first person what its speaker did or will do. What stands in
    quotation marks, in code, or behind the arrow of a result is somebody else's. A guess, in time linear in *text*."""
    return _OWN_VOICE.search(_OTHER_SPEAKERS.sub(" … ", text)) is not None


# --- the checks that a summary must pass before it may be shown, each with a name and in this order: --------------


#: Makes a summary of an answer that is none itself; raises ``SummaryRejected`` where that cannot be done.
AnswerParser = Callable[[str], Summary]

#: A summary may grow by at most this share of the new rounds that it takes in.
MIN_SAVING = 0.9
#: Nobody can be expected to say fewer tokens than these in less, with all that such a summary has to hold.
MIN_TOKENS = 32
#: A summary may be this many times as long as it was asked to be: models count badly.
MAX_OVER_TARGET = 2.0
#: So many unknown identifiers are let pass, and as many as are this share of all: some are worked out or put together.
MAX_INVENTED = 3
MAX_INVENTED_SHARE = 0.25
# A summary is an echo where too much of it is copied in runs of words. How much that is depends on how much of the
# source the copied words are; ``_is_copied`` has the rules, and ``benchmarks/acceptance.py`` measures them.
#: First rule: more than this share of the summary is copied, and that is more than this share of the source.
MAX_COPIED = 0.75
MAX_COPIED_OF_SOURCE = 0.3
#: The same where the summary is copied almost entirely.
ALL_COPIED = 0.9
MAX_ALL_COPIED_OF_SOURCE = 0.18
#: Second rule, for long sources: more than this share of the summary is copied, in more than this many runs, and that
#: is more than this share of the source.
MOSTLY_COPIED = 0.7
MANY_COPIED = 80
MANY_COPIED_OF_SOURCE = 0.08
#: The same in more than this many runs, whatever their share of the source.
MAX_COPIED_RUNS = 400
#: Third rule: one stretch of the source is more than this share of the summary,
MAX_STRETCH = 0.6
#: and goes over at least this many posts, or has more than this many words.
MIN_STRETCH_POSTS = 4
MIN_STRETCH_WORDS = 200
#: In shorter sources, in words, whoever sums up may have to quote.
MIN_MEASURED_WORDS = 50
#: At least this share of what the summary before names is still in the new one.
MIN_KEPT = 1 / 3


@dataclass(frozen=True, slots=True)
class Source:
    """What a summary is made from, and measured against."""

    #: The conversation as the summarizer read it. Without the previous summary: that may stand again, word for word,
    #: where nothing worth keeping was said since.
    text: str
    #: Tokens of all new rounds that the summary takes in: as prompts show them where it can be published, less what
    #: stands around it for the first time. More than the text's where this is not the first request.
    tokens: int
    #: Tokens of the published summary that it replaces.
    previous_tokens: int = 0
    #: What else it may take identifiers from: the previous summary, the plan.
    beside: tuple[str, ...] = ()
    #: What notes said before that changes are asked for: what stays of them is not judged again.
    notes: frozenset[str] = frozenset()
    #: Tokens of the rounds in this request; None: those of the text.
    sent: int | None = None
    #: Tokens of what stands around the summary where it is shown. What it adds to that before is off ``tokens``.
    frame: int = 0
    #: The summary that it goes on from, or replaces.
    previous: str = ""


class CheckedSummary(NamedTuple):
    #: The answer without the tags around it; or what was read in that.
    summary: Summary
    tokens: int
    #: Identifiers that stand nowhere in its source.
    unknown: tuple[str, ...]
    #: The answer as it was read, without the tags around it.
    said: str


_NO_TERMS = Terms("")


@dataclass(slots=True)
class _Candidate:
    """An answer that may become a summary."""

    source: Source
    kind: RequestKind
    target_tokens: int | None
    count: TokenCounter
    length_setting: str
    #: The answer without the tags around it.
    said: str
    #: The summary that it makes, and its tokens.
    text: str
    tokens: int
    #: What it says of its own: without the notes that stayed as they were.
    new: str
    #: Whether the offline summarizer chose it from the source; it would choose the same again.
    is_extracted: bool
    #: Whether it is not judged by its words: it is extracted, or changes nothing.
    is_exempt: bool
    #: The identifiers in ``new``, and those of them that stand nowhere in the source.
    names: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    #: The words of ``new``, of the source and of the summary before.
    terms: Terms = _NO_TERMS
    source_terms: Terms = _NO_TERMS
    previous_terms: Terms = _NO_TERMS

    def read_content(self) -> None:
        """Read names and words, which takes longer than all checks before."""
        source = self.source
        self.names = identifiers(self.new)
        self.unknown = unknown(self.names, (source.text, source.previous, *source.beside))
        self.terms, self.source_terms = Terms(self.new), Terms(bare(source.text))
        self.previous_terms = Terms(source.previous)


class _Fault(NamedTuple):
    """What is wrong, and the names that a summarizer is told of when it is asked again."""

    why: str
    names: tuple[str, ...] = ()


def check_summary(
    answer: object,
    source: Source,
    *,
    target_tokens: int | None,
    count: TokenCounter,
    kind: RequestKind = "rounds",
    parse: AnswerParser | None = None,
    length_setting: str = "target_tokens",
) -> CheckedSummary:
    """Return the summarizer's *answer* without the tags around it, its tokens, and its identifiers of unknown origin.

    *parse* makes the summary of an answer in another form. Errors name *length_setting* as the setting to change.

    Raises ``SummaryRejected`` naming the first of ``CHECKS`` that the answer fails.
    """
    summary = Summary(answer) if isinstance(answer, str) else answer
    if not isinstance(summary, Summary) or not isinstance(summary.text, str):
        fault = f"the summarizer returned {type(answer).__name__}; it must return a str or a Summary"
        raise _reject("not_text", _Fault(fault), source)
    said = strip_tags(summary.text)
    if not said or not (kind == "changes" or any(map(str.isalnum, said))):
        fault = "the summarizer's answer holds no text; look at its prompt and its token limit"
        raise _reject("empty", _Fault(fault), source)
    made = summary
    if parse is not None:  # after the tags are taken off: what stands in a note is no tag around it
        try:
            made = replace(parse(said), usage=summary.usage, model=summary.model)
        except SummaryRejected as rejected:
            raise _reject("malformed", _Fault(str(rejected)), source) from None
    elif said != summary.text or summary.notes:
        made = replace(summary, text=said, notes=())
    new = said
    if kind == "changes":
        new = "\n".join([note.text for note in made.notes if note.text not in source.notes])
    candidate = _Candidate(
        source,
        kind,
        target_tokens,
        count,
        length_setting,
        said=said,
        text=made.text,
        tokens=count(made.text),
        new=new,
        is_extracted=summary.extracted,
        is_exempt=summary.extracted or not new,
    )
    for name, check in _CHECKS.items():
        if name == "hollow":
            candidate.read_content()
        if (wrong := check(candidate)) is not None:
            refusal = _reject(name, wrong, source)
            sources = (candidate.source_terms, candidate.previous_terms)
            refusal.had_nothing_to_say = name == "hollow" and had_nothing_to_say(candidate.terms, sources)
            raise refusal
    return CheckedSummary(made, candidate.tokens, candidate.unknown, said)


def _reject(check: str, fault: _Fault, source: Source) -> SummaryRejected:
    rejected = SummaryRejected(check, fault.why, fault.names)
    rejected.tokens = source.tokens
    return rejected


def is_too_little(rejected: SummaryRejected, *, deterministic: bool) -> bool:
    """Return whether there was too little to be said in less, rather than a bad answer: of one that would answer the
    same again, whatever it takes; of others where these are fewer than ``MIN_TOKENS``, or there is hardly a word that
    could be said of them."""
    if deterministic:
        return rejected.check in ("larger", "no_progress", "hollow")
    if rejected.had_nothing_to_say:
        return True
    return rejected.check in ("larger", "no_progress") and (rejected.tokens or MIN_TOKENS) < MIN_TOKENS


# -- the checks: each says what is wrong, or None ---------------------------------------------------------------------


def _greeting(made: _Candidate) -> _Fault | None:
    if made.is_exempt or not is_reply(made.new):  # it quotes, and greets nobody
        return None
    return _Fault("the summarizer replied to the conversation instead of summarising it; look at its prompt")


def _markup(made: _Candidate) -> _Fault | None:
    if made.is_exempt or not has_markup(made.new):  # what it quotes may speak of tags
        return None
    return _Fault("the summarizer repeated the tags of the conversation instead of summarising it; look at its prompt")


def _echo(made: _Candidate) -> _Fault | None:
    if made.is_exempt:
        return None
    if repeats(made.new, made.source.text) or _is_copied(made):
        return _Fault("the summarizer repeated the conversation instead of summarising it")
    return None


def _is_copied(made: _Candidate) -> bool:
    copied = measure_copied(made.new, made.source.text)
    if copied.of_words < MIN_MEASURED_WORDS or copied.share <= MAX_STRETCH:
        return False
    most = MAX_ALL_COPIED_OF_SOURCE if copied.share > ALL_COPIED else MAX_COPIED_OF_SOURCE
    if copied.share > MAX_COPIED and copied.of_source > most:
        return True
    if copied.share > MOSTLY_COPIED and (
        copied.runs > MAX_COPIED_RUNS or (copied.runs > MANY_COPIED and copied.of_source > MANY_COPIED_OF_SOURCE)
    ):
        return True
    long = copied.posts >= MIN_STRETCH_POSTS or copied.stretch_words > MIN_STRETCH_WORDS
    return copied.stretch > MAX_STRETCH and long


def _hollow(made: _Candidate) -> _Fault | None:
    if made.is_exempt:
        return None
    sources = (made.source_terms, made.previous_terms)
    if says_nothing(made.terms, sources, len(made.names) - len(made.unknown)):
        return _Fault(
            "the summarizer's answer says next to nothing of the conversation; look at its prompt and its server"
        )
    if made.kind == "changes":
        return None
    if names := names_nothing_new(made.terms, *sources):
        return _Fault("the summary says nothing of the new part of the conversation", names)
    return None


def _cut_off(made: _Candidate) -> _Fault | None:
    if made.kind == "changes" or made.is_extracted or not is_cut_off(made.said, made.source.text):
        return None
    return _Fault(f"the summary breaks off; raise the summarizer's limit of tokens, or lower {made.length_setting}")


def _larger(made: _Candidate) -> _Fault | None:
    return _replaces(made) if made.tokens > made.source.previous_tokens + made.source.tokens else None


def _no_progress(made: _Candidate) -> _Fault | None:
    most = made.source.previous_tokens + made.source.tokens * MIN_SAVING
    return _replaces(made) if made.tokens > most else None


def _replaces(made: _Candidate) -> _Fault:
    before, new = made.source.previous_tokens, made.source.tokens
    return _Fault(f"the summary has {made.tokens} tokens; what it replaces, {before} and {new} new ones")


def _oversized(made: _Candidate) -> _Fault | None:
    target = made.target_tokens
    if target is None or made.tokens <= MAX_OVER_TARGET * target:
        return None
    return _Fault(
        f"the summary has {made.tokens} tokens, over {MAX_OVER_TARGET:g} times the {target} it was asked for;"
        f" raise {made.length_setting}, or state the length in the prompt"
    )


def _voice(made: _Candidate) -> _Fault | None:
    # Offline, a call's arguments are told as they were: think(... I need to ...).
    if made.kind != "tool_run" or made.is_extracted or not in_own_voice(made.text):
        return None
    return _Fault(
        "the summarizer told of tool calls in the first person, which agents repeat to users; look at its prompt"
    )


def _invented(made: _Candidate) -> _Fault | None:
    found, among = len(made.unknown), len(made.names)
    if made.is_extracted:  # it makes up nothing, but names the beginnings of what is too long
        return None
    if found <= MAX_INVENTED or found <= MAX_INVENTED_SHARE * among:
        return None
    why = f"{found} of the {among} identifiers in the summary stand nowhere in what it was made from"
    return _Fault(why, made.unknown)


def _partial(made: _Candidate) -> _Fault | None:
    if made.is_extracted or not made.source.previous:
        return None
    # One that was to be shorter than the summary before cannot keep as much of it.
    before = made.source.previous_tokens or made.count(made.source.previous)
    room = 1.0 if made.target_tokens is None else min(1.0, made.target_tokens / max(before, 1))
    lost = find_missing(made.previous_terms, Terms(made.text), made.source_terms, MIN_KEPT * room)
    if lost is None:
        return None
    return _Fault(
        f"the summary keeps {lost.kept} of the {lost.total} identifiers, numbers and prohibitions of the one before it",
        lost.names,
    )


_CHECKS: dict[str, Callable[[_Candidate], _Fault | None]] = {
    "greeting": _greeting,
    "echo": _echo,
    "markup": _markup,
    "larger": _larger,
    "no_progress": _no_progress,
    "oversized": _oversized,
    "cut_off": _cut_off,
    "voice": _voice,
    "hollow": _hollow,
    "invented": _invented,
    "partial": _partial,
}
#: The names of all checks, in their order.
CHECKS = ("not_text", "empty", "malformed", *_CHECKS)
