"""What a text names and with which words: the one measure of what a summary keeps of another text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from memory.once import once

from ..summarizers.facts import CJK, content
from .identifiers import identifiers

__all__ = ["UNSPACED", "Terms", "find_telling_terms", "is_telling"]

#: Scripts without spaces between words: theirs are compared by pairs of characters.
UNSPACED = re.compile(f"[{CJK}\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]+")
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:[.:]\d+)*")
_THOUSANDS = re.compile(r"(?<=\d)[,.'’\u00a0\u202f](?=\d{3}(?!\d))")
_CENTS = re.compile(r"(?<=\d)[.,]0{1,2}(?!\d)")
#: Words are the same if they begin alike: inflections differ at the end.
_STEM = 5
#: Most frequent words of a text, by which its language is known.
_FREQUENT = 40
#: In the same language, at least this share of words is among them.
_SAME_LANGUAGE = 0.06

# What summaries, error messages and replies say of anything: alone, it tells nothing of a conversation.
_EMPTY_WORDS = """
    above access actions additional agent agreed ai all already also amet answer answered answers any api appears
    applicable asked assist assistance assistant attempt auth authentication author availability available bad bar baz
    been before begin being below body both brief briefly broken busy call called came cannot capacity center chat
    clear code come comment comments complete completed completion concluded connect connection contained contains
    content context continue continued continues conversation conversations could covered covers current currently
    data default denied described description detail detailed details dialog dialogue did discussed discussion doctype
    dolor done due during each earlier empty encountered end ended ends entire error errors even everything exceeded
    exception exchange exchanged expired explained failed failure false fatal few file fine first follow followed
    following follows foo forbidden found full further gateway general generate generated get given good got great had
    handled happened has have head help helped helpful here history hr href html http https human important in include
    included includes including information input instruction instructions interaction internal invalid involved ipsum
    issue issues key kindly know last later latest length let limit limited line list long lorem made main many
    maximum may message messages meta missing model more most much nan named need needed needs never next nginx nil no
    none not note noted notes nothing null number object of ok okay one ongoing only organization other outcome output
    over overall overload overloaded overview param parsed parties pending per perform performed permission placeholder
    please point points possible previous previously problem problems proceed proceeded process processed processing
    provide provided providing query question questions quota rate reached ready recap received recent record
    regarding related relevant remaining reply reported request requested requests required reset resolved respond
    responded response responses result results retry role round rounds said second seems sent server service session
    several short shown side since sit some something sorry span speaker state status step steps stop stopped style
    subject succeeded success successful successfully summaries summarised summarising summarize summarized
    summarizing summary support sure system talk talked task tasks temporarily test testing text thank thanks there
    thing things this through throughout time timed timeout title to today todo together token tokens topic topics
    total traceback transcript true try trying turn type unable unauthorized unavailable undefined understood
    unexpected unknown unsupported upstream url use used user users using valid various version via wait waiting want
    wanted wants was way well went were what whatever which while who within words work worked working would write
    written wrong yes yet you your
"""
_EMPTY = frozenset(_EMPTY_WORDS.split())


@dataclass(frozen=True)
class Terms:
    """The terms of *text* in forms that can be compared: 1,200 is 1200, and words are cut where they inflect."""

    text: str

    @once
    def identifiers(self) -> frozenset[str]:
        return frozenset(map(_folded, identifiers(self.text)))

    @once
    def numbers(self) -> frozenset[str]:
        """Numbers of two digits and more that are no identifiers."""
        return frozenset(
            number
            for term in self.all
            if not term.isalpha() and _folded(term) not in self.identifiers
            for number in _NUMBER.findall(_folded(term))
            if len(number) > 1
        )

    @once
    def words(self) -> frozenset[str]:
        """All words but those that tell nothing of what was said; in scripts without spaces, pairs of characters."""
        return frozenset(key for term in self.all for word in _WORD.findall(term) for key in _keys(word))

    @once
    def folded(self) -> str:
        return _folded(self.text)

    @once
    def all(self) -> frozenset[str]:
        """All of them as they are written."""
        return frozenset(content(self.text).terms)

    @once
    def _counts(self) -> Counter[str]:
        return Counter(_WORD.findall(self.text.casefold()))

    def words_in(self, other: Terms) -> frozenset[str]:
        """Return those of its words that *other* has as they are written: not all that both have, but found at once."""
        return self.words & frozenset(key for word in self._counts.keys() & other._counts.keys() for key in _keys(word))

    def is_in_the_language_of(self, other: Terms) -> bool:
        """Return whether words of the two can be compared; a guess by the words that *other* uses most."""
        if self.words & other.words and (UNSPACED.search(self.text) or UNSPACED.search(other.text)):
            return True
        frequent = [word for word, _ in other._counts.most_common(_FREQUENT)]
        return sum(self._counts[word] for word in frequent) >= _SAME_LANGUAGE * self._counts.total()


def find_telling_terms(text: str) -> Iterator[str]:
    """Yield the identifiers, numbers, names and words of *text* that tell something of it, in its order, each once."""
    for term in content(text).terms:
        if any(map(is_telling, _WORD.findall(term))) or any(map(str.isdigit, term)):
            yield term


def is_telling(word: str) -> bool:
    """Return whether *word* tells something of what was said: not one that summaries and errors say of anything."""
    return next(_keys(word.casefold()), None) is not None


def _folded(term: str) -> str:
    """Return an identifier or number without marks between thousands, and without cents that are none."""
    return _CENTS.sub("", _THOUSANDS.sub("", term.casefold()))


def _keys(word: str) -> Iterator[str]:
    if word in _EMPTY:
        return
    if not word.isascii() and UNSPACED.search(word):
        for run in UNSPACED.findall(word):
            yield from (run[at : at + 2] for at in range(max(1, len(run) - 1)))
    elif len(word) > 2:
        yield word[:2] if "\uac00" <= word[0] <= "\ud7a3" else (word.rstrip("s") or word)[:_STEM]
    elif not word.isascii():
        yield word
