"""The configuration of one compactor, and settings that give each role its own."""

import json
import os
import re
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    TypeAdapter,
    ValidationError,
)

from memory.arguments import (
    ConfigError,
    WrongType,
    check_number,
    check_whole_number,
    find_near,
    name_kind,
    require,
    require_role,
)
from memory.rounds import FrozenModel, name_arguments, run_dump
from memory.values import ValueObject
from prompts import PromptError, PromptTemplate, is_path, list_shipped, load

# The longest wait that every platform's locks accept is 49 days.
Seconds = Annotated[float, Field(gt=0, le=4_000_000)]


def _read_path(value: Any) -> Any:
    """Return a ``Path`` as text that is a path again: without suffix and separator, it would name a shipped prompt."""
    if not isinstance(value, os.PathLike):
        return value
    text = os.fspath(value)
    return os.path.join(os.curdir, text) if isinstance(text, str) and not is_path(text) else text


PathText = Annotated[str, BeforeValidator(_read_path)]


def _split_names(value: Any) -> Any:
    """Return names as a tuple, from a list or from one text with commas."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return tuple(value) if isinstance(value, list | set | frozenset) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]


#: What a limit counts together: everything, or what has the same provider, model or tenant.
Per = Literal["all", "provider", "model", "tenant"]
#: What a limit sums: tokens in any minute, dollars in any hour.
Quantity = Literal["tokens", "spend"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Limit(ValueObject):
    """A limit for ``SharedLimits``: on all calls together, or separately on each provider, model or tenant (*per*)."""

    #: Maximum number of cycles that call a model at the same time.
    max_concurrency: int | None = None
    #: Maximum tokens of requests and answers in any minute.
    max_tokens_per_minute: int | None = None
    #: Maximum dollars in any sixty minutes.
    max_spend_per_hour: float | None = None
    per: Per = "all"

    def __post_init__(self) -> None:
        if self.max_concurrency is self.max_tokens_per_minute is self.max_spend_per_hour is None:
            raise ConfigError(
                ("limits", "give a Limit max_concurrency=, max_tokens_per_minute= or max_spend_per_hour=")
            )
        for name in ("max_concurrency", "max_tokens_per_minute"):
            if getattr(self, name) is not None:
                check_whole_number(name, getattr(self, name), 1)
        if self.max_spend_per_hour is not None:
            check_number("max_spend_per_hour", self.max_spend_per_hour, above=True, finite=True)
        if self.per not in ("all", "provider", "model", "tenant"):
            raise ConfigError(("per", "must be all, provider, model or tenant"))

    def list_amounts(self) -> Iterator[tuple[Quantity, float]]:
        """Yield each limited quantity with its maximum."""
        if self.max_tokens_per_minute is not None:
            yield "tokens", float(self.max_tokens_per_minute)
        if self.max_spend_per_hour is not None:
            yield "spend", self.max_spend_per_hour


def _read_limits(value: Any) -> Any:
    """Convert the JSON objects of a settings file to ``Limit(...)``."""

    def read(one: Any) -> Any:
        if not isinstance(one, Mapping):
            require("limits", one, Limit, "a list of the arguments of Limit(...)")
            return one
        names = [field.name for field in fields(Limit)]
        if unknown := [name for name in one if name not in names]:
            raise ValueError(f"a list of limits with the fields {', '.join(names)}; there is no {unknown[0]!r}")
        return Limit(**one)

    return tuple(map(read, value)) if isinstance(value, list | tuple) else value


Limits = Annotated[tuple[Any, ...], BeforeValidator(_read_limits)]


class CompactorConfig(FrozenModel):
    """How one compactor works. Frozen; invalid values raise ``ConfigError`` when it is made."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    threshold: int = Field(default=10, ge=0)
    """A compaction is due when more rounds than this follow the end of the last one."""
    retain_recent: int = Field(default=3, ge=0)
    """Number of newest rounds that are never compacted, the open one included."""
    retain_at_least: int = Field(default=0, ge=0)
    """Minimum number of retained rounds. Fewer than ``retain_recent`` are retained only if the prompt is too long."""
    prompt_template_path: PathText = ""
    """A path, which has a suffix or a separator, or the name of a shipped prompt, which has neither. Empty: the default
    prompt. Read when the configuration is made."""
    enabled: bool = True
    """False: nothing is compacted; the published compaction stays."""
    max_tokens: int | None = Field(default=None, gt=0)
    """Maximum tokens of the agent's prompt. A compaction is also due when the prompt reaches ``token_ratio`` of it."""
    token_ratio: float = Field(default=0.75, gt=0, le=1)
    """Share of ``max_tokens`` at which a compaction is due."""
    summarizer_input_tokens: int = Field(default=24_000, ge=256)
    """Maximum tokens of a request to the summarizer. Longer input is summarized in several requests."""
    target_tokens: int | None = Field(default=1_000, gt=0)
    """Desired length of a summary in tokens. None: no target."""
    summary_attempts: int = Field(default=2, ge=1)
    """Maximum requests for one summary. After a rejected answer the request is repeated at once, with a note of the
    fault; the note comes on top of ``summarizer_input_tokens``."""
    call_timeout: Seconds = 120.0
    """Seconds after which a call to the summarizer has failed; a later answer is discarded."""
    backoff_initial: Seconds = 1.0
    """Seconds from a first failure to the next attempt; doubled with each further failure."""
    backoff_max: Seconds = 60.0
    """Maximum seconds between two attempts while the circuit is closed."""
    circuit_breaker_failures: int = Field(default=5, ge=1)
    """Failures in a row that open the circuit."""
    circuit_breaker_reset: Seconds = 60.0
    """Seconds until an open circuit allows one attempt, which closes it or opens it again. They double, up to 64 times
    as long, while the model's answers are refused: each has to be paid."""
    limits: Limits = ()
    """What ``compactor worker`` shares with all others on its store, as ``SharedLimits``: a list of the arguments of
    ``Limit``."""
    exempt_tools: Names = ()
    """Names of tools whose calls and results no strategy offloads, drops or summarizes, such as a tool that loads
    skills. A compaction covers them with their round; ``memory.pin`` keeps a text even then."""
    model: str = ""
    """The model whose tokenizer counts. Empty: the encoding o200k_base."""
    summarizer_provider: Literal["openai", "anthropic", "gemini", "extractive"] = "openai"
    """Where ``summarizer_model`` is; "openai" is any compatible endpoint. "extractive": no model is asked. These four
    count where a compactor is given no summarizer."""
    summarizer_model: str = ""
    """The model that writes summaries. Empty: they are extracted offline."""
    summarizer_base_url: str = ""
    """The address of its endpoint. Empty: the provider's own, or that in the provider's environment variable."""
    summarizer_api_key_env: Annotated[str, Field(pattern="^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    """The name of the environment variable that holds the key, never the key. Empty: the provider's own variable."""
    summarizer_provider_compaction: bool = False
    """True: "openai" or "anthropic" also makes its own compaction, for an agent on ``summarizer_model`` itself."""

    _prompt: PromptTemplate | None = PrivateAttr(None)  # None: the default one, read when it is first used

    if not TYPE_CHECKING:  # type checkers keep the signature that pydantic gives them

        def __init__(self, *leading: Any, **values: Any) -> None:
            """Accept the first three settings by position, too, as TaskWeaver's dataclass does."""
            if leading:
                values = name_arguments(("threshold", "retain_recent", "prompt_template_path"), leading, values)
            try:
                super().__init__(**values)
                if self.prompt_template_path:
                    super().__setattr__("_prompt", load(self.prompt_template_path))
            except ValidationError as exc:
                raise ConfigError(*(_describe_problem(details) for details in exc.errors())) from None
            except PromptError as exc:
                raise ConfigError(("prompt_template_path", str(exc))) from exc
            if self.backoff_max < self.backoff_initial:
                fault = f"should be at least backoff_initial, {self.backoff_initial:g}; raise this or lower that"
                raise ConfigError(("backoff_max", fault))

        def __setattr__(self, name: str, value: object) -> None:
            if not name.startswith("_"):
                raise AttributeError(f"a configuration does not change; make another one: config.copy_with({name}=...)")
            super().__setattr__(name, value)

    @property
    def prompt(self) -> PromptTemplate:
        """The template at ``prompt_template_path``, as it was when the configuration was made."""
        return self._prompt or load()

    def copy_with(self, **updates: Any) -> Self:
        """Return a copy with *updates*, validated like a new configuration."""
        config = type(self)(**(run_dump(partial(self.model_dump, exclude_unset=True)) | updates))
        if "prompt_template_path" not in updates:
            config._prompt = self._prompt
        return config

    def with_defaults(self, **defaults: Any) -> Self:
        """Return a copy with *defaults* for the fields that were not set."""
        return self.copy_with(**{name: value for name, value in defaults.items() if name not in self.model_fields_set})

    def with_prompt(self, prompt: PromptTemplate) -> Self:
        """Return a copy with *prompt* as its prompt, which need not be a file."""
        config = self.model_copy()
        config._prompt = prompt
        return config


def _describe_problem(details: Any) -> tuple[str, str]:
    """Return the name of the field that pydantic refused, and the fault in our words."""
    name = ".".join(map(str, details["loc"]))
    if details["type"] == "extra_forbidden":  # the value may be a secret, set here by mistake
        known = list(CompactorConfig.model_fields)
        near = find_near(name, known)
        return name, f"unknown; did you mean {near!r}?" if near else f"unknown; there are {', '.join(known)}"
    wanted = details["msg"].removeprefix("Input ")
    name = name.partition(".")[0]  # the field that holds it
    if name == "summarizer_api_key_env":  # the value may be a key, set here by mistake
        return name, "should be the name of an environment variable, such as OPENAI_API_KEY; the key stays there"
    default = CompactorConfig.model_fields[name].default
    return name, f"{wanted}, not {reprlib.repr(details['input'])}; leave it out for the default, {default!r}"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Settings(ValueObject):
    """Each role's configuration, from a JSON file and the environment.

    The file has dotted keys, or nested objects that spell the same::

        {
          "compaction.threshold": 20,
          "planner.compaction.threshold": 30,
          "planner.compaction_prompt_path": "prompts/planner.yaml"
        }

    ``compaction.FIELD`` sets a field of ``CompactorConfig`` for every role and ``ROLE.compaction.FIELD`` for one;
    ``ROLE.compaction_prompt_path`` is short for ``ROLE.compaction.prompt_template_path``. A role is written in snake
    case: ``code_interpreter`` for ``CodeInterpreter``. A role's own setting overrides the one for every role. A role
    with the name of a shipped prompt gets that prompt if none is set. Prompt paths are looked up relative to the file's
    folder first. ``compaction.summarizer.model`` is another spelling of ``compaction.summarizer_model``, and so are the
    other fields that begin so.

    Environment variables override the file: ``COMPACTOR_`` and the key in capitals, with two underscores for each dot,
    as in ``COMPACTOR_COMPACTION__THRESHOLD=20`` and ``COMPACTOR_PLANNER__COMPACTION_PROMPT_PATH=planner.yaml``;
    ``none`` means no limit. Pass ``env={}`` to ignore the environment.

    Unknown keys are errors, in the environment too. For a host's own keys in the file, pass their prefixes,
    ``ignore=("llm.", "planner.")``, or ``ignore=""`` to ignore all unknown keys. Keys that begin with ``compaction``,
    or have it after the role, are never ignored.
    """

    defaults: CompactorConfig = field(default_factory=CompactorConfig)
    """The configuration of roles without settings of their own, except for their prompt."""
    _by_role: tuple[tuple[str, CompactorConfig], ...] = ()

    def __post_init__(self) -> None:
        require("defaults", self.defaults, CompactorConfig, "a CompactorConfig; Settings.from_dict({...}) reads keys")

    @classmethod
    def from_file(
        cls,
        path: str | os.PathLike[str] = "config.json",
        env: Mapping[str, str] | None = None,
        *,
        ignore: str | Iterable[str] = (),
    ) -> Self:
        """Return the settings in the JSON file at *path*. Raises ``ConfigError`` if they are invalid."""
        require("path", path, str | os.PathLike, "the path of a JSON file")
        file = Path(path)
        return cls._from_values(_read_json(file), f"{file}: ", file.absolute().parent, env, ignore)

    @classmethod
    def from_dict(
        cls,
        data: Mapping[str, Any],
        *,
        base_dir: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        ignore: str | Iterable[str] = (),
    ) -> Self:
        """Return the settings in *data*, with the keys of the file. Prompt paths are looked up in *base_dir* first."""
        return cls._from_values(data, "", None if base_dir is None else Path(base_dir).absolute(), env, ignore)

    @classmethod
    def _from_values(
        cls,
        data: Any,
        where: str,
        base_dir: Path | None,
        env: Mapping[str, str] | None,
        ignore: str | Iterable[str],
    ) -> Self:
        require("ignore", ignore, Iterable, "what the host's own keys begin with, in a list")
        if not isinstance(data, Mapping):
            raise ConfigError((where.rstrip(": ") or "settings", "must be one object of settings, as in {...}"))
        values = _read_keys(data, where, (ignore,) if isinstance(ignore, str) else tuple(ignore))
        values |= _read_env(os.environ if env is None else env)
        roles = sorted({role for role, _ in values if role})
        defaults, *own = (_make_config(role, values, base_dir, where) for role in ("", *roles))
        return cls(defaults, tuple(zip(roles, own, strict=True)))

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles with settings of their own, in snake case."""
        return tuple(role for role, _ in self._by_role)

    def for_role(self, role: str) -> CompactorConfig:
        """Return the configuration of *role*, which is the agent's name or its snake case."""
        require_role(role)
        name = _make_snake_case(role)
        if (own := dict(self._by_role).get(name)) is not None:
            return own
        if name in list_shipped() and "prompt_template_path" not in self.defaults.model_fields_set:
            return self.defaults.copy_with(prompt_template_path=name)
        return self.defaults


def check_config(config: object) -> CompactorConfig:
    """Return *config*; the default one for None. Raises ``WrongType`` with what to do instead."""
    if config is None:
        return CompactorConfig()
    if isinstance(config, CompactorConfig):
        return config
    if isinstance(config, Settings) or config is Settings:
        remedy = "settings are those of all roles, give one role's: settings.for_role('Planner')"
    elif config is CompactorConfig:
        remedy = "make one of it: CompactorConfig(...)"
    elif isinstance(config, type):
        remedy = f"if it is to summarize, give an instance by name: summarizer={config.__name__}(...)"
    elif isinstance(config, Mapping) and "strategies" in config:
        remedy = "spread a preset: for_role(memory, role, **preset)"
    elif isinstance(config, Mapping):
        remedy = "make one of its settings: CompactorConfig(**settings), or Settings.from_dict(settings).for_role(role)"
    else:
        remedy = "give the others by name: summarizer=, rounds_getter="
    raise WrongType(("config", f"must be a CompactorConfig, not {name_kind(config)}; {remedy}"))


#: The user's name of a setting, and its value; by role ("" for all roles) and field.
_Values = dict[tuple[str, str], tuple[str, Any]]

_PREFIX = "COMPACTOR_"
_FIELDS = tuple(CompactorConfig.model_fields)
_NO_ROLES = {"", "compaction"}
#: Maximum characters of a key that gets a suggestion: longer keys are no typos, and slow to compare.
_MAX_KEY = 200


def _read_keys(data: Mapping[str, Any], where: str, foreign: tuple[str, ...]) -> _Values:
    ours = ((key, value) for key, value in _flatten(data) if _is_ours(key) or not key.startswith(foreign))
    hint = "; if it belongs to the host, pass what it begins with as ignore="
    return _assign(((key, f"{where}{key}", value) for key, value in ours), str, hint)


def _read_env(env: Mapping[str, str]) -> _Values:
    texts = (
        (name.removeprefix(_PREFIX).lower().replace("__", "."), name, text)
        for name, text in env.items()
        # The second condition: COMPACTOR_COMPACTION_THRESHOLD, one underscore short, must not be ignored silently.
        if (name.startswith(_PREFIX) and "__" in name) or name.startswith(f"{_PREFIX}COMPACTION")
    )
    values = _assign(texts, lambda key: _PREFIX + key.upper().replace(".", "__"))
    for (role, field_), (name, text) in values.items():
        kind: Any = CompactorConfig.model_fields[field_].annotation
        with suppress(ValidationError):  # refused as text where all values are checked
            value = TypeAdapter(kind).validate_python(None if text.strip().lower() in {"none", "null"} else text)
            values[role, field_] = (name, value)
    return values


def _assign(settings: Iterable[tuple[str, str, Any]], spell: Callable[[str], str], foreign_hint: str = "") -> _Values:
    """Return the values of *settings* (key, the user's name, value) by role and field.

    Raises for all keys that are unknown or set the same field.
    """
    values: _Values = {}
    problems: list[tuple[str, str]] = []
    for key, name, value in settings:
        target = _find_target(key)
        if target is None:
            near = _find_nearest(key)
            suggestion = f"; did you mean {spell(near)!r}?" if near else ""
            problems.append((name, f"unknown setting{suggestion}{'' if _is_ours(key) else foreign_hint}"))
        elif target in values:
            first = values[target][0]
            again = "is set twice" if first == name else f"sets the same as {first}"
            problems.append((name, f"{again}; keep one"))
        else:
            values[target] = (name, value)
    if problems:
        raise ConfigError(*problems)
    return values


def _find_target(key: str) -> tuple[str, str] | None:
    """Return the role and the field that *key* sets."""
    match key.replace("compaction.summarizer.", "compaction.summarizer_").split("."):
        case ["compaction", name]:
            return ("", name) if name in _FIELDS else None
        case [role, "compaction_prompt_path"]:
            name = "prompt_template_path"
        case [role, "compaction", name]:
            pass
        case _:
            return None
    snake = _make_snake_case(role)
    return (snake, name) if snake not in _NO_ROLES and name in _FIELDS else None


def _is_ours(key: str) -> bool:
    first, _, rest = key.lower().partition(".")
    return first == "compaction" or rest.startswith("compaction")


def _find_nearest(key: str) -> str | None:
    role = key.partition(".")[0]
    known = [f"compaction.{name}" for name in _FIELDS]
    if _make_snake_case(role) not in _NO_ROLES:
        known += [f"{role}.compaction_prompt_path", *(f"{role}.{name}" for name in known)]
    return find_near(key.lower(), known) if len(key) <= _MAX_KEY else None


def _make_snake_case(role: str) -> str:
    """Return ``code_interpreter`` for ``CodeInterpreter``, ``code-interpreter`` and itself."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", role)
    return re.sub(r"[\W_]+", "_", words).strip("_").lower()


def _flatten(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values in nested objects by dotted keys, no deeper than our keys go."""
    for key, value in data.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and dotted.count(".") < 3:
            yield from _flatten(value, f"{dotted}.")
        else:
            yield dotted, value


def _make_config(role: str, values: _Values, base_dir: Path | None, where: str) -> CompactorConfig:
    """Return the configuration of *role*; errors name the setting as the user wrote it, and its source."""
    # In this order, the role's own values replace those for all roles.
    named = {name: value for (owner, name), value in sorted(values.items()) if owner in ("", role)}
    fields = {name: value for name, (_, value) in named.items()}
    path = fields.get("prompt_template_path")
    try:
        if path and isinstance(path, str | os.PathLike):
            fields["prompt_template_path"] = load(path, beside=base_dir).name
        elif "prompt_template_path" not in fields and role in list_shipped():
            fields["prompt_template_path"] = role
        return CompactorConfig(**fields)
    except PromptError as exc:
        raise ConfigError((named["prompt_template_path"][0], str(exc))) from exc
    except ConfigError as exc:
        prefix = f"{where}{role}.compaction." if role else f"{where}compaction."
        problems = ((named[name][0] if name in named else prefix + name, wrong) for name, wrong in exc.problems)
        raise ConfigError(*problems) from exc.__cause__


def _read_json(path: Path) -> Any:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys = dict(pairs)
        if len(keys) < len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise ConfigError((f"{path}: {twice}", "stands twice in one object; keep one"))
        return keys

    # No cause is kept: these errors carry the whole text, which may hold secrets.
    try:
        return json.loads(path.read_bytes().decode("utf-8-sig"), object_pairs_hook=unique)
    except ConfigError:
        raise
    except OSError as exc:
        raise ConfigError((str(path), f"cannot be read ({exc.strerror}); give the path of a JSON file")) from None
    except UnicodeDecodeError as exc:
        raise ConfigError((str(path), f"is not UTF-8 text (byte {exc.start}); save it as UTF-8")) from None
    except json.JSONDecodeError as exc:
        raise ConfigError((str(path), f"is not JSON (line {exc.lineno}, column {exc.colno}: {exc.msg})")) from None
    except (ValueError, RecursionError) as exc:  # thousands of digits in a number, or thousands of brackets
        raise ConfigError((str(path), f"is not JSON that can be read ({type(exc).__name__})")) from None
