"""JSON-like text as short lines of ``key: value``: tool results are often one long line that means nothing when cut.

Read by its punctuation alone, so what is cut off, wrapped in prose or printed by another language is read too.
Numbers and words stay as they were written; of strings only the JSON escapes are undone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["field_lines", "structures"]

#: About forty tokens: a record with its neighbours, yet small enough to be chosen alone.
LINE = 160
#: A container this short stands inside the line of the one around it.
_INLINE = 72
_DEPTH = 64

_OPENING = re.compile(r"[{\[]\s{0,80}(?=[{\[\"'])")
# Every alternative takes what it can and gives nothing back, so hostile text costs one pass.
_TOKEN = re.compile(
    r"""\s++|(?P<text>"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z))|(?P<mark>[{}\[\],:])"""
    r"""|(?P<bare>[^\s"'{}\[\],:][^{}\[\],\n]*+)""",
    re.DOTALL,
)


@dataclass(slots=True)
class _Container:
    name: str
    keyed: bool
    place: int
    key: str = ""
    waiting: bool = False
    fields: list[str] = field(default_factory=list)


def structures(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (prose, field lines) alternately, in order; either may be empty. Both loops only move forward."""
    start = 0
    while opening := _OPENING.search(text, start):
        found = field_lines(text, opening.start())
        if found is None:
            break
        lines, end = found
        yield text[start : opening.start()], lines
        start = end
    yield text[start:], []


def field_lines(text: str, start: int = 0) -> tuple[list[str], int] | None:
    """Return the lines of the structure that opens at *start*, and where it ends; None where it is nested too deep.

    Long strings come as a line each, after ``key: ``, with their line breaks: the caller splits them further.
    """
    stack: list[_Container] = []
    lines: list[tuple[int, str]] = []
    end = len(text)
    for token in _TOKEN.finditer(text, start):
        mark = token["mark"]
        if mark in {"{", "["}:
            if len(stack) == _DEPTH:
                return None
            name = (stack[-1].key or stack[-1].name) if stack else ""
            stack.append(_Container(name, mark == "{", token.start()))
        elif mark in {"}", "]"}:
            _close(stack, lines)
            if not stack:
                end = token.end()
                break
        elif mark == ":":
            stack[-1].waiting = stack[-1].keyed and bool(stack[-1].key)
        elif mark == ",":
            stack[-1].key, stack[-1].waiting = "", False
        else:
            _scalar(token, stack[-1], lines)
    while stack:
        _close(stack, lines)
    return [line for _, line in sorted(lines, key=lambda item: item[0])], end


def _scalar(token: re.Match[str], top: _Container, lines: list[tuple[int, str]]) -> None:
    quoted, bare = token["text"], token["bare"]
    if quoted is None and bare is None:
        return
    value = _unquoted(quoted) if quoted is not None else bare.strip()
    if top.keyed and not top.waiting:
        # A bare key takes its colon along: `{id: 5}` reads as key `id`, value `5`.
        key, colon, rest = value.partition(":") if quoted is None else (value, "", "")
        top.key = key.strip()
        value = rest.strip()
        if not colon or not value:
            top.waiting = bool(colon)
            return
    if value in {"", "null", "None"}:
        return
    text = f"{top.key}: {value}" if top.key else value
    if len(value) > LINE or "\n" in value:
        lines.append((token.start(), text))
    else:
        top.fields.append(text)


def _close(stack: list[_Container], lines: list[tuple[int, str]]) -> None:
    done = stack.pop()
    if not done.fields:
        return
    joined = ", ".join(done.fields)
    parent = stack[-1] if stack else None
    if parent and len(joined) <= _INLINE:
        name = parent.key if parent.keyed else ""
        inside = joined if len(done.fields) == 1 and not done.keyed else f"({joined})"
        parent.fields.append(f"{name}: {inside}" if name and inside is joined else f"{name} {inside}".strip())
        return
    lines += [(done.place, f"{done.name} ({line})" if done.name else line) for line in _filled(done.fields, done.keyed)]


def _filled(fields: list[str], keyed: bool) -> Iterator[str]:
    """Yield *fields* joined to lines; a record's first field leads each of its lines, since it usually names it."""
    lead = fields[0] if keyed and len(fields[0]) <= 40 else ""
    line = fields[0]
    for item in fields[1:]:
        if len(line) + len(item) > LINE:
            yield line
            line = f"{lead}, {item}" if lead else item
        else:
            line = f"{line}, {item}"
    yield line


def _unquoted(quoted: str) -> str:
    inner = quoted[1:-1] if len(quoted) > 1 and quoted[-1] == quoted[0] else quoted[1:]
    if "\\" not in inner:
        return inner
    try:
        return str(json.loads(f'"{inner}"', strict=False))
    except ValueError:
        return inner.replace("\\n", "\n").replace("\\", "")
