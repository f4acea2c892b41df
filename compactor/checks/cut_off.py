"""Tell an answer that breaks off from one that is finished. A guess, on the safe side: notes need no full stop."""

from __future__ import annotations

import json
import re

__all__ = ["is_cut_off"]

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
