"""Names and texts as a database holds them: they may have characters that it cannot, and names be of any length."""

from __future__ import annotations

import codecs
import hashlib
import re

__all__ = ["escaped", "key_of", "storable", "unescaped"]

# Found now: who looks for it first imports it, and a child that is forked at that moment would wait for it for ever.
codecs.lookup("unicode_escape")

#: What PostgreSQL cannot hold, or UTF-8 not at all.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def escaped(name: str) -> str:
    """Return *name* in ASCII: NUL and halves of characters are legal in names, and not in a database. No two names
    become one."""
    return name.encode("unicode_escape").decode("ascii")


def unescaped(name: str) -> str:
    return name.encode("ascii").decode("unicode_escape")


def key_of(name: str) -> str:
    """Return what stands for *name* in an index: the name itself unless it is long. No two names have the same."""
    ascii_ = escaped(name)
    if len(ascii_) <= 100:
        return ascii_
    # With its 129 characters it is none of those; and their beginning tells people what it is.
    return f"{ascii_[:64]}:{hashlib.sha256(ascii_.encode()).hexdigest()}"


def storable(text: str) -> str:
    """Return *text* with what not every database can hold replaced, each character in its place."""
    return _UNSTORABLE.sub("\ufffd", text)
