"""Names as a database holds them: they may have characters that it cannot, and be of any length."""

from __future__ import annotations

import codecs
import hashlib

__all__ = ["escaped", "key", "unescaped"]

# Looked up here and not while many threads need it for the first time at once: such a look-up can raise.
codecs.lookup("unicode_escape")


def escaped(name: str) -> str:
    """Return *name* in ASCII: NUL and halves of characters are legal in names, and not in a database. No two names
    become one."""
    return name.encode("unicode_escape").decode("ascii")


def unescaped(name: str) -> str:
    return name.encode("ascii").decode("unicode_escape")


def key(name: str) -> str:
    """Return what stands for *name* in an index: the name itself unless it is long. No two names have the same."""
    ascii_ = escaped(name)
    if len(ascii_) <= 100:
        return ascii_
    # With its 129 characters it is none of those; and their beginning tells people what it is.
    return f"{ascii_[:64]}:{hashlib.sha256(ascii_.encode()).hexdigest()}"
