"""The checks that a summary must pass before prompts show it. They run in this order and reject:

``not_text``     neither a text nor a ``Summary`` with a text
``empty``        no letter and no digit
``malformed``    not the requested note edits
``greeting``     a reply to the conversation: it greets, offers help or refuses
``echo``         mostly copied in runs of words, and the runs are many or make up much of the source
``markup``       contains tags of the request, outside quoted code
``larger``       longer in prompts than everything it replaces
``no_progress``  saves less than a tenth of the new rounds; repeating the previous summary in full is allowed
``oversized``    over twice the requested length
``cut_off``      ends inside a code block, JSON, a sentence or a word
``voice``        for tool calls: the assistant's first person ("I called ..."), which agents repeat to users
``hollow``       says next to nothing of its source, or nothing of the new rounds
``invented``     over 3 of its identifiers, and over a quarter of them, are absent from its source
``partial``      keeps under a third of the identifiers, numbers and prohibitions of the previous summary, or under a
                 third of the names that the new rounds do not repeat, or under a tenth of the words found only there

For note edits, the length checks measure all resulting notes; the checks for replies, echoes and inventions read only
the new ones. A check with nothing to measure rejects nothing: small talk has no names, and words of two languages
cannot be compared. The offline summarizer's text is never rejected for copying, omissions or cuts: a second attempt
would return the same text.
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
from .content import Terms, find_identifiers, find_unknown, had_nothing_to_say, names_nothing_new, says_nothing
from .copying import bare, has_markup, measure_copied, repeats
from .prohibitions import find_missing

_FENCE = ("```", "~~~")
_END = frozenset(".!?…。！？।۔:;)]}\"'”’»」』`*_>|")
_FULL_STOP = frozenset(".!?…。！？।۔")
_PAIRS = (("(", ")"), ("[", "]"), ("“", "”"), ("「", "」"), ("«", "»"))
#: No sentence ends with one of these words.
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
#: Maximum length in characters of a last line to check; a longer line is data.
_LONGEST = 4_000
#: Minimum words of a sentence, and minimum sentences with a full stop that show this text ends its sentences.
_SENTENCE, _OTHERS = 6, 2
#: Number of last words to search for in the source.
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
    clause = _CLAUSE_END.split(last)[-1]  # earlier brackets may be open on purpose, as in a piece of code
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
    """Return whether a line or sentence of *source* ends as *line* does: questions may end in "is" or "from"."""
    tail = " ".join(line.rsplit(maxsplit=_TAIL)[-_TAIL:])
    return re.search(rf"{re.escape(tail)}[ \t]{{0,40}}(?:[.!?…]|$)", source, re.IGNORECASE | re.MULTILINE) is not None


def _is_piece(word: str, text: str, source: str) -> bool:
    """Return whether *word* occurs elsewhere, and only as the beginning of longer words: then it is cut off."""
    if len(word) < 2 or not (word.isascii() and word.isalpha()):
        return False
    low = word.casefold()
    written = re.compile(rf"(?<![^\W_]){re.escape(low)}([^\W_]?)")
    found = [
        match[1] for read in (text[: -len(word)].casefold(), source.casefold()) for match in written.finditer(read)
    ]
    return bool(found) and "" not in found


def _others_end(lines: list[str], words: int) -> bool:
    """Return whether *lines* end their sentences with a full stop, and the last line has enough *words* to need one."""
    said = [line.rstrip() for line in lines if len(line.split()) >= _SENTENCE]
    return words >= _SENTENCE and len(said) >= _OTHERS and all(line[-1] in _FULL_STOP for line in said)


# --- detect the first person: agents repeat "I called ..." to their users


# Every quote is bounded and cannot contain its own opening mark: unclosed marks must not cost quadratic time.
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
    """Return *pattern* with escaped spaces, for use in a verbose pattern."""
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
    """Return whether a sentence of *text* reports in the first person: "I called ...", "We will ...".

    Text in quotation marks, in code or behind a result's arrow belongs to another speaker and does not count. This is
    a guess by patterns, in time linear in *text*.
    """
    return _OWN_VOICE.search(_OTHER_SPEAKERS.sub(" … ", text)) is not None


# --- limits and records of the checks ---------------------------------------------------------------------------------


#: Converts an answer in another form to a summary; raises ``SummaryRejected`` if it cannot.
AnswerParser = Callable[[str], Summary]

#: Maximum growth of a summary, as a share of the new rounds that it covers.
MIN_SAVING = 0.9
#: With fewer tokens of new rounds, no summarizer can be expected to be shorter and still include all required parts.
MIN_TOKENS = 32
#: Maximum length, as a multiple of the requested length: models count badly.
MAX_OVER_TARGET = 2.0
#: Unknown identifiers allowed, by number and by share of all: a summary may compute or combine some.
MAX_INVENTED = 3
MAX_INVENTED_SHARE = 0.25
# A summary is an echo if too much of it is copied in runs of words. The limit depends on the copied share of the
# source: ``_is_copied`` applies the rules, and ``benchmarks/acceptance.py`` measures them.
#: First rule: more than the first share of the summary is copied, and more than the second share of the source.
MAX_COPIED = 0.75
MAX_COPIED_OF_SOURCE = 0.3
#: The same for a summary that is copied almost entirely.
ALL_COPIED = 0.9
MAX_ALL_COPIED_OF_SOURCE = 0.18
#: Second rule, for long sources: minimum copied share of the summary, number of runs, and share of the source.
MOSTLY_COPIED = 0.7
MANY_COPIED = 80
MANY_COPIED_OF_SOURCE = 0.08
#: The same with more than this many runs and any share of the source.
MAX_COPIED_RUNS = 400
#: Third rule: one stretch of the source makes up more than this share of the summary,
MAX_STRETCH = 0.6
#: and covers at least this many posts, or has more than this many words.
MIN_STRETCH_POSTS = 4
MIN_STRETCH_WORDS = 200
#: Sources with fewer words are not checked: a summary may have to quote them.
MIN_MEASURED_WORDS = 50
#: Minimum share of the previous summary's names that the new one keeps.
MIN_KEPT = 1 / 3


@dataclass(frozen=True, slots=True)
class Source:
    """The input of a summary, against which the checks measure it."""

    #: The conversation as the summarizer read it, without the previous summary: a new summary may repeat that word
    #: for word if the new rounds add nothing.
    text: str
    #: Tokens of all new rounds that the summary covers. If it can be published, counted as prompts show them, minus the
    #: frame if it is new. After the first request, more than the tokens of ``text``.
    tokens: int
    #: Tokens of the published summary that the new one replaces.
    previous_tokens: int = 0
    #: Other sources of identifiers: the previous summary, the plan.
    beside: tuple[str, ...] = ()
    #: Texts of the notes before the edits; unchanged notes are not judged again.
    notes: frozenset[str] = frozenset()
    #: Tokens of the rounds in this request; None: the tokens of ``text``.
    sent: int | None = None
    #: Tokens of the frame around the summary in a prompt. Any growth over the old frame is subtracted from ``tokens``.
    frame: int = 0
    #: The summary that this one continues or replaces.
    previous: str = ""


class CheckedSummary(NamedTuple):
    #: The answer without the tags around it, or the summary parsed from it.
    summary: Summary
    tokens: int
    #: Identifiers that no source contains.
    unknown: tuple[str, ...]
    #: The answer before parsing, without the tags around it.
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
    #: The resulting summary and its tokens.
    text: str
    tokens: int
    #: Its new text: without unchanged notes.
    new: str
    #: True if the offline summarizer chose it from the source; it would choose the same again.
    is_extracted: bool
    #: True if its words are not judged: it is extracted, or changes nothing.
    is_exempt: bool
    #: The identifiers in ``new``, and the subset that no source contains.
    names: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    #: The words of ``new``, of the source and of the previous summary.
    terms: Terms = _NO_TERMS
    source_terms: Terms = _NO_TERMS
    previous_terms: Terms = _NO_TERMS

    def read_content(self) -> None:
        """Read names and words. This takes longer than all earlier checks together."""
        source = self.source
        self.names = find_identifiers(self.new)
        self.unknown = find_unknown(self.names, (source.text, source.previous, *source.beside))
        self.terms, self.source_terms = Terms(self.new), Terms(bare(source.text))
        self.previous_terms = Terms(source.previous)


class _Fault(NamedTuple):
    """The reason for a rejection, and the names to mention when the summarizer is asked again."""

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

    *parse* converts an answer in another form to a summary. Errors name *length_setting* as the setting to change.

    Raises ``SummaryRejected`` with the name of the first of ``CHECKS`` that fails.
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
    if parse is not None:  # after the tags are stripped: text inside a note is no tag around the answer
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
    """Return whether the source is too small to shorten, so the answer is not at fault.

    A *deterministic* summarizer would return the same text again, so any length or ``hollow`` rejection counts. For
    others, the source must have fewer than ``MIN_TOKENS`` tokens or hardly a word worth summarising.
    """
    if deterministic:
        return rejected.check in ("larger", "no_progress", "hollow")
    if rejected.had_nothing_to_say:
        return True
    return rejected.check in ("larger", "no_progress") and (rejected.tokens or MIN_TOKENS) < MIN_TOKENS


# -- the checks: each returns the fault, or None ----------------------------------------------------------------------


def _greeting(made: _Candidate) -> _Fault | None:
    if made.is_exempt or not is_reply(made.new):  # an extracted summary quotes; it greets nobody
        return None
    return _Fault("the summarizer replied to the conversation instead of summarising it; look at its prompt")


def _markup(made: _Candidate) -> _Fault | None:
    if made.is_exempt or not has_markup(made.new):  # a quotation may mention tags
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
    # An extracted summary copies a call's arguments unchanged: think(... I need to ...).
    if made.kind != "tool_run" or made.is_extracted or not in_own_voice(made.text):
        return None
    return _Fault(
        "the summarizer told of tool calls in the first person, which agents repeat to users; look at its prompt"
    )


def _invented(made: _Candidate) -> _Fault | None:
    found, among = len(made.unknown), len(made.names)
    if made.is_extracted:  # it invents nothing, but cuts long identifiers short
        return None
    if found <= MAX_INVENTED or found <= MAX_INVENTED_SHARE * among:
        return None
    why = f"{found} of the {among} identifiers in the summary stand nowhere in what it was made from"
    return _Fault(why, made.unknown)


def _partial(made: _Candidate) -> _Fault | None:
    if made.is_extracted or not made.source.previous:
        return None
    # A summary with a target below the previous length cannot keep as much of it.
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
