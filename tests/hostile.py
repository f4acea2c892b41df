"""Hostile texts, and whether a function reads them in time that grows with their length and no faster."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

__all__ = ["SIZES", "Read", "find_growth", "text_of"]

Read = Callable[[str], object]

#: Repeated up to a size; %d becomes a number, so that no two pieces are alike.
PIECES = (
    *"\n `{}[]()<>\"'“«「\\aA07,.;:=/-_*|#@%$eé中是。!?~",
    *("\r\n", "\u2028", "\u0301", "e\u0301", "\u200d", "👨\u200d", "🇩", "\ud800", "\udc00", "\0", "\x1b[0;"),
    *("```", "```\n", "```json\n", "~~~\n", "> a\n", "- a\n", "1. a\n", "* ", "**a", "## a\n", "| a ", "[x](y", "<!--"),
    *("</", "<summary>", "<summary ", "</think>\n", "<think>", '<round number="1"', "<tool_call>", "&lt;", "< /"),
    *('{"a":', '{"a":1}', "[{", '["a",', "{{", "{{content}}", "{role}", '\\"', "a=1 ", "a: ", "? ", "&a "),
    *("a.", "a b ", "1,", "1.1.", "1'000", "A1-", "/a_", "a/b.py ", "a@", "http://a/", "www.", "r1.p", "12:34 "),
    *("never ", "do not ", "xma ", "nereye ", "不要", "error: ", "failed ", "is now ", "change a to ", " → ", " … "),
    *("i am sorry ", "was a b ", "having a ", "then first ", "functions.a(", "[TOOL_CALLS]", "--- message 1: {}\n"),
    *("Instructions from the user:\n", "User: ", "x" * 50 + " "),
    *("w%d ", "K%d is %d. ", "- item %d\n", "Never sell K%d. ", '{"k%d": %d}\n', "a/b%d.py ", "我不要%d。", "é%d "),
    *("Instructions from the user:\n- a%d\n", '"q%d" ', "f(x%d) → y%d\n", "## a%d:\n- b\n", "k%d: v\n", "%d. a%d\n"),
)
#: What may stand before runs of white space; behind all stands a letter, at which it shows that nothing fits.
HEADS = ("<", "</", "[", "- ", "```json\n", '{"', "1", "Instructions from the user:\n- ")
ENDING = "x"

#: So much longer than for a text of a sixteenth may it take: four times as long as a line, a fifth of a square. The
#: seconds are what a measure of so little time is worth.
MAX_GROWTH, SLACK = 64, 0.2
#: The worst of all pieces is looked for at the first, and then measured at the others.
SIZES = (2_000, 32_000, 512_000)


def find_growth(read: Read, sizes: tuple[int, ...] = SIZES) -> str:
    """Return at which text *read* takes longer than in proportion; empty where at none. Stops at the first."""
    _seconds(read, ENDING)  # loads what is loaded once
    head, piece = max(_parts(), key=lambda parts: _seconds(read, text_of(*parts, sizes[0])))
    before = _seconds(read, text_of(head, piece, sizes[0]))
    for size in sizes[1:]:
        text = text_of(head, piece, size)
        most = MAX_GROWTH * before + SLACK
        took = _seconds(read, text)
        if took > most:
            took = min(took, _seconds(read, text))  # something else may have come between
        if took > most:
            return f"{took:.2f} s for {size} characters of {head!r} and {piece!r}, {before:.2f} s for a sixteenth"
        before = took
    return ""


def text_of(head: str, piece: str, size: int) -> str:
    """Return *head* and *piece* again and again, about *size* characters."""
    times = size // len(piece)
    # Numbers that no other size has: what was read before is read faster.
    body = piece * times if "%d" not in piece else "".join(piece.replace("%d", str(size + at)) for at in range(times))
    return head + body + ENDING


def _parts() -> Iterator[tuple[str, str]]:
    yield from (("", piece) for piece in PIECES)
    yield from ((head, blank) for head in HEADS for blank in " \n")


def _seconds(read: Read, text: str) -> float:
    """Return the processor time of this thread that *read* takes."""
    gc.disable()
    try:
        began = time.thread_time()
        read(text)
        return time.thread_time() - began
    finally:
        gc.enable()
