"""What an agent reads back with recall, without the marks of a quotation."""

from __future__ import annotations

import json
import re
from typing import Any

from memory import Recall

__all__ = ["body", "pages", "unquoted"]


def body(answer: str) -> str:
    """Return the text behind the line that says what it is."""
    assert not answer.startswith("Error:")
    return unquoted(answer.split("\n", 1)[1])


def unquoted(page: str) -> str:
    """Return *page* as it was said."""
    said = page[2:] if page.startswith("> ") else page.removeprefix("…")
    return re.sub("(\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])> ", r"\1", said)


def pages(recall: Recall, name: str, **arguments: Any) -> list[str]:
    """Follow the answers from page to page, as a model would, to the end."""
    found, offset = [], 0
    while True:
        answer = recall.call(name, json.dumps({**arguments, "offset": offset}))
        heading = answer.split("\n", 1)[0]
        if offset == 0 and heading.endswith("is empty: there is no text in it]"):
            return []
        found.append(body(answer))
        more = re.search(r"go on with offset=(\d+)\]$", heading)
        if more is None:
            assert heading.endswith("this is the end]")
            return found
        assert int(more[1]) > offset, "it does not get on"
        offset = int(more[1])
