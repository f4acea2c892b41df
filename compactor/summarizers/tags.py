"""Take off an answer what models wrap around it: thoughts, drafts, tags, blocks of code, and remarks to the reader."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from .replies import is_remark

__all__ = ["strip_tags", "unfenced"]

# An attribute or two: what opens a tag and never closes it is read once.
_WITH = r"(?:[\s/][^<>]{0,200})?"
_NAMES = "(think|thinking|reasoning)"
_LEADING_THOUGHT = re.compile(rf"\s*<{_NAMES}{_WITH}>", re.IGNORECASE)
_LEADING_END = re.compile(rf"\s*</{_NAMES}>", re.IGNORECASE)
_THOUGHT = re.compile(f"<{_NAMES}{_WITH}>", re.IGNORECASE)
_END = re.compile(f"</{_NAMES}>", re.IGNORECASE)
# Alone on its line, or before an empty line.
_LOOSE_END = re.compile(rf"^[ \t]*</{_NAMES}>[ \t]*$|</{_NAMES}>[ \t]*\n[ \t]*\n", re.IGNORECASE | re.MULTILINE)
#: Other names of thoughts; summaries have sections of these names, so the end has to stand at the end of a line.
_DRAFTS = "(analysis|scratchpad|reflection|draft|thoughts?)"
_LEADING_DRAFT = re.compile(rf"\s*<{_DRAFTS}{_WITH}>", re.IGNORECASE)
_DRAFT_END = re.compile(rf"</{_DRAFTS}>[ \t]{{0,20}}(?=\n|<summary\b)", re.IGNORECASE)

#: The tags of a summary, and the code in which they are only spoken of.
_TOKEN = re.compile(
    rf"""(?P<fence>^[ \t]{{0,3}}(?:`{{3,10}}|~{{3,10}})[^\n`<]{{0,80}}$) | `[^`\n]{{1,300}}`
      | (?P<opens><summary{_WITH}>) | (?P<closes></[ ]?summary[ ]?>)""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)
_FENCE_BEFORE = re.compile(r"(?:```|~~~)[^\n`<]{0,80}\s{1,10}\Z")
_SUMMARY_NEXT = re.compile(r"\s{0,20}<summary\b", re.IGNORECASE)
#: What stands right before a tag that wraps the answer: an introduction that ends in a colon, other tags that end.
_INTRODUCES = re.compile(rf"(?:[:：][*_]{{0,4}}|</(?:{_NAMES}|{_DRAFTS})>)\s{{0,20}}\Z", re.IGNORECASE)
_FOLDED = re.compile(r"<details[^<>]{0,200}>\s{0,20}\Z", re.IGNORECASE)
#: Characters of an introduction.
_LONGEST_INTRODUCTION = 300

_FENCED = re.compile(r"(```|~~~)(?:markdown|md|text|txt|plain|plaintext)?[ \t]{0,20}\n", re.IGNORECASE)
_NAMED = re.compile(rf"<((?!previous_)[a-z]{{1,30}}[_-]summary|answer|output|response|result){_WITH}>", re.IGNORECASE)
_OBJECT = re.compile(r'\{\s*"summary"\s*:')
_LANGUAGE = re.compile(r"[\w-]*")
#: What one wraps in so many layers stays in the others.
_LAYERS = 8


def strip_tags(text: str) -> str:
    """Return the answer in *text* without what models wrap around it.

    Thoughts before it go. Where it stands in tags of a summary, the last such block that is closed is the answer: what
    stands before it is an introduction, an analysis or a draft. What follows the tags stays, unless it is a remark to
    the reader ("I hope this helps!"). A summary that speaks of tags, in a sentence or in code, stays whole.

    Some servers cut an opening tag off. A closing tag alone ends thoughts where it ends a line; and the summary where
    nothing but remarks follows it.
    """
    for _ in range(_LAYERS):
        before, text = text, _unwrapped(_last_block(_without_thoughts(text)))
        if text == before:
            break
    return text


# -- thoughts ---------------------------------------------------------------------------------------------------------


def _without_thoughts(text: str) -> str:
    start = 0
    while True:
        if found := _LEADING_END.match(text, start):
            start = found.end()
        elif found := _LEADING_THOUGHT.match(text, start):
            start = next(_ends_of(found[1], _END, text, found.end()), len(text))
        elif (end := _loose_end(text, start)) > start or (
            (found := _LEADING_DRAFT.match(text, start))
            and (end := next(_ends_of(found[1], _DRAFT_END, text, found.end()), 0))
        ):
            start = end
        else:
            return text[start:].strip()


def _ends_of(name: str, ends: re.Pattern[str], text: str, start: int) -> Iterator[int]:
    return (end.end() for end in ends.finditer(text, start) if end[1].lower() == name.lower())


def _loose_end(text: str, start: int) -> int:
    """Return where thoughts end whose opening tag is missing; *start* where there are none."""
    opening = _THOUGHT.search(text, start)  # from here on, closing tags have one
    found = seen = start
    fences = 0
    for end in _LOOSE_END.finditer(text, start, opening.start() if opening else len(text)):
        fences += text.count("```", seen, end.start())
        seen = end.start()
        if fences % 2 == 0:
            found = end.end()
    return found


# -- tags of a summary ------------------------------------------------------------------------------------------------


class _Block(NamedTuple):
    """What stands in the tags of a summary: from *start* to *end*; with them, from *opened* to *closed*."""

    opened: int
    start: int
    end: int
    closed: int
    is_closed: bool


def _last_block(text: str) -> str:
    """Return the last block of *text* that is closed and not empty, and what follows it but for remarks; the last that
    is open where none is; *text* where its tags do not wrap the answer."""
    tags = list(_tags(text))
    blocks = list(_blocks(text, tags))
    if not blocks:
        return _up_to_loose_end(text, tags)
    filled = [block for block in blocks if text[block.start : block.end].strip()]
    chosen = next((block for block in reversed(filled) if block.is_closed), filled[-1] if filled else blocks[-1])
    fence = _FENCE_BEFORE.search(text[max(0, chosen.opened - 100) : chosen.opened])
    behind = text[blocks[-1].closed :].strip() if blocks[-1].is_closed else ""
    behind = behind.removeprefix(fence[0][:3]).strip() if fence else behind
    behind = "" if is_remark(behind) else behind
    leads = tags[0].start() == blocks[0].opened and not _FENCE_BEFORE.sub("", text[: blocks[0].opened]).strip()
    if not leads and (behind or not filled or not _wraps(text, chosen)):
        return text
    return "\n\n".join(part for part in (text[chosen.start : chosen.end].strip(), behind) if part)


def _tags(text: str) -> Iterator[re.Match[str]]:
    """Yield the tags of a summary in *text*, but for those in code; a block of code around them is none."""
    fence, around, depth = "", False, 0
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "fence":
            mark = token[0].lstrip()[:3]
            if fence:
                fence = "" if mark == fence else fence
            elif around and not depth:
                around = False
            elif not depth and _SUMMARY_NEXT.match(text, token.end()):
                around = True
            else:
                fence = mark
        elif token.lastgroup and not fence:
            depth = max(0, depth + (1 if token.lastgroup == "opens" else -1))
            yield token


def _blocks(text: str, tags: list[re.Match[str]]) -> Iterator[_Block]:
    """Yield the blocks in *text*. A tag that opens within one is a part of it, unless it begins a line: then what came
    before was given up."""
    block: _Block | None = None
    depth = 0
    for tag in tags:
        between = text[block.closed : tag.start()].strip() if block else ""
        if tag.lastgroup == "closes":
            if block and (between or not block.is_closed):  # the tag before, if there was one, was only spoken of
                block = block._replace(end=tag.start())
            depth = max(0, depth - 1)
            block = block and block._replace(closed=tag.end(), is_closed=True)
        elif depth and between and not _begins_line(text, tag.start()):
            depth += 1
        else:
            if block and not depth:
                yield block
            opened = block.opened if block and depth and not between else tag.start()
            block, depth = _Block(opened, tag.end(), len(text), tag.end(), is_closed=False), 1
    if block:
        yield block


def _begins_line(text: str, start: int) -> bool:
    return not text[text.rfind("\n", 0, start) + 1 : start].strip()


def _wraps(text: str, block: _Block) -> bool:
    """Return whether *block*, which ends the answer, is what it says, and not a part of that."""
    head = text[max(0, block.opened - _LONGEST_INTRODUCTION) : block.opened]
    if _FOLDED.search(head):
        return False
    head, leads_a_line = _FENCE_BEFORE.sub("", head), _begins_line(text, block.opened)
    short = block.opened <= _LONGEST_INTRODUCTION or head.rstrip().endswith(">")
    introduced = short and _INTRODUCES.search(head) is not None
    return (block.is_closed and leads_a_line) or (introduced and (block.is_closed or leads_a_line))


def _up_to_loose_end(text: str, tags: list[re.Match[str]]) -> str:
    """Return *text* up to a closing tag that ends a line, where nothing follows but remarks."""
    for tag in tags:
        behind = text[tag.end() :]
        if behind[:1] in ("", "\n") or not behind.strip():
            behind = re.sub(r"</ ?summary ?>", "", behind, flags=re.IGNORECASE).strip()
            return text[: tag.start()].rstrip() if is_remark(behind) else text
    return text


# -- what stands around all of it -------------------------------------------------------------------------------------


def _unwrapped(text: str) -> str:
    """Return *text* without what stands around all of it: a block of prose, a tag of another name, an object."""
    if (found := _FENCED.match(text)) and text.endswith(found[1]) and len(text) >= found.end() + len(found[1]):
        inside = text[found.end() : -len(found[1])]
        if found[1] not in inside and inside.endswith("\n"):
            text = inside.strip()
    if (found := _NAMED.match(text)) and text.lower().endswith(f"</{found[1].lower()}>"):
        text = text[found.end() : -len(found[1]) - 3].strip()
    bare = unfenced(text)
    if _OBJECT.match(bare):
        try:
            value = json.loads(bare)
        except (ValueError, RecursionError):
            return text
        if value.keys() == {"summary"} and isinstance(value["summary"], str):
            return str(value["summary"]).strip()
    return text


def unfenced(text: str) -> str:
    """Return what stands in the block of code that *text* is; *text* itself where it is none."""
    bare = text.strip()
    if len(bare) < 6 or not (bare.startswith("```") and bare.endswith("```")):
        return text
    opened = _LANGUAGE.match(bare, 3)
    return bare[opened.end() if opened else 3 : -3].strip()
