"""Windows and prices of models by name, from the installed package genai-prices.

Importing this module takes about 0.2 s of CPU time, most of it for that package, so it is imported at the first lookup.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import genai_prices
from genai_prices.types import ModelInfo, TieredPrices

from memory.arguments import require_model
from memory.values import ValueObject


class Dollars(NamedTuple):
    """Dollars per token of each kind."""

    input: float
    cached_input: float
    cache_write: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModelFacts(ValueObject):
    """The known facts of a model; None: unknown."""

    #: Maximum tokens of a prompt.
    window: int | None = None
    #: Prices of short prompts, if they depend on the length; all 0 for a free model.
    dollars: Dollars | None = None


#: Maximum characters of a name. The longest real ones, Bedrock's, have about 150.
MAX_NAME = 256
#: Maximum qualifiers of a name: dates, versions and formats, which do not change the model.
MAX_QUALIFIERS = 4
_QUALIFIER = re.compile(
    r"[-_:@](?:20\d\d-?\d\d-?\d\d|\d\d-20\d\d|\d{3,4}|v\d(?::\d+)?|latest|preview|free"
    r"|instruct(?:-turbo)?|it|versatile|instant|hf|gguf|awq|gptq|(?:fp|bf|int)\d+|q\d\w*)$"
)
#: Separators after which a name may begin: ``azure/gpt-4o``, ``us.anthropic.claude-opus-4-6``; not in ``gpt-4.1``.
_PART = re.compile(r"/|(?<=[a-z])\.(?=[a-z])")
_BEFORE_COLON = re.compile(r"[a-z_-]+(?=:)")
_WORD = re.compile(r"[^\W\d_]+|\d+")
#: Words in names of models that do not chat; their windows say nothing about chat models.
_NO_CHAT = {"audio", "embed", "embedding", "guard", "image", "live", "ocr", "realtime", "transcribe", "tts", "voice"}

_Prices = tuple[float, float, float, float]
#: A provider's id, the window and the dollars. Tuples of atoms, which the garbage collector soon stops tracking.
_Offer = tuple[str, int | None, _Prices | None]
_T = TypeVar("_T", int, _Prices)


@lru_cache(maxsize=256)
def find_model(name: str) -> ModelFacts:
    """Return the facts of the model called *name*, in any usual spelling. Nothing is fetched.

    The provider in *name* comes first (``azure/``, ``openrouter/``, ``openai:``, Bedrock's ids), then the model's
    maker, then all that offer it: the median of their windows and of their prices counts. A name that only begins the
    names of several models, such as ``llama3.1``, has the lower quartile of their windows, and no price. A date,
    version or format at its end need not be known. An unlisted fine-tuned model has its base's price.
    """
    require_model(name)
    name = name.strip().lower() if len(name) <= MAX_NAME else ""
    preferred = dict.fromkeys(_find_providers(name))
    if name.startswith("ft:"):
        name = ":".join(name.split(":")[:2])  # drops organisation and id
    spellings = list(_list_spellings(name))
    groups: list[Sequence[_Offer]] = [
        [offer for offer in _OFFERS.get(key, ()) if offer[0] == provider]
        for provider in preferred
        for key in (*spellings, *map(_split_words, spellings))
    ]
    model = name.rpartition("/")[2]
    groups.extend([_OFFERS.get(_split_words(spelling), ()) for spelling in _list_spellings(model)])
    windows = next(filter(None, [[window for _, window, _ in group if window] for group in groups]), [])
    dollars = next(filter(None, [[price for _, _, price in group if price] for group in groups]), [])
    if name.endswith(":free") and any(groups):
        dollars = [(0.0, 0.0, 0.0, 0.0)]
    return ModelFacts(
        window=_pick_middle(windows) if windows else _find_family_window(model),
        dollars=Dollars(*_pick_middle(dollars)) if dollars else None,
    )


def compute_price(name: str, usage: Mapping[str, int]) -> float | None:
    """Return the dollars for *usage* of the model called *name*; None if the price or the usage is unknown.

    Tokens that were written to the provider's cache count as plain input.
    """
    dollars, read = find_model(name).dollars, usage.get("input_tokens")
    if dollars is None or read is None:
        return None
    cached = min(usage.get("cached_tokens", 0), read)
    plain = (read - cached) * dollars.input + cached * dollars.cached_input
    return plain + usage.get("output_tokens", 0) * dollars.output


def _find_family_window(name: str) -> int | None:
    """Return the lower quartile of the windows of models with names that begin with *name*; None if there are none."""
    for beginning in (*_strip_qualifiers(name), name.partition(":")[0]):
        words = _split_words(beginning)
        family = [
            _pick_middle(windows)
            for key in _NAMES[bisect_left(_NAMES, f"{words} ") : bisect_left(_NAMES, f"{words}!") if words else 0]
            if _NO_CHAT.isdisjoint(key.split())
            if (windows := [window for _, window, _ in _OFFERS[key] if window])
        ]
        if family:
            return sorted(family)[(len(family) - 1) // 4]
    return None


def _pick_middle(values: list[_T]) -> _T:
    return sorted(values)[(len(values) - 1) // 2]


def _split_words(name: str) -> str:
    """Return the words and numbers of *name*, the same for ``llama3.1:8b`` and ``Llama-3.1-8B-Instruct``."""
    name = re.sub(r"(?<=\d)p(?=\d)", ".", name)  # Fireworks writes v3p1
    return " ".join([word for word in _WORD.findall(name) if word not in ("instruct", "it")])


def _list_spellings(name: str) -> Iterator[str]:
    """Yield *name* and shorter spellings of it: providers are removed from the front, qualifiers from the end of
    each."""
    for part in _list_parts(name):
        yield from _strip_qualifiers(part)


def _list_parts(name: str) -> Iterator[str]:
    """Yield *name*, then *name* without its first part, without its first two, and so on."""
    yield name
    if provider := _BEFORE_COLON.match(name):
        yield name[provider.end() + 1 :]
    for part in _PART.finditer(name):
        yield name[part.end() :]


def _strip_qualifiers(name: str) -> Iterator[str]:
    """Yield *name*, then *name* without its last qualifier, without its last two, and so on."""
    yield name
    for _ in range(MAX_QUALIFIERS):
        if (qualifier := _QUALIFIER.search(name)) is None:
            return
        name = name[: qualifier.start()]
        yield name


def _find_providers(name: str) -> Iterator[str]:
    """Yield the ids of the providers in *name*, then that of the model's maker."""
    heads = name.split("/")[:-1]
    if provider := _BEFORE_COLON.match(name):
        heads.append("openai" if provider.group() == "ft" else provider.group())
    if re.match(r"(?:[a-z-]+\.)+[a-z]", name.rpartition("/")[2]):  # a region, a maker, a model
        heads.append("bedrock")
    for head in heads:
        ids = {head, head.removesuffix("_ai"), head.replace("-", "")}
        named = [known for known, _, _ in _PROVIDERS if known in ids]
        yield from named or [known for known, match, _ in _PROVIDERS if match is not None and match.is_match(head)]
    for part in _list_parts(name):
        yield from [known for known, _, match in _PROVIDERS if match is not None and match.is_match(part)]


def _find_prices(model: ModelInfo) -> _Prices | None:
    price = model.get_prices(datetime.now(UTC).replace(hour=12))  # some change with the hour: a process runs for days
    if price.input_mtok is None or price.output_mtok is None:
        return None
    cached = price.input_mtok if price.cache_read_mtok is None else price.cache_read_mtok
    written = price.input_mtok if price.cache_write_mtok is None else price.cache_write_mtok
    read, kept, wrote, output = [
        float(each.base if isinstance(each, TieredPrices) else each) / 1_000_000
        for each in (price.input_mtok, cached, written, price.output_mtok)
    ]
    return read, kept, wrote, output


def _list_names(model: ModelInfo) -> Iterator[str]:
    """Yield the names of *model* in genai-prices."""
    yield model.id.lower()
    for rule in getattr(model.match, "or_", [model.match]):
        for kind in ("equals", "starts_with", "ends_with", "contains"):
            if name := getattr(rule, kind, None):
                yield name.lower()


def _load() -> tuple[dict[str, tuple[_Offer, ...]], tuple[tuple[str, Any, Any], ...]]:
    """Return all offers by the models' names and words; and for each provider, its patterns and its models."""
    is_loaded = "genai_prices.data" in sys.modules
    from genai_prices.data import providers

    offers: dict[str, dict[_Offer, None]] = defaultdict(dict)
    for provider in providers:
        for model in provider.models:
            offer = (provider.id, model.context_window, _find_prices(model))
            for name in _list_names(model):
                offers[name][offer] = None
                for part in _list_parts(name):
                    offers[_split_words(part)][offer] = None
    offers.pop("", None)
    if not is_loaded:  # frees 16,000 objects that each full garbage collection would walk; a new import reloads them
        del sys.modules["genai_prices.data"], genai_prices.data
    rules = tuple([(provider.id, provider.provider_match, provider.model_match) for provider in providers])
    return {name: tuple(group) for name, group in offers.items()}, rules


_OFFERS, _PROVIDERS = _load()
_NAMES = sorted(_OFFERS)
