"""Whether a summary says something of its source: "Done." and an error page do not."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from .terms import Terms

__all__ = ["names_nothing_new", "says_nothing"]

#: A source of fewer different words may be summed up in others.
MIN_SOURCE_WORDS = 8
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
    words = frozenset[str]().union(*(source.words for source in sources))
    if len(words) < MIN_SOURCE_WORDS:  # only what says nothing of anything is known
        return _NO_ANSWER.issuperset(_WORD.findall(said.text.casefold())) or (looks_like_error(said.text) and not known)
    own = said.words | said.numbers
    shared = own & words.union(*(source.numbers for source in sources))
    told = 2 * known + len(shared)
    least = 2 if len(words) >= _RICH_SOURCE else 1
    if looks_like_error(said.text):
        return told < _ENOUGH or len(shared) < _SHARE_OF_ERROR * len(own)
    if told >= _ENOUGH or (told >= least and len(shared) >= _SHARE * len(own)):
        return False
    if not any(said.is_in_the_language_of(source) for source in sources if source.words):
        return not told and len(said.words) < _OTHER_WORDS
    return True


def names_nothing_new(said: Terms, source: Terms, previous: Terms) -> tuple[str, ...]:
    """Return what *source* names and *previous* does not, where that is much and *said* has no word of it."""
    if not previous.text or not said.is_in_the_language_of(source):
        return ()
    before = previous.identifiers | previous.numbers
    new = (source.identifiers | source.numbers) - before
    if len(new) < _MANY_NEW or (said.all - previous.all) & source.all or (said.words - previous.words) & source.words:
        return ()
    return tuple(sorted(source.identifiers - before))


def looks_like_error(text: str) -> bool:
    """Return whether *text* begins as the messages and pages of servers do."""
    if _ERROR.match(text):
        return True
    if text.lstrip()[:1] != "{":
        return False
    try:
        value, _ = json.JSONDecoder(strict=False).raw_decode(text.lstrip())
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and bool(value) and all(str(key).casefold() in _ERROR_KEYS for key in value)
