"""Read tool results: the outcome of one in a few words, and JSON-like text as short lines of fields."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Set
from functools import cache

from memory.patterns import compile_later

from .content import load_table
from .cues import load_pattern

MORE = "…"
#: Outcomes of a call without a result yet, and of an empty result.
OPEN, EMPTY = "(no result)", "(empty)"
#: Marks before an action's outcome: a result's own are no marks.
_ANY_MARKS = compile_later(r"(?:failed: |last failed: |last: )+")
#: Bytes of an outcome, and of a result's beginning: enough to show its kind.
_OUTCOME, _OPENING = 120, 40
#: Characters to search for errors at a result's beginning and end, and characters of one line.
_LOOKED_AT, _LINE = 16_000, 400
#: Maximum characters of a word; a longer one is data, and its beginning is enough.
_WORD = 72
#: Maximum scalars of one result, JSON texts in it, and values to print for one field name.
_MAX_FIELDS, _MAX_JSONS, _MAX_VALUES = 400, 100, 6
#: Rank of a known value.
_KNOWN_RANK = 4


def has_failed(result: str) -> bool:
    """Return whether a tool's *result* reports that its call failed."""
    return read_outcome(result)[1]


def read_outcome(
    result: str, arguments: str = "", seen: set[str] | None = None, used_later: Set[str] = frozenset()
) -> tuple[str, bool]:
    """Return a *result*'s outcome in a few words, and True if it reports a failure.

    Values in *arguments* or *seen* are known already; later calls use those in *used_later*. Adds its own values to
    *seen*.
    """
    seen = set() if seen is None else seen
    fields = read_json(result)
    if fields is None:
        outcome, failed = _read_text(result, arguments, seen, used_later)
    else:
        outcome, failed = _read_fields(fields, arguments, seen, used_later)
    if marks := _ANY_MARKS.match(outcome):
        outcome, failed = outcome[marks.end() :], failed or "failed" in marks[0]
    return (EMPTY if outcome in {"", OPEN} else outcome), failed


def _read_fields(
    fields: list[tuple[str, str]], arguments: str, seen: set[str], used_later: Set[str]
) -> tuple[str, bool]:
    values: dict[str, list[str]] = {}
    # By field name, most informative first: 0 failure, 1 later calls use it, 2 new id, 3 other new value, 4 known.
    ranks: dict[str, int] = {}
    failed = False
    # The result's record. A known id is known everywhere; any other value only for the same record and field.
    about = next((value for _, value in fields[:3] if is_identifier(value)), "")
    for key, value in fields:
        failure = _is_failure_field(key, value)
        if len(value) > _LINE or "\n" in value:
            text, failure = _read_text(value, arguments, seen, used_later)
            rank = 0 if failure else 3
        else:
            text, is_id = shorten_words(value), is_identifier(value)
            known = value if is_id else f"{about} {key} {value}"
            rank = (
                _KNOWN_RANK if known in seen or value in arguments else 1 if value in used_later else 2 if is_id else 3
            )
            rank = 0 if failure else 1 if value == about and value not in arguments else rank
            seen.add(known)
        failed = failed or failure
        texts = values.setdefault(key, []) if text else []
        if text and text not in texts and len(texts) < _MAX_VALUES and (rank < _KNOWN_RANK or not texts):
            texts.append(clip(text, _OUTCOME if rank == 0 else 48))
            ranks[key] = min(rank, ranks.get(key, _KNOWN_RANK))
    keys = [key for key in values if ranks[key] < _KNOWN_RANK] or list(values)
    # A change usually appends its new field to the record.
    last = next((key for key in reversed(keys) if ranks[key] > 1), None)
    parts: list[str] = []
    left = _OUTCOME
    for key in sorted(keys, key=lambda key: 1.5 if key == last else ranks[key]):
        text = ", ".join(values[key])
        text = f"{clip(shorten_words(key), 40)}: {text}" if key else text
        if not parts or len(text) + 2 <= left:
            parts.append(text)
            left -= len(text) + 2
    return clip(", ".join(parts), 2 * _OUTCOME), failed


def read_json(text: str) -> list[tuple[str, str]] | None:
    """Return (field name, value) for the scalars of JSON, in order; None if *text* is no JSON."""
    if text[:_LINE].lstrip()[:1] not in {"{", "["}:
        return None
    values: list[object] = []
    rest = text
    try:
        while rest and len(values) < _MAX_JSONS:
            value, end = _DECODER.raw_decode(rest := rest.lstrip())
            values.append(value)
            rest = rest[end:].lstrip()
    except (ValueError, RecursionError):
        return None
    fields: list[tuple[str, str]] = []
    waiting: list[tuple[str, object]] = [("", value) for value in reversed(values)]
    while waiting and len(fields) < _MAX_FIELDS:
        key, item = waiting.pop()
        if isinstance(item, dict):
            waiting.extend((str(name), inner) for name, inner in reversed(item.items()))
        elif isinstance(item, list):
            waiting.extend((key, inner) for inner in reversed(item[:_MAX_FIELDS]))
        elif item is not None and item != "":
            fields.append((key, item if isinstance(item, str) else json.dumps(item)))
    return fields


_DECODER = json.JSONDecoder(strict=False)


def _read_text(result: str, arguments: str, seen: set[str], used_later: Set[str]) -> tuple[str, bool]:
    if len(result) > 2 * _LOOKED_AT:
        lines = f"{result[:_LOOKED_AT]}\n{result[-_LOOKED_AT:]}".splitlines()
    else:
        lines = result.splitlines()
    lines = [line for line in (shorten_words(line[:_LINE]) for line in lines) if any(map(str.isalnum, line))]
    if not lines:
        return "", False
    failures = _find_failures(lines, arguments)
    pieces = [] if lines[0] in failures else [clip(lines[0], _OPENING if len(lines) > 1 else _OUTCOME)]
    pieces += [clip(line, 96) for line in failures]
    named = find_identifiers(result)
    wanted = {value for value in named & used_later if value not in seen and value not in arguments}
    seen |= named
    for line in lines[1:]:
        if not wanted or sum(map(len, pieces)) > _OUTCOME:
            break
        if here := [value for value in wanted if value in line]:
            wanted.difference_update(here)
            pieces.append(line if len(line) <= 60 else ", ".join(sorted(here, key=line.index)))
    endings = [] if failures else lines[1:][-4:]
    ending = next((line for line in reversed(endings) if not _MARKUP.match(line) and line.count(" ") < 24), "")
    if ending and ending not in seen:
        seen.add(ending)  # a tool's standard ending tells nothing
        pieces.append(clip(ending, 60))
    outcome = f" {MORE} ".join(dict.fromkeys(piece.removesuffix(MORE).rstrip() for piece in pieces))
    # Keep the mark: otherwise a cut path at the end would pass for a whole path.
    return outcome + MORE * pieces[-1].endswith(MORE), bool(failures)


#: A file's line as tools print it: after its number, or after path and number.
_LINE_NUMBER = r"\d{1,7} ?[:|│]|[^\s:]{1,200}[:-]\d{1,7}[:-]"
_QUOTED = compile_later(_LINE_NUMBER)
_MARKUP = compile_later(rf"[<{{}}\[\]()#|\-=]|{_LINE_NUMBER}")
#: An error name followed by its description.
_CAUSE = compile_later(r"(?:error|exception)(?:\(s\)|s)? ?: ?\S", re.IGNORECASE)
_SHOUTED = compile_later(r"\b(?:ERROR|FATAL|FAILED|FAILURE|CRITICAL)\b")
_SAYS_NONE = compile_later(
    r"\b(?:no|0|zero|without(?: any)?) (?:\w{1,20} )?(?:errors?|failures?|failed|exceptions?)\b", re.IGNORECASE
)
_LETTERS = compile_later(r"\w+")
#: A line of code, after its number in the file.
_CODE = compile_later(
    r"[0-9 :|│→\-+>]*+(?:(?:except|raise|throw|catch|return|def|class|if|for|while|print|import|from|log|logger"
    r"|assert)\b|[}{#]|//|/\*|\* )"
)


@cache
def get_words(kind: str) -> frozenset[str]:
    """Return the words of one *kind* in ``tools.yaml``."""
    return frozenset(load_table("tools.yaml")[kind])


def _find_failures(lines: list[str], arguments: str) -> list[str]:
    """Return the first line that reports the failure and the line with the best reason: none, one or two lines."""
    asked = set(_LETTERS.findall(arguments[: 2 * _LOOKED_AT].casefold()))
    reasons: dict[str, int] = {}
    for place, line in enumerate(lines):
        if _CODE.match(line) or line[-1] in "{;," or _SAYS_NONE.search(line):
            continue  # most likely code that handles errors
        if _QUOTED.match(line):
            sign = None if line[0].isdigit() else _CAUSE.search(line)
        else:
            sign = load_pattern("tools.yaml", "failure in any line").search(line) or _SHOUTED.search(line)
            if sign is None and (place == 0 or len(lines) - place <= 2 or len(lines) <= 3):
                sign = load_pattern("tools.yaml", "failure in a message").search(line[:200])
            if sign is None and place == 0 and line[0] not in "-*•":
                sign = load_pattern("tools.yaml", "failure in the first line").search(line[:80])
        # A search for "error" that finds it has not failed.
        if sign and asked.isdisjoint(_LETTERS.findall(sign[0].casefold())):
            reasons.setdefault(line, 2 if _CAUSE.search(line) else 0 if line[-1] in ":：" else 1)
    if not reasons:
        return []
    first, best = next(iter(reasons)), max(reversed(reasons), key=reasons.__getitem__)
    cause = _CAUSE.search(first)
    begins = cause is not None and first.count(" ", 0, cause.start()) <= 1  # with the error's name
    return [first] if begins else list(dict.fromkeys((first, best)))


def _is_failure_field(key: str, value: str) -> bool:
    low, said = key.casefold(), value[:_WORD].casefold()
    if low in get_words("failure fields") or low.endswith("error"):
        return said not in get_words("nothing")
    if low in get_words("success fields"):
        return said in get_words("nothing") and said != "ok"
    if low in get_words("exit fields"):
        return said.lstrip("-").isdecimal() and said != "0"
    if low in get_words("status fields"):
        return said in get_words("failed statuses") or (len(said) == 3 and said.isdecimal() and said[0] in "45")
    return not low and load_pattern("tools.yaml", "failure in any line").search(value[:200]) is not None


_TOKEN = compile_later(r"[^\s\"'`()<>{}\[\],;|=]+")
#: Field names, function names and amounts: no ids.
_WORDS_JOINED = compile_later(r"[^\W\d]+|\d+(?:[a-z]{1,2}|-\d+)")


def find_identifiers(text: str) -> set[str]:
    """Return the words of *text* that a later call may need exactly."""
    tokens = _TOKEN.findall(text[: 2 * _LOOKED_AT].replace("\\n", "\n").replace('\\"', '"'))
    words = (token.strip(".:!?*-") for token in tokens)
    return {word for word in words if 2 < len(word) <= _WORD and is_identifier(word)}


def find_files(text: str, *, short: int) -> Iterator[str]:
    """Yield the files and ids in a call's arguments or a user's text, without names of functions and fields.

    Plain numbers and names with a dot count only in a text of at most *short* characters: code is full of them.
    """
    for match in _TOKEN.finditer(text):
        value = match[0].strip(".:!?*-@#")
        named = text[match.end() : match.end() + 1] == "(" or match[0][-1] == ":" or _WORDS_JOINED.fullmatch(value)
        if named or MORE in value or "\\" in value or not is_identifier(value):
            continue
        clear = "/" in value or "@" in value or (any(map(str.isdigit, value)) and any(map(str.isalpha, value)))
        if len(value) > 3 and (clear or len(text) <= short):
            yield value


def is_identifier(word: str) -> bool:
    """Return whether a later call may need *word* exactly: it has digits, or is a path or a name with a dot."""
    if len(word) > _WORD or " " in word:
        return False
    if any(map(str.isdigit, word)):
        return len(word) > 2
    return not _INNER_SIGNS.isdisjoint(word[1:-1])


_INNER_SIGNS = frozenset("_/@.\\:")


def flatten(text: str) -> str:
    """Return *text* on one line, without control sequences and lone surrogates."""
    if text.isprintable() and "  " not in text and text == text.strip():
        return text  # the usual case: no other white space is printable
    # A space, not an empty string: two numbers must not merge.
    return _SURROGATE.sub("\ufffd", " ".join(_CONTROL.sub(" ", text).split()))


# Control sequences: a terminal or browser acts on them, nobody reads them.
_CONTROL = compile_later(r"\x1b\[[0-9;?]{0,16}[A-Za-z]|[\x00-\x08\x0e-\x1f\x7f\ufeff]")
_SURROGATE = compile_later("[\ud800-\udfff]")


def shorten_words(text: str) -> str:
    """Return *text* on one line, without an action's marks; long words keep their beginning, long paths their end."""
    line = flatten(text)
    if len(line) > _WORD:
        words = line.split(" ")
        for place, word in enumerate(words):
            if len(word) > _WORD:
                _, slash, tail = word.rpartition("/")
                unspaced = any(letter > "\u2e7f" for letter in word[:8])
                long = word if unspaced else f"{word[:20]}{MORE}"
                words[place] = f"{MORE}/{tail}" if slash and 0 < len(tail) <= _WORD else long
        line = " ".join(words)
    return line.replace("→", "->").replace("·", "-").replace("<think", "[think")


#: Bytes that a text may exceed its limit by: half a name is useless.
SLACK = 12


def clip(text: str, limit: int) -> str:
    """Return *text*, or its beginning of about *limit* bytes with a mark, cut between words if possible.

    The limit counts bytes, not characters: in most scripts a character of three bytes costs about three times as many
    tokens.
    """
    if 3 * len(text) <= limit or len(encoded := text.encode()) <= limit + SLACK:
        return text
    cut = encoded[: limit - 1].decode(errors="ignore")
    space = cut.rfind(" ")
    if space > len(cut) // 2 and not text[len(cut)].isspace():
        cut = cut[:space]
    while cut and (unicodedata.combining(text[len(cut)]) or text[len(cut)] in "\u200d\ufe0f" or cut[-1] == "\u200d"):
        cut = cut[:-1]
    return f"{cut.rstrip(f' {MORE}')}{MORE}"


#: About forty tokens: a record with its neighbours, yet small enough to be chosen alone.
LINE = 160
#: A container up to this many characters is printed inside its parent's line.
_INLINE = 72
_MAX_DEPTH = 64

_OPEN_BRACKET = compile_later(r"[{\[]\s{0,80}(?=[{\[\"'])")
# Possessive quantifiers never backtrack, so hostile text costs one pass.
_JSON_TOKEN = compile_later(
    r"""\s++|(?P<text>"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|'(?:[^'\\]|\\.)*+(?:'|\\?\Z))|(?P<mark>[{}\[\],:])"""
    r"""|(?P<bare>[^\s"'{}\[\],:][^{}\[\],\n]*+)""",
    re.DOTALL,
)


def find_structures(text: str) -> Iterator[tuple[str, list[str]]]:
    """Yield (prose, field lines) pairs in order; either may be empty. Runs in one forward pass."""
    start = 0
    while (opening := _OPEN_BRACKET.search(text, start)) and (fields := find_field_lines(text, opening.start())):
        yield text[start : opening.start()], fields[0]
        start = fields[1]
    yield text[start:], []


def find_field_lines(text: str, start: int = 0) -> tuple[list[str], int] | None:
    """Return the lines of the structure that opens at *start*, and its end; None if it is nested too deep.

    Each long string is one line after ``key: ``, with its line breaks: the caller splits it further.
    """
    tokens = _JSON_TOKEN.finditer(text, start)
    lines: list[tuple[int, str]] = []
    try:
        _, end = _read_structure(next(tokens), tokens, lines)
    except RecursionError:
        return None
    return [line for _, line in sorted(lines, key=lambda line: line[0])], end


def _read_structure(
    opening: re.Match[str],
    tokens: Iterator[re.Match[str]],
    lines: list[tuple[int, str]],
    under: str = "",
    name: str = "",
    depth: int = 1,
) -> tuple[str, int]:
    """Return the structure at *opening* as a field of the key *under*, and its end.

    The outermost and a long one are no field: their lines go to *lines*, with their places and the *name*.
    """
    if depth > _MAX_DEPTH:
        raise RecursionError
    keyed, end = opening["mark"] == "{", opening.endpos
    fields: list[str] = []
    key, has_colon = "", False
    for token in tokens:
        mark, quoted, bare = token["mark"], token["text"], token["bare"]
        if mark in {"}", "]"}:
            end = token.end()
            break
        if mark in {"{", "["}:
            field, _ = _read_structure(token, tokens, lines, key, key or name, depth + 1)
            if field:
                fields.append(field)
        elif mark:
            key, has_colon = (key, bool(key)) if mark == ":" else ("", False)
        elif quoted is not None or bare is not None:
            value = _unquote(quoted) if quoted is not None else bare.strip()
            if keyed and not has_colon:
                # A bare key's token includes its colon: `{id: 5}` gives key `id`, value `5`.
                key, colon, value = value.partition(":") if quoted is None else (value, "", "")
                key, value = key.strip(), value.strip()
                has_colon = bool(colon) and not value
            field = f"{key}: {value}" if key else value
            if len(value) > LINE or "\n" in value:
                lines.append((token.start(), field))
            elif value not in {"", "null", "None"}:
                fields.append(field)
    joined = ", ".join(fields)
    if depth > 1 and len(joined) <= _INLINE:
        alone = len(fields) == 1 and not keyed
        field = f"{under}: {joined}" if under and alone else f"{under} {joined if alone else f'({joined})'}".strip()
        return field if fields else "", end
    lines += ((opening.start(), f"{name} ({line})" if name else line) for line in _join_fields(fields, keyed))
    return "", end


def _join_fields(fields: list[str], keyed: bool) -> Iterator[str]:
    """Yield *fields* joined to lines; a record's first field leads each of its lines, since it usually names it."""
    lead = f"{fields[0]}, " if fields and keyed and len(fields[0]) <= 40 else ""
    line = ""
    for field in fields:
        if line and len(line) + len(field) > LINE:
            yield line
            line = lead + field
        else:
            line = f"{line}, {field}" if line else field
    if line:
        yield line


def _unquote(quoted: str) -> str:
    inner = quoted[1:-1] if len(quoted) > 1 and quoted[-1] == quoted[0] else quoted[1:]
    if "\\" not in inner:
        return inner
    try:
        return str(json.loads(f'"{inner}"', strict=False))
    except ValueError:
        return inner.replace("\\n", "\n").replace("\\", "")
