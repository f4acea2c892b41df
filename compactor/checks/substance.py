"""Whether a summary says something of its source: "Done." and an error page do not."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence

from .terms import UNSPACED, Terms, is_telling

__all__ = ["had_nothing_to_say", "is_error_page", "looks_like_error", "names_nothing_new", "says_nothing"]

#: A source of fewer different words may be summed up in others.
MIN_SOURCE_WORDS = 8
#: A source of so few and nothing exact says nothing that could be summed up: greetings, "ok".
_HARDLY_A_WORD = 3
#: From so many on, one word of it is too little.
_RICH_SOURCE = 30
#: Where the words cannot be compared, a summary of so many says something at any rate.
_OTHER_WORDS = 8
#: At least this share of what a short answer says is of its source; of what reads as an error message, this much.
_SHARE, _SHARE_OF_ERROR = 0.25, 0.6
#: An answer with as many terms of its source is no chance.
_ENOUGH = 5
#: The new part names so many things, and a summary says none of them.
_MANY_NEW = 20
#: An answer of so few words, or characters of a script without spaces, names something or quotes as many in a row.
_HANDFUL, _QUOTED = 4, 3
_HANDFUL_UNSPACED, _QUOTED_UNSPACED = 6, 4

# What no summary is, whatever its words: pages, tracebacks and the status lines of servers.
_PAGE = re.compile(
    r"""\s{0,40}(?: <!doctype\s | <(?:html|head|body)\b | (?:<\?xml[^<>]{0,200}\?>)? \s{0,40}
        <(?:\w{1,20}:)?(?:error|fault)
      | traceback\ \(most\ recent | (?:http(?:/[\d.]{1,4})?\ )?[45]\d\d(?:\ [A-Za-z-]{1,20}){0,5}[.!]?\s{0,40}\Z )""",
    re.IGNORECASE | re.VERBOSE,
)
#: Only what reports a fault has these in its object; the others may stand in an honest one.
_FAULT_KEYS = frozenset(
    ["error", "errors", "fault", "faultstring", "exception", "errorcode", "error_code", "statuscode", "status_code"]
)
_FENCED = re.compile(r"\s{0,40}(?:```|~~~)\w{0,20}[ \t]*\n")

_ERROR = re.compile(
    r"""\s{0,40}(?: <!doctype | <\?xml | <html | <head | <body | traceback\ \(most
      | (?:\w{1,40}[. ]){0,4}\w{0,40}(?:error|exception|failure)\b | (?:error|code|status)\W{1,3}\d
      | (?:http(?:/[\d.]{1,4})?\ )?[45]\d\d\b | rate\ limit | upstream\b | too\ many\ requests
      | (?:this|the)\ model['’]s\ maximum | maximum\ context | context[ _]length | (?:access|permission)\ denied
      | (?:bad|invalid|unauthorized|forbidden)\ \w | failed\ to\b | unauthorized | connection\ \w
      | (?:the\ )?(?:request|server|service|model|engine|api)\ (?:was|is|had|has|failed|could|timed|does)\b )""",
    re.IGNORECASE | re.VERBOSE,
)
_ERROR_FIELDS = """
    error errors detail details message msg code status statuscode status_code type param reason title request_id
    requestid object success ok errorcode error_code errormessage error_message path timestamp trace_id fault
    faultstring instance exception documentation_url
"""
_ERROR_KEYS = frozenset(_ERROR_FIELDS.split())


#: What programs write for a text that they have not.
_NO_ANSWER = frozenset(
    [
        "done",
        "ok",
        "none",
        "null",
        "nil",
        "nan",
        "undefined",
        "true",
        "false",
        "n",
        "a",
        "na",
        "todo",
        "completed",
        "json",
    ]
)
_WORD = re.compile(r"\w+")


def says_nothing(said: Terms, sources: Sequence[Terms], known: int) -> bool:
    """Return whether *said* says next to nothing of *sources*, *known* of whose identifiers it names. False where that
    cannot be measured: where there is hardly a word to name, or where it is said in another language."""
    if is_error_page(said.text):
        return True
    if not looks_like_error(said.text) and sum(len(said.words_in(source)) for source in sources[:1]) >= _ENOUGH:
        return False
    words = frozenset[str]().union(*(source.words for source in sources))
    if len(words) < MIN_SOURCE_WORDS:  # only what says nothing of anything is known
        return _NO_ANSWER.issuperset(_WORD.findall(said.text.casefold())) or (looks_like_error(said.text) and not known)
    own = said.words | said.numbers
    shared = own & words.union(*(source.numbers for source in sources))
    told = 2 * known + len(shared)
    rich = len(words) >= _RICH_SOURCE
    if rich and not known and _is_a_handful(said.text) and not any(_names(said, source) for source in sources):
        return True
    least = 2 if rich else 1
    if looks_like_error(said.text):
        return told < _ENOUGH or len(shared) < _SHARE_OF_ERROR * len(own)
    if told >= _ENOUGH or (told >= least and len(shared) >= _SHARE * len(own)):
        return False
    if any(said.is_in_the_language_of(source) for source in sources if source.words):
        return True
    return len(said.words) < _OTHER_WORDS and not known and not any(_names(said, source) for source in sources)


def had_nothing_to_say(said: Terms, sources: Sequence[Terms]) -> bool:
    """Return whether *sources* hold hardly a word and nothing exact that *said* could have named, and it reports no
    error."""
    if any(source.numbers or source.identifiers for source in sources):
        return False
    words = frozenset[str]().union(*(source.words for source in sources))
    return len(words) <= _HARDLY_A_WORD and not (is_error_page(said.text) or looks_like_error(said.text))


def names_nothing_new(said: Terms, source: Terms, previous: Terms) -> tuple[str, ...]:
    """Return what *source* names and *previous* does not, where that is much and *said* has no word of it."""
    if not previous.text or said.words_in(source) - previous.words or not said.is_in_the_language_of(source):
        return ()
    before = previous.identifiers | previous.numbers
    new = (source.identifiers | source.numbers) - before
    if len(new) < _MANY_NEW or (said.all - previous.all) & source.all or (said.words - previous.words) & source.words:
        return ()
    return tuple(sorted(source.identifiers - before))


def _is_a_handful(text: str) -> bool:
    unspaced = sum(map(len, UNSPACED.findall(text)))
    spaced = len(_WORD.findall(UNSPACED.sub(" ", text)))
    return spaced <= _HANDFUL and unspaced <= (0 if spaced else _HANDFUL_UNSPACED)


def _names(said: Terms, source: Terms) -> bool:
    """Return whether *said* has a number or a name of *source*, or a few of its words in a row."""
    if said.numbers & source.numbers:
        return True
    read = source.text
    for run in UNSPACED.findall(said.text):
        parts = (run[at : at + _QUOTED_UNSPACED] for at in range(max(1, len(run) - _QUOTED_UNSPACED + 1)))
        if len(run) >= _QUOTED_UNSPACED and any(part in read for part in parts):
            return True
    words = _WORD.findall(said.text)
    rows = (words[at : at + _QUOTED] for at in range(len(words) - _QUOTED + 1))
    return any(any(map(is_telling, row)) and " ".join(row) in read for row in rows) or any(
        _is_name(word, read) for word in words if word[0].isupper()
    )


def _is_name(word: str, text: str) -> bool:
    """Return whether *text* has *word* with its capital where no sentence begins."""
    return is_telling(word) and re.search(rf"[\w,;] {re.escape(word)}\b", text) is not None


def is_error_page(text: str) -> bool:
    """Return whether *text* has the form of a page, a traceback or a message of a server, whatever its words are."""
    if _PAGE.match(text):
        return True
    value = _object(text)
    return value is not None and any(str(key).casefold() in _FAULT_KEYS for key in value) and _is_error(value)


def looks_like_error(text: str) -> bool:
    """Return whether *text* begins as the messages and pages of servers do."""
    if _ERROR.match(text):
        return True
    value = _object(text)
    return value is not None and _is_error(value)


def _is_error(value: Mapping[object, object]) -> bool:
    return bool(value) and all(str(key).casefold() in _ERROR_KEYS for key in value)


def _object(text: str) -> Mapping[object, object] | None:
    """Return the JSON object that *text* begins with, fenced or not."""
    if fence := _FENCED.match(text):
        text = text[fence.end() :]
    text = text.lstrip()
    if text[:1] != "{":
        return None
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
