"""Exact token counts in OpenAI's encodings, without network access.

The ranks come from splintr's wheel. Tests check them against the SHA-256 sums of OpenAI's files, and the counts against
tiktoken. splintr counts instead of tiktoken because it needs no download, loads and counts faster, and stays linear
(and does not panic) on a million spaces.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from memory.arguments import require_model
from memory.hooks import renew_after_fork
from memory.messages import NATIVE
from memory.patterns import compile_later
from memory.references import find_floor_boundary

from .media import DEFAULT_RULE, MediaRule, count_file, count_media, find_rule, split_data_url

if TYPE_CHECKING:
    from splintr import Tokenizer

DEFAULT_ENCODING = "o200k_base"
#: Tokens that the chat format adds to each message and tool schema, and once to the prompt. OpenAI's cookbook counts 3
#: and 3 for its models.
MESSAGE_TOKENS = 4
PROMPT_TOKENS = 3
#: Keys of encrypted text. Its base64 has four characters for three bytes, and a token is about four bytes.
_OPAQUE = frozenset(("signature", "data", "encrypted_content", "thought_signature", "thoughtSignature"))
#: Keys beside the base64 of a file.
_MEDIA_TYPES = ("media_type", "mime_type", "mimeType")
#: Maximum characters in a row without white space, or of white space alone, that are counted exactly: in 1 to 40 ms.
MAX_EXACT_RUN = 100_000
_RUN = compile_later(r"\s+(?!\S)|\s?\S+[\r\n]*")


@runtime_checkable
class TokenCounter(Protocol):
    """A function that counts the tokens of a text. Several threads call it; equal texts must have equal counts."""

    def __call__(self, text: str, /) -> int: ...


def count_tokens(text: str, encoding: str = DEFAULT_ENCODING) -> int:
    """Return the number of tokens of *text* in *encoding* (``o200k_base`` or ``cl100k_base``).

    Special tokens such as ``<|endoftext|>`` count as ordinary text; a lone surrogate counts as U+FFFD, as in tiktoken.
    Takes about 3 µs for 400 characters; the first call loads the encoding, in about a tenth of a second. A run of more
    than ``MAX_EXACT_RUN`` characters without white space, or of white space alone, is overestimated: one token per
    byte. So a megabyte never takes longer than about 0.3 s.
    """
    total = 0
    if len(text) > MAX_EXACT_RUN:
        end = 0
        for start, stop in _find_long_runs(text):
            total += count_tokens(text[end:start], encoding) + len(text[start:stop].encode("utf-8", "surrogatepass"))
            end = stop
        text = text[end:]
    tokenizer = _encodings.loaded.get(encoding) or _encodings.load(encoding)
    try:
        if "<|" in text:  # as all special tokens begin, which encode_flat recognizes
            return total + len(tokenizer.encode_ordinary(text))
        return total + len(tokenizer.encode_flat(text)) // 4  # four bytes for each token
    except UnicodeEncodeError:
        return total + count_tokens(replace_surrogates(text), encoding)


def replace_surrogates(text: str) -> str:
    """Return *text* with adjacent halves of a character joined, and other surrogates replaced, as tiktoken does."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def count_message(message: Mapping[str, Any], count: TokenCounter) -> int:
    """Return the tokens of one chat message: its texts, its calls and the format's overhead.

    An upper estimate: providers do not say how they count ids and names. Pictures, audio and documents count by the
    rule of the model that ``get_counter`` was given.
    """
    content = message.get("content")
    if isinstance(content, str) and len(message) == 2 and "role" in message:  # the usual case
        return MESSAGE_TOKENS + count(content)
    tokens = MESSAGE_TOKENS
    for key, value in message.items():
        if key == "role" or value is None:
            continue
        if isinstance(value, str):
            tokens += count(value)
        elif key == "content" and isinstance(value, list):
            tokens += sum([_count_part(part, count) for part in value])
        elif key == "tool_calls" and isinstance(value, list):
            tokens += sum([_count_call(call, count) for call in value])
        elif key == NATIVE and isinstance(value, Mapping):
            blocks = value.get("blocks")
            kept = [one for one in blocks if isinstance(one, Mapping)] if isinstance(blocks, list) else ()
            tokens += sum([_count_kept(one["as_is"], count) for one in kept if "as_is" in one])
            tokens += _count_kept(value.get("result"), count)
            if "payload" in value:  # one of the two is sent
                tokens = max(tokens, count_payload({"data": value["payload"], **value}, count))
        else:
            tokens += count(_to_json(value))
    return tokens


def count_payload(payload: Mapping[str, Any], count: TokenCounter) -> int:
    """Return the tokens of a message that shows *payload*, a provider's own form of a summary.

    Its encrypted texts count as the provider does (``tokens``); else as estimated, by their length.
    """
    tokens = payload.get("tokens")
    counted = tokens if isinstance(tokens, int) else 0
    return MESSAGE_TOKENS + _count_kept(payload["data"], count, is_counted=counted > 0) + counted


def _count_kept(value: object, count: TokenCounter, key: str = "", *, is_counted: bool = False) -> int:
    """Return the tokens of a block that only its provider can read, such as thinking, files in it by their rules;
    *is_counted*: less those of its encrypted texts."""
    rule = getattr(count, "media", DEFAULT_RULE)
    if isinstance(value, str):
        if key in _OPAQUE:
            return 0 if is_counted else len(value) * 3 // 16
        file = split_data_url(value)
        return count(value) if file is None else count_file(*file, rule)
    if isinstance(value, Mapping):
        media_type = next((value[one] for one in _MEDIA_TYPES if isinstance(value.get(one), str)), "")
        if media_type and isinstance(value.get("data"), str):
            return count_file(media_type, value["data"], rule)
        if value.get("type") == "image_generation_call":
            return count_file("image/", value.get("result"), rule)
        return sum([_count_kept(one, count, name, is_counted=is_counted) for name, one in value.items()])
    if isinstance(value, (list, tuple)):
        return sum([_count_kept(one, count, key, is_counted=is_counted) for one in value])
    return int(value is not None)


def _count_part(part: object, count: TokenCounter) -> int:
    if not isinstance(part, Mapping):
        return count(_to_json(part))
    is_text = part.get("type") == "text"
    tokens = None if is_text else count_media(part, getattr(count, "media", DEFAULT_RULE))
    if tokens is not None:
        return tokens
    text = part.get("text")
    return count(text if isinstance(text, str) else _to_json(part))


def _count_call(call: object, count: TokenCounter) -> int:
    function = call.get("function") if isinstance(call, Mapping) else None
    if isinstance(call, Mapping) and isinstance(function, Mapping) and isinstance(function.get("arguments"), str):
        return count(str(call.get("id"))) + count(str(function.get("name"))) + count(function["arguments"])
    return count(_to_json(call))


def count_tools(tools: Iterable[Mapping[str, Any]], count: TokenCounter) -> int:
    """Return the tokens of tool schemas, which are sent with a prompt as JSON."""
    return sum([MESSAGE_TOKENS + count(_to_json(tool)) for tool in tools])


def count_prompt(
    messages: Iterable[Mapping[str, Any]], count: TokenCounter, tools: Iterable[Mapping[str, Any]] = ()
) -> int:
    """Return the tokens of a request with these *messages* and *tools*."""
    tokens = PROMPT_TOKENS + sum([count_message(message, count) for message in messages])
    return tokens + count_tools(tools, count) if tools else tokens


def _to_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _find_long_runs(text: str) -> list[tuple[int, int]]:
    """Return the start and end of each run too long for an exact count. A run without white space has with it what an
    encoding joins to it: one character before, and line ends after. One of white space is without its margins."""
    half = MAX_EXACT_RUN // 2
    # A too long run contains a whole block of half its length; in prose, every block has white space near its start.
    blocks = (text[at : at + half] for at in range(0, len(text) - half + 1, half)) if len(text) > MAX_EXACT_RUN else ()
    if not any(not (parts := block.split(None, 1)) or len(parts[0]) == half for block in blocks):
        return []
    spans = []
    for run in _RUN.finditer(text):
        start, stop = run.span()
        if stop - start > MAX_EXACT_RUN:
            margin = half // 2 if run[0].isspace() else 0
            spans.append((start + margin, stop - margin))
    return spans


def clip_to_tokens(text: str, limit: int, encoding: str = DEFAULT_ENCODING) -> str:
    """Return the beginning of *text*, at most *limit* tokens, cut between user-perceived characters."""
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(text[:middle], encoding) <= limit:
            low = middle
        else:
            high = middle - 1
    kept = text[: find_floor_boundary(text, low)]
    while kept and count_tokens(kept, encoding) > limit:  # rare: a cut word may take more tokens
        kept = text[: find_floor_boundary(text, len(kept) - 1)]
    return kept


class _Encodings:
    """OpenAI's encodings. The first thread that needs one loads it; the others wait for that."""

    def __init__(self) -> None:
        self.loaded: dict[str, Tokenizer] = {}
        self._after_fork()
        renew_after_fork(self)

    def _after_fork(self) -> None:
        self._loading = threading.RLock()  # guards additions to loaded; a signal's handler may enter it again

    def load(self, name: str) -> Tokenizer:
        """Return the encoding of that *name*. Raises ``KeyError`` if it is not one of ours."""
        with self._loading:
            if name not in self.loaded:
                if name not in _COUNTERS:
                    raise KeyError(f"unknown encoding {name!r}; there are {', '.join(_COUNTERS)}")
                from splintr import Tokenizer

                tokenizer: Any = Tokenizer.from_pretrained(name)
                tokenizer.encode_flat("qzx")  # the first merge prepares most of its tables
                self.loaded[name] = tokenizer
            return self.loaded[name]


_encodings = _Encodings()


def find_encoding(model: str) -> str | None:
    """Return the encoding that *model* uses; None for an unknown model.

    The part before the last slash is the provider's, as in ``openai/gpt-4o``, or before the first colon, as in
    ``openai:gpt-4o``.
    """
    import tiktoken

    name = model.rpartition("/")[2].lower()
    for spelling in (name, name.partition(":")[2]):
        with suppress(KeyError):
            encoding = tiktoken.encoding_name_for_model(spelling)
            return encoding if encoding in ("o200k_base", "cl100k_base") else DEFAULT_ENCODING
    return None


_COUNTERS: dict[str, TokenCounter] = {
    "o200k_base": count_tokens,
    "cl100k_base": partial(count_tokens, encoding="cl100k_base"),
}


@lru_cache(maxsize=64)
def get_counter(model: str = "") -> TokenCounter:
    """Return the counter for *model*; models with the same encoding, and the same rule for pictures, share one object.

    The empty name and unknown models get ``o200k_base``.
    """
    require_model(model)
    return _make_counter((find_encoding(model) if model else None) or DEFAULT_ENCODING, find_rule(model))


@lru_cache(maxsize=64)
def _make_counter(encoding: str, rule: MediaRule) -> TokenCounter:
    if rule is DEFAULT_RULE:
        return _COUNTERS[encoding]
    counter = partial(count_tokens, encoding=encoding)
    counter.media = rule  # type: ignore[attr-defined]  # count_message asks for it
    return counter


#: The window of a model that nobody knows, in tokens.
DEFAULT_WINDOW = 128_000


def window_of(model: str, windows: Mapping[str, int] | None = None) -> int | None:
    """Return the context window of *model* in tokens; None if unknown.

    *windows* maps prefixes of names to tokens and takes precedence over the windows known to this library; the longest
    matching prefix wins. The part of a name before the last slash is the provider's. All other windows are those that
    ``compactor.find_model`` knows; the first call that needs one takes about 0.2 s of CPU time.
    """
    require_model(model)
    name, full = model.rpartition("/")[2].lower(), model.lower()
    own = {given.lower(): tokens for given, tokens in (windows or {}).items()}
    fitting = [given for given in own if given and (name.startswith(given) or full.startswith(given))]
    if fitting:
        return own[max(fitting, key=len)]
    if not model:
        return None
    from .models import find_model

    return find_model(model).window
