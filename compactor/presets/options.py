"""Checks for the arguments of presets. Each error names the setting and the remedy."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any

from memory.arguments import kind_of

from ..config import CompactorConfig, ConfigError, Settings


def check_config(config: object) -> CompactorConfig:
    """Return *config*; the default one for None."""
    if config is None:
        return CompactorConfig()
    if isinstance(config, Settings):
        raise ConfigError(("config", "these are the settings of all roles; give settings.for_role('Planner')"))
    if not isinstance(config, CompactorConfig):
        raise ConfigError(("config", f"must be a CompactorConfig(...), not {kind_of(config)}"))
    return config


def check_share(name: str, value: object, most: float = 1.0) -> float:
    """Return *value*, a number over 0 and at most *most*."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ConfigError((name, f"should be a share, over 0 and at most {most:g}, not {value!r}"))
    return float(value)


def check_names(name: str, value: object) -> tuple[str, ...]:
    """Return one name or several as a tuple."""
    names = (value,) if isinstance(value, str) else tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(one, str) for one in names):
        raise ConfigError((name, f"must be a name or several, such as ('load_skill',), not {value!r}"))
    return names


def check_text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError((name, f"must be a text, not {kind_of(value)}"))
    return value


def check_path(name: str, value: Any) -> str:
    """Return the path of a folder that messages can name: one line, without lone surrogates."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(path, str):
        raise ConfigError((name, f"must be the path of a folder, a str or a Path, not {kind_of(path)}"))
    if not path:
        raise ConfigError((name, "is empty; give the path of a folder, or None to write no files"))
    if any(unicodedata.category(one) in ("Cc", "Cs") for one in path):
        raise ConfigError((name, f"{path[:80]!a} has characters that no message can name; give another path"))
    return path


def check_function(name: str, value: Callable[..., Any] | None) -> None:
    if value is not None and not callable(value):
        raise ConfigError((name, f"must be a function, or None, not {kind_of(value)}"))
