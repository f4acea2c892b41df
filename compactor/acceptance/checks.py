"""The checks that a summary must pass before prompts show it. They run in this order and reject:

``not_text``         neither a text nor a ``Summary`` with a text
``empty``            no letter and no digit
``malformed``        not the requested note edits
``greeting``         a reply to the conversation: it greets, offers help or refuses
``echo``             mostly copied in runs of words, and the runs are many or make up much of the source
``markup``           contains tags of the request, outside quoted code
``larger``           longer in prompts than everything it replaces
``no_progress``      saves less than a tenth of the new rounds; repeating the previous summary in full is allowed
``oversized``        over twice the requested length
``cut_off``          ends inside a code block, JSON, a sentence or a word
``first_person``     for tool calls: the assistant's first person ("I called ..."), which agents repeat to users
``hollow``           says next to nothing of its source, or nothing of the new rounds, or repeats its instructions
``invented``         over 3 of its identifiers, and over a quarter of them, are absent from its source
``forgets_previous`` keeps under a third of the identifiers, numbers and prohibitions of the previous summary, or under
                     a third of the names that the new rounds do not repeat, or under a tenth of the words found only
                     there

For note edits, the length checks measure all resulting notes; the checks for replies, echoes and inventions read only
the new ones. A check with nothing to measure rejects nothing: small talk has no names, and words of two languages
cannot be compared. But if the request asks for the conversation's language, an answer of some length that is neither in
that language nor in the request's must quote the conversation. The offline summarizer's text is never rejected for
copying, omissions or cuts: a second attempt would return the same text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memory.patterns import compile_later
from memory.rounds import copy_with
from memory.values import ValueObject
from prompts import TAGS

from ..errors import SummaryRejected
from ..summarizers.answers import is_reply, strip_tags
from ..summarizers.base import RequestKind, Summary
from ..summarizers.content import (
    UNSPACED_LETTERS,
    Terms,
    find_identifiers,
    find_unknown,
    had_nothing_to_say,
    names_nothing_new,
    says_nothing,
)
from ..tokens import TokenCounter
from .prohibitions import find_missing

#: All checks in their order, each with what an answer that failed it was.
CHECKS = {
    "not_text": "the answer was not text",
    "empty": "the answer was empty",
    "malformed": "the answer did not have the requested form",
    "greeting": "the answer replied to the conversation instead of summarizing it",
    "echo": "the answer mostly copied the conversation",
    "markup": "the answer contained tags of the request",
    "larger": "the answer was longer than what it should replace",
    "no_progress": "the answer saved too little",
    "oversized": "the answer was over twice the requested length",
    "cut_off": "the answer ended in the middle",
    "first_person": "the answer spoke as the assistant, and agents repeat that to users",
    "hollow": "the answer contained next to nothing of its source",
    "invented": "the answer named things that its source does not contain",
    "forgets_previous": "the answer lost too much of the summary before it",
}
#: Converts an answer in another form to a summary; raises ``SummaryRejected`` if it cannot.
AnswerParser = Callable[[str], Summary]

#: Maximum growth of a summary, as a share of the new rounds that it covers.
MIN_SAVING = 0.9
#: With fewer tokens of new rounds, no summarizer can be expected to be shorter and still include all required parts.
MIN_TOKENS = 32
#: Maximum length, as a multiple of the requested length: models count badly.
MAX_OVER_TARGET = 2.0
#: Tokens of conversation in which something is new: an answer may change nothing after fewer.
MIN_NEWS = 1_000
#: Unknown identifiers allowed, by number and by share of all: a summary may compute or combine some.
MAX_INVENTED, MAX_INVENTED_SHARE = 3, 0.25
#: With these words, a request asks for the language in which a conversation is held.
_LANGUAGE = "in the language of the conversation"
#: Minimum share of the previous summary's names that the new one keeps.
MIN_KEPT = 1 / 3


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Source(ValueObject):
    """The input of a summary, against which the checks measure it."""

    #: The conversation as the summarizer read it, without the previous summary: a new summary may repeat that word
    #: for word if the new rounds add nothing.
    text: str
    #: Tokens of all new rounds that the summary covers. If it can be published, counted as prompts show them, minus the
    #: wrapper if it is new. After the first request, more than the tokens of ``text``.
    tokens: int
    #: Tokens of the published summary that the new one replaces.
    previous_tokens: int = 0
    #: Other sources of identifiers: the previous summary, the plan.
    beside: tuple[str, ...] = ()
    #: Texts of the notes before the edits; unchanged notes are not judged again.
    notes: frozenset[str] = frozenset()
    #: Tokens of the rounds in this request; None: the tokens of ``text``.
    sent: int | None = None
    #: Tokens around the summary in a prompt. Any growth over those of the old summary is subtracted from ``tokens``.
    wrapper_tokens: int = 0
    #: The summary that this one continues or replaces.
    previous: str = ""
    #: What the request says beside the conversation and the previous summary.
    instructions: str = ""

    def refuse(
        self, check: str, reason: str, identifiers: tuple[str, ...] = (), *, had_nothing_to_say: bool = False
    ) -> SummaryRejected:
        """Return the refusal of a summary of this by *check*, one of ``CHECKS``."""
        tokens = self.tokens
        return SummaryRejected(check, reason, identifiers, tokens=tokens, had_nothing_to_say=had_nothing_to_say)


class CheckedSummary(NamedTuple):
    #: The answer without the tags around it, or the summary parsed from it.
    summary: Summary
    tokens: int
    #: Identifiers that no source contains.
    unknown: tuple[str, ...]
    #: The answer before parsing, without the tags around it.
    said: str
    #: How many of the user's prohibitions, which it lost, were put back.
    restored: int = 0


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
    summary, said, new = _read_answer(answer, source, kind, parse)
    # An extract quotes: it invents nothing, and what it leaves out or cuts off, the next one would, too.
    is_extracted = isinstance(answer, Summary) and answer.extracted
    news = ""
    if (source.sent or 0) >= MIN_NEWS:
        if kind == "changes" and {note.text for note in summary.notes} == source.notes:
            raise source.refuse("hollow", "the answer changes nothing after a long piece of conversation")
        if kind == "rounds" and source.previous and not is_extracted:
            news = find_news(said, source.previous)
            if not news:
                reason = "the summary is the previous one again, after a long piece of conversation"
                raise source.refuse("hollow", reason)

    tokens = count(summary.text)
    _check_length(tokens, source, target_tokens, length_setting)
    if not is_extracted and kind != "changes" and is_cut_off(said, source.text):
        reason = f"the summary is cut off; raise the summarizer's token limit, or lower {length_setting}"
        raise source.refuse("cut_off", reason)
    if not is_extracted and kind == "tool_run" and is_in_first_person(summary.text):
        reason = "the summary reports tool calls in the first person, which agents repeat to users; check the prompt"
        raise source.refuse("first_person", reason)

    names = find_identifiers(new)
    unknown = find_unknown(names, (source.text, source.previous, *source.beside))
    if not is_extracted:
        sources = Terms(strip_markup(source.text)), Terms(source.previous)
        if new:
            _check_content(new, source, sources, kind, len(names) - len(unknown))
        if news and _adds_nothing(Terms(news), sources):
            raise source.refuse("hollow", "what the summary adds says nothing about the new rounds")
        if len(unknown) > max(MAX_INVENTED, MAX_INVENTED_SHARE * len(names)):
            reason = f"{len(unknown)} of the {len(names)} identifiers in the summary are absent from its source"
            raise source.refuse("invented", reason, unknown)
        if source.previous:
            # A summary with a target below the previous length cannot keep as much of it.
            length = max(source.previous_tokens or count(source.previous), 1)
            share = 1.0 if target_tokens is None else min(1.0, target_tokens / length)
            _check_kept(Terms(summary.text), source, sources, MIN_KEPT * share)
    return CheckedSummary(summary, tokens, unknown, said)


def _read_answer(
    answer: object, source: Source, kind: RequestKind, parse: AnswerParser | None
) -> tuple[Summary, str, str]:
    """Return the summary that *answer* is, its text before *parse* converted it, and what of it is new: its new notes
    if it edits notes, else all of it.

    Raises ``SummaryRejected`` if it is none: without text, in another form, a reply, a copy, or with our tags in it.
    """
    given = Summary(answer) if isinstance(answer, str) else answer
    if not isinstance(given, Summary) or not isinstance(given.text, str):
        reason = f"the summarizer returned {type(answer).__name__}; it must return a str or a Summary"
        raise source.refuse("not_text", reason)
    new = said = strip_tags(given.text)
    if not said or not (kind == "changes" or any(map(str.isalnum, said))):
        raise source.refuse("empty", "the summarizer's answer contains no text; check its prompt and its token limit")
    summary = copy_with(given, text=said, notes=())
    if parse is not None:  # after the tags are stripped: text inside a note is no tag around the answer
        try:
            summary = copy_with(parse(said), usage=given.usage, model=given.model, payload=given.payload)
        except SummaryRejected as error:
            raise source.refuse("malformed", str(error)) from None
    if kind == "changes":
        new = "\n".join([note.text for note in summary.notes if note.text not in source.notes])
    if not new or given.extracted:  # an extract quotes, so it greets nobody
        return summary, said, new
    if is_reply(new):
        raise source.refuse("greeting", "the summarizer replied to the conversation; check its prompt")
    if is_copied(new, source.text):
        raise source.refuse("echo", "the summary repeats the conversation")
    if ("<" in new or "‹" in new) and has_markup(new):
        raise source.refuse("markup", "the summary repeats the tags of the request; check the summarizer's prompt")
    return summary, said, new


def _check_length(tokens: int, source: Source, target_tokens: int | None, length_setting: str) -> None:
    """Raise ``SummaryRejected`` if so many *tokens* make no prompt clearly shorter, or far exceed the target."""
    before, added = source.previous_tokens, source.tokens
    sizes = f"the summary has {tokens} tokens; the previous one has {before} and the new rounds {added}"
    if tokens > before + added:
        raise source.refuse("larger", sizes)
    if tokens > before + added * MIN_SAVING:
        raise source.refuse("no_progress", sizes)
    if target_tokens is not None and tokens > MAX_OVER_TARGET * target_tokens:
        reason = f"the summary has {tokens} tokens, over {MAX_OVER_TARGET:g} times the target of {target_tokens}"
        raise source.refuse("oversized", f"{reason}; raise {length_setting}, or state the length in the prompt")


def _check_content(text: str, source: Source, sources: tuple[Terms, Terms], kind: RequestKind, known: int) -> None:
    """Raise ``SummaryRejected`` if *text* says next to nothing of *sources*, the new rounds and the previous summary.
    *known* is the number of their identifiers that it names."""
    terms = Terms(text)
    is_part = kind != "rounds"
    request = None if is_part or _LANGUAGE not in source.instructions else Terms(source.instructions)
    if says_nothing(terms, sources, known, is_part=is_part, request=request):
        reason = "the summary says next to nothing about the conversation; check the summarizer's prompt and server"
        raise source.refuse("hollow", reason, had_nothing_to_say=had_nothing_to_say(terms, sources))
    if kind != "changes" and source.instructions and is_from_instructions(text, source):
        reason = "the summary repeats the instructions of the request; check the summarizer's model"
        raise source.refuse("hollow", reason)
    news_tokens = source.sent if kind == "rounds" and source.sent and source.sent >= MIN_NEWS else 0
    if kind != "changes" and source.previous and (missed := names_nothing_new(terms, *sources, tokens=news_tokens)):
        raise source.refuse("hollow", "the summary says nothing about the new rounds", missed)


def _check_kept(terms: Terms, source: Source, sources: tuple[Terms, Terms], share: float) -> None:
    """Raise ``SummaryRejected`` if *terms* are less than that *share* of what the previous summary names."""
    if missing := find_missing(sources[1], terms, sources[0], share):
        kept, total, lost = missing
        reason = f"the summary keeps {kept} of {total} names, numbers and prohibitions of the previous one"
        raise source.refuse("forgets_previous", reason, lost)


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


#: Words in a row that count as copied; a shorter match may be a common phrase.
RUN = 6
_NAMES = "|".join(TAGS)
_TAG = compile_later(rf"</?(?:{_NAMES})\b[^<>]*>", re.IGNORECASE)
# In scripts without spaces, each character is a word.
_COPIED_WORD = compile_later(rf"[{UNSPACED_LETTERS}]|[^\W_{UNSPACED_LETTERS}]+")
#: Separates two posts; no text contains it.
_POST = "\0"


def strip_markup(text: str, between: str = " ") -> str:
    """Return *text* without transcript tags and with single spaces."""
    return " ".join(_TAG.sub(f" {between} ", text.replace("&lt;", "<")).split())


_SENTENCE_ENDS = compile_later(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


def find_news(text: str, previous: str) -> str:
    """Return the sentences of *text* that do not stand in *previous*, each on a line."""
    known = " ".join(previous.split()).casefold()
    sentences = (" ".join(sentence.split()).strip("-*• ") for sentence in _SENTENCE_ENDS.split(text))
    return "\n".join(sentence for sentence in sentences if sentence.casefold() not in known)


def _adds_nothing(news: Terms, sources: Sequence[Terms]) -> bool:
    """Return whether *news*, the new sentences of a summary, says next to nothing of *sources*: the new rounds, and the
    previous summary, because one sentence may tell old and new things together.

    Up to four words say something if one of them stands in the new rounds.
    """
    known = len(news.identifiers) - len(find_unknown(news.identifiers, [source.text for source in sources]))
    is_longer = len(news.text.split()) > 4
    return says_nothing(news, sources, known, is_part=True) and (is_longer or news.words.isdisjoint(sources[0].words))


def is_from_instructions(text: str, source: Source) -> bool:
    """Return whether half of the runs of words in *text* stand in the instructions, and in no source of a summary."""
    own, asked, known = [
        set(zip(*(words[start:] for start in range(RUN)), strict=False))
        for words in (
            _COPIED_WORD.findall(one.casefold())
            for one in (text, source.instructions, "\n".join((source.previous, *source.beside)))
        )
    ]
    return bool(own) and 2 * len((own & asked) - known) >= len(own)


def is_copied(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, or too much of it is copied from there
    in runs of words. Ignores markup, and punctuation in runs.

    Takes time linear in both. Different runs are counted, so repetition in either text does not count as more copying.
    """
    plain, marked = strip_markup(text), strip_markup(source, _POST)
    whole = " ".join(marked.replace(_POST, " ").split())
    if 2 * len(plain) >= len(whole) and plain in whole:
        return True
    said = _COPIED_WORD.findall(plain.casefold())
    read: list[str] = []
    posts: list[int] = []  # the number of each word's post
    for number, post in enumerate(marked.split(_POST)):
        words = _COPIED_WORD.findall(post.casefold())
        read += words
        posts += [number] * len(words)
    if len(read) < 50:
        return False  # a summary may have to quote so short a source
    # A hash for each run of words.
    own, theirs = [
        list(map(hash, zip(*(words[start:] for start in range(RUN)), strict=False))) for words in (said, read)
    ]
    wanted, there = set(own), set(theirs)
    copied = end = 0
    for place, run in enumerate(own):
        if run in there:
            copied += place + RUN - max(place, end)
            end = place + RUN
    share, runs = copied / max(len(said), 1), len(wanted & there)
    if share <= 0.6:
        return False
    of_source = runs / max(len(there), 1)
    # Most of the summary is copied, and much of the source. ``benchmarks/acceptance.py`` measures all limits.
    if share > 0.75 and of_source > (0.18 if share > 0.9 else 0.3):
        return True
    # Of a long source, a smaller share is enough.
    if share > 0.7 and (runs > 400 or (runs > 80 and of_source > 0.08)):
        return True
    return _has_long_stretch(theirs, wanted, posts, len(said))


def _has_long_stretch(runs: Sequence[int], wanted: set[int], posts: Sequence[int], length: int) -> bool:
    """Return whether one stretch of *runs*, of a source, is *wanted* and makes up most of a text of *length* words, and
    is of several posts or has many words. *posts* has the number of each word's post."""
    stretch = posts_of_stretch = start = end = 0
    for place, run in enumerate(runs):
        if run in wanted:
            start, end = (start if place <= end else place), place + RUN
            if stretch < end - start <= length:  # a longer stretch means that the source repeats itself
                stretch, posts_of_stretch = end - start, posts[end - 1] - posts[start] + 1
    return stretch / length > 0.6 and (posts_of_stretch >= 4 or stretch > 200)


# Tags of the request with a round's number, or with these attributes, perhaps after a sender; the transcript escapes
# such tags in the text of a conversation.
_HEAD = compile_later(
    r"[<‹](?:round \d+[ >›]"
    r'|(?:message|attachment|tool_call|tool_result|summary) (?:[\w.-]{1,320} )?(?:from|id|name|type|to|at)=")',
    re.IGNORECASE,
)
#: Tags without attributes, which other texts use too, or with a sender alone. These match at the start of a line and
#: close there or later.
_OPENING = compile_later(
    rf"^[ \t]{{0,20}}[<‹]({_NAMES})(?: [\w.-]{{1,320}})?[>›](?P<alone>[ \t]{{0,20}}$)?", re.IGNORECASE | re.MULTILINE
)
_CLOSING = compile_later(rf"[<‹]/({_NAMES})[>›]", re.IGNORECASE)
_CLOSING_LINE = compile_later(rf"^[ \t]{{0,20}}[<‹]/(?:{_NAMES})[>›][ \t]{{0,20}}$", re.IGNORECASE | re.MULTILINE)
_CODE = compile_later(r"(?<!\A)^[ \t]{0,3}(```|~~~).*?(?:^[ \t]{0,3}\1|\Z)|`[^`\n]{1,300}`", re.MULTILINE | re.DOTALL)


def has_markup(text: str) -> bool:
    """Return whether *text* contains tags of our requests.

    Tags in code do not count, nor tags without attributes inside a sentence: the text only mentions them. A code block
    at the start of the text is treated as a wrapper, so its tags count.
    """
    text = _CODE.sub(" ", text)
    if _HEAD.search(text) or _CLOSING_LINE.search(text):
        return True
    last = {tag[1].casefold(): tag.start() for tag in _CLOSING.finditer(text)}
    opening = _OPENING.finditer(text)
    return any(tag["alone"] is not None or last.get(tag[1].casefold(), -1) > tag.start() for tag in opening)


# A text that is cut off.

_FENCE = ("```", "~~~")
_END = frozenset(".!?…。！？।۔:;)]}\"'”’»」』`*_>|")
_FULL_STOP = frozenset(".!?…。！？।۔")
_PAIRS = (("(", ")"), ("[", "]"), ("“", "”"), ("「", "」"), ("«", "»"))
#: No sentence ends with one of these words.
_GOES_ON_WORDS = """
    a an and as at because but by for from if in into is nor of or per than that the their to was were which while with
    whose
    und oder der die das ein eine mit von zu et ou le la les une de des avec y o el los las una con del il lo di che
"""
_GOES_ON = frozenset(_GOES_ON_WORDS.split())
_WORD = compile_later(r"[^\W_]+")
_MARK = compile_later(r"[ \t]{0,40}(?:[-*+•–]|\d{1,3}[.)])[ \t]{0,40}$")
_CLAUSE_END = compile_later(r"[.;!?] ")
#: Minimum words of a sentence.
_MIN_SENTENCE = 6
#: Maximum letters by which a form of a word is longer than another one.
_MAX_INFLECTION = 3


def is_cut_off(text: str, source: str) -> bool:
    """Return whether *text*, made from *source*, ends within a block of code, JSON, a sentence or a word."""
    text = text.strip()
    if not text:
        return False
    if text[0] in "{[" and text[-1] not in "}]" and _begins_as_json(text):
        return True
    lines = text.splitlines()
    if sum(line.lstrip()[:3] in _FENCE for line in lines) % 2:
        return True
    last = lines[-1].strip()
    if not last or len(last) > 4_000 or last.startswith(("|", "#")):
        return False  # so long a line is data
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
    if _is_piece(words[-1], text, source):
        return True
    # All other sentences end with a full stop, and the last line has enough words to need one.
    sentences = [line.rstrip() for line in lines[:-1] if len(line.split()) >= _MIN_SENTENCE]
    has_stops = len(sentences) >= 2 and all(line[-1] in _FULL_STOP for line in sentences)
    return has_stops and len(words) >= _MIN_SENTENCE


def _begins_as_json(text: str) -> bool:
    try:
        json.JSONDecoder(strict=False).raw_decode(text)
    except RecursionError:
        return True
    except ValueError:
        return re.match(r'[{\[]\s{0,100}["{\[]', text) is not None
    return False


def _ends_there(line: str, source: str) -> bool:
    """Return whether a line or sentence of *source* ends as *line* does: questions may end in "is" or "from"."""
    tail = " ".join(line.rsplit(maxsplit=3)[-3:])
    return re.search(rf"{re.escape(tail)}[ \t]{{0,40}}(?:[.!?…]|$)", source, re.IGNORECASE | re.MULTILINE) is not None


def _is_piece(word: str, text: str, source: str) -> bool:
    """Return whether *word* occurs elsewhere, and only as the beginning of longer words: then it is cut off.

    A few letters more are another form of the same word, such as "opened" of "open".
    """
    if len(word) < 2 or not (word.isascii() and word.isalpha()):
        return False
    written = re.compile(rf"(?<![^\W_]){re.escape(word.casefold())}([^\W_]*+)")
    rests = {len(rest) for read in (text[: -len(word)], source) for rest in written.findall(read.casefold())}
    return min(rests, default=0) > _MAX_INFLECTION


# The first person: agents repeat "I called ..." to their users.

# Every quote is bounded and cannot contain its own opening mark: unclosed marks must not cost quadratic time.
_OTHER_SPEAKERS = compile_later(
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
_BEGINNING, _PASSIVE = ((pattern.replace(" ", r"\ ")) for pattern in (_LEAD + _CLAUSE, _BY_ME))
_FIRST_PERSON = compile_later(
    rf"""(?:^|[.!?;…]\s|[。！？；]) [\s>*_#()\d.•–-]{{0,20}}+
      (?: {_BEGINNING}
          (?: (?:i|we) (?: ['’](?:ve|d|ll|m|re)\b | \ (?!/|-)[a-z] )
            | my\ (?:next|first|last|search|query|call|tool) )
        | ich\ (?:habe|werde|rief) | j['’](?:ai|appelle) | je\ (?:vais|suis) | he\ (?:llamado|buscado|ejecutado|usado)
        | ho\ (?:chiamato|cercato|eseguito|usato) | (?:eu\ )?(?:chamei|executei|pesquisei) | я\ \w | ik\ heb
        | 我(?:已|们|調用|调用|搜索|查询|使用|执行|運行|运行|先|將|会|會) | 私は | 제가 | 저는 )
    | {_PASSIVE}""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


def is_in_first_person(text: str) -> bool:
    """Return whether a sentence of *text* reports in the first person: "I called ...", "We will ...".

    Text in quotation marks, in code or behind a result's arrow belongs to another speaker and does not count. This is
    a guess by patterns, in time linear in *text*.
    """
    return _FIRST_PERSON.search(_OTHER_SPEAKERS.sub(" … ", text)) is not None
