"""Tokens of pictures, audio and documents, by the rules that providers publish; read off headers, nothing is decoded.

Where a size cannot be known, as behind a link, an upper figure counts: a picture is one of a 4K screen, a document has
``UNKNOWN_PAGES`` pages.
"""

from __future__ import annotations

import math
import re
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

#: Sizes in pixels that stand for an unknown one: whichever takes more.
_UNKNOWN_SIZES = ((3_840, 2_160), (4_096, 1_536))
#: Pages of a document that cannot be looked into.
UNKNOWN_PAGES = 5
#: Tokens of the text on a page: the upper end that Anthropic gives.
_PAGE_TEXT = 3_000
#: Bytes of a page, and of a second of sound and of film, at least: so nothing is counted as shorter than it is.
_PAGE_BYTES, _SOUND_BYTES, _FILM_BYTES = 10_000, 4_000, 50_000
#: Where the header of a picture ends at the latest, in characters of base64.
_HEADER = 400_000


@dataclass(frozen=True, slots=True)
class MediaRule:
    """How one family of models counts."""

    #: Tokens of a picture by width and height in pixels, and by its ``detail``.
    picture: Callable[[int, int, str], int]
    page: int
    #: Tokens of a second.
    sound: int = 32
    film: int = 300

    def count_picture(self, size: tuple[int, int] | None, detail: str) -> int:
        """Return the tokens of a picture; of one of unknown *size*, an upper figure."""
        return max(self.picture(*one, detail) for one in ((size,) if size is not None else _UNKNOWN_SIZES))


def _count_tiles(base: int, tile: int, width: int, height: int, detail: str) -> int:
    """OpenAI, until GPT-5: tiles of 512 pixels, after shrinking into 2,048 square, then to 768 on the short side."""
    if detail == "low":
        return base
    shrink = min(1, 2_048 / max(width, height))
    shrink = min(shrink, 768 / min(width, height))
    return base + tile * _count_grid(width * shrink, height * shrink, 512)


def _count_patches(budgets: Mapping[str, tuple[int, int]], factor: float, width: int, height: int, detail: str) -> int:
    """OpenAI, since GPT-5: patches of 32 pixels. *budgets* has the most patches and pixels of an edge by detail."""
    if detail == "low" and detail not in budgets:
        return math.ceil(16 * 16 * factor)
    patches, edge = budgets.get(detail) or budgets["auto"]
    shrink = min(1, edge / max(width, height)) / 32
    if _count_grid(width * shrink, height * shrink, 1) > patches:
        shrink = math.sqrt(patches / (width * height))
        # Then a little more, until one side is a whole number of patches.
        shrink *= min(max(math.floor(side * shrink), 1) / (side * shrink) for side in (width, height))
    return math.ceil(min(_count_grid(width * shrink, height * shrink, 1), patches) * factor)


def _count_visual(edge: int, max_patches: int, width: int, height: int, _: str) -> int:
    """Anthropic: patches of 28 pixels, after shrinking to an *edge* and to *max_patches* of them."""
    shrink = min(1, edge / max(width, height))
    return min(_count_grid(width * shrink, height * shrink, 28), max_patches)


def _count_crops(width: int, height: int, _: str) -> int:
    """Google, before Gemini 3: 258 for a small picture, and for each crop of a larger one."""
    if max(width, height) <= 384:
        return 258
    return 258 * _count_grid(width, height, min(max(min(width, height) * 2 // 3, 256), 768))


def _count_as_one(tokens: int, _: int, __: int, ___: str) -> int:
    """Google, since Gemini 3: so many for each picture."""
    return tokens


def _count_grid(width: float, height: float, patch: int) -> int:
    # Rounded: a float just above a whole number is that number.
    return math.ceil(round(width / patch, 6)) * math.ceil(round(height / patch, 6))


def _make_tiles(base: int, tile: int) -> MediaRule:
    return MediaRule(partial(_count_tiles, base, tile), _PAGE_TEXT + base + 6 * tile)


def _make_patches(factor: float, auto: tuple[int, int], **details: tuple[int, int]) -> MediaRule:
    budgets = {"auto": auto, "high": min(auto, (2_500, 2_048)), **details}
    picture = partial(_count_patches, budgets, factor)
    return MediaRule(picture, _PAGE_TEXT + math.ceil(min(auto[0], 2_500) * factor))


# Looked up in November 2026:
# OpenAI: developers.openai.com/api/docs/guides/images-vision, Calculating costs.
# Anthropic: platform.claude.com/docs/en/build-with-claude/vision and pdf-support.
# Google: ai.google.dev/gemini-api/docs/media-resolution, tokens, document-processing.
#: Unknown models count as GPT-4o, and so does GPT-5 until 5.1, which OpenAI gives fewer: 70 and 140.
DEFAULT_RULE = _make_tiles(85, 170)
_SMALL, _MEDIUM, _LARGE = (1_536, 2_048), (2_500, 2_048), (10_000, 6_000)
#: By the beginning of a model's name; the longest that fits counts.
_RULES = {
    # OpenAI, by tiles.
    "gpt-4o-mini": _make_tiles(2_833, 5_667),
    "o1": _make_tiles(75, 150),
    "o3": _make_tiles(75, 150),
    "computer-use": _make_tiles(65, 129),
    # OpenAI, by patches with the model's factor. A low detail makes these no cheaper (community.openai.com/t/1377015).
    **dict.fromkeys(("o4-mini", "codex-mini"), _make_patches(1.72, _SMALL, low=_SMALL)),
    **dict.fromkeys(("gpt-4.1-mini", "gpt-5-mini", "gpt-5.1-codex-mini"), _make_patches(1.62, _SMALL, low=_SMALL)),
    **dict.fromkeys(("gpt-4.1-nano", "gpt-5-nano", "gpt-5.4-nano"), _make_patches(2.46, _SMALL, low=_SMALL)),
    # The page has the limits of _SMALL; up to 2,500 patches are billed (the same thread).
    "gpt-5.4-mini": _make_patches(1.62, _MEDIUM, low=_MEDIUM),
    # The page has no factor here. Users are billed 1.2 (community.openai.com/t/1372291 and 1377015, from 5.2 to 5.4;
    # github.com/vybestack/llxprt-code/issues/3477, all later ones).
    **dict.fromkeys(("gpt-5.1-codex", "gpt-5.2", "gpt-5.3"), _make_patches(1.2, _SMALL)),
    "gpt-5.4": _make_patches(1.2, _MEDIUM, original=_LARGE),
    "gpt-5.5": _make_patches(1.2, _LARGE),
    # From 5.7 on not documented: as 5.6 and 6.
    **dict.fromkeys(("gpt-5.6", "gpt-5.7", "gpt-5.8", "gpt-6"), _make_patches(1.2, (30_000, 65_535))),
    # Google: 3 and later by default; a part's own resolution may take up to 2,240. The page treats 4 with 3.
    "gemini": MediaRule(partial(_count_as_one, 1_120), 560),
    **dict.fromkeys(("gemini-1", "gemini-2"), MediaRule(_count_crops, 258)),
}
# Anthropic: until 4.6, and from 4.7 on.
_CLAUDE = MediaRule(partial(_count_visual, 1_568, 1_568), _PAGE_TEXT + 1_568)
_CLAUDE_LARGE = MediaRule(partial(_count_visual, 2_576, 4_784), _PAGE_TEXT + 1_568)


@lru_cache(maxsize=64)
def find_rule(model: str) -> MediaRule:
    """Return the rule of *model*; ``DEFAULT_RULE`` for an unknown one."""
    name = model.rpartition("/")[2].lower()
    name = name[name.find("claude") :] if "claude" in name else name.rpartition(":")[2] or name
    if name.startswith("claude"):
        version = tuple(map(int, re.findall(r"(?<!\d)\d{1,2}(?!\d)", name)[:2]))
        return _CLAUDE if version and version < (4, 7) else _CLAUDE_LARGE
    fitting = [given for given in _RULES if name.startswith(given)]
    return _RULES[max(fitting, key=len)] if fitting else DEFAULT_RULE


def count_media(part: Mapping[str, Any], rule: MediaRule) -> int | None:
    """Return the tokens of a content part that is a picture, audio or a document, in the words of any provider; None if
    it is none of these."""
    kind = part.get("type")
    given = part.get(kind) if isinstance(kind, str) else None
    inner: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    source = part.get("source")
    source = source if isinstance(source, Mapping) else {}
    if kind in ("image_url", "input_image", "image"):
        url = given if isinstance(given, str) else inner.get("url", part.get("image_url"))
        data = (split_data_url(url) or ("", ""))[1]
        detail = inner.get("detail", part.get("detail"))
        size = read_size(data or source.get("data"))
        return rule.count_picture(size, detail if isinstance(detail, str) else "auto")
    if kind == "input_audio":
        return math.ceil(_count_seconds(inner.get("data")) * rule.sound)
    if kind in ("file", "input_file") or (kind == "document" and source.get("type") in ("base64", "url", "file")):
        file = inner or part
        found: tuple[str, object] = split_data_url(file.get("file_data")) or ("", source.get("data"))
        return count_file(*found, rule)
    return None


def count_file(media_type: str, data: object, rule: MediaRule) -> int:
    """Return the tokens of a file of that *media_type* with *data* in base64; one of an unknown type is a document."""
    if media_type.startswith("image/"):
        return rule.count_picture(read_size(data), "auto")
    if media_type.startswith("audio/"):
        return math.ceil(_count_seconds(data) * rule.sound)
    if media_type.startswith("video/") and isinstance(data, str):
        return math.ceil(len(data) * 3 / 4 / _FILM_BYTES) * rule.film
    return _count_pages(data) * rule.page


def split_data_url(url: object) -> tuple[str, str] | None:
    """Return the media type and the base64 text of a data URL; None for any other."""
    if not isinstance(url, str) or not url.startswith("data:"):
        return None
    head, comma, data = url[5:].partition(",")
    return (head.removesuffix(";base64"), data) if comma and head.endswith(";base64") else None


def make_data_url(media_type: str, data: str) -> str:
    """Return the data URL of a base64 text."""
    return f"data:{media_type};base64,{data}"


def _decode(data: object, max_characters: int | None = None) -> bytes:
    """Return the bytes of a base64 text, or of its first *max_characters* characters; none if it is no such text."""
    if not isinstance(data, str):
        return b""
    try:
        return a2b_base64(data[: max_characters and max_characters // 4 * 4])
    except (NotBase64, ValueError):
        return b""


def read_size(data: object) -> tuple[int, int] | None:
    """Return the width and height of a picture in base64, from its header; None if it has none that we know: PNG, JPEG,
    GIF, WebP."""
    head = _decode(data, 64)
    size = 0, 0
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        size = _read_int(head[16:20]), _read_int(head[20:24])
    elif head[:6] in (b"GIF87a", b"GIF89a"):
        size = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        size = _read_webp(head)
    elif head[:2] == b"\xff\xd8":
        size = _read_jpeg(_decode(data, _HEADER))
    return size if min(size) > 0 else None


def _read_int(data: bytes) -> int:
    return int.from_bytes(data, "big")


def _read_webp(head: bytes) -> tuple[int, int]:
    kind = head[12:16]
    if kind == b"VP8X":  # extended: 24 bits each, less one
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    if kind == b"VP8L":  # lossless: 14 bits each, less one
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 ":
        return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
    return 0, 0


def _read_jpeg(data: bytes) -> tuple[int, int]:
    """Walk over the segments up to the first frame header."""
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return _read_int(data[at + 7 : at + 9]), _read_int(data[at + 5 : at + 7])
        at += 1 if marker == 0xFF else 2 + max(_read_int(data[at + 2 : at + 4]), 2)
    return 0, 0


def _count_seconds(data: object) -> float:
    """Return how long a sound in base64 is, at most: by the header of a WAV, else by its bytes."""
    head = _decode(data, 64)
    rate = int.from_bytes(head[28:32], "little") if head[:4] == b"RIFF" and head[8:12] == b"WAVE" else 0
    size = len(data.rstrip("=")) * 3 // 4 if isinstance(data, str) else 0
    return size / max(rate, _SOUND_BYTES)


def _count_pages(data: object) -> int:
    """Return the pages of a PDF in base64: as many as it names, or as its size allows."""
    content = _decode(data)
    if not content:
        return UNKNOWN_PAGES
    named = len(re.findall(rb"/Type\s*/Page\b", content))
    return named or max(len(content) // _PAGE_BYTES, 1)
