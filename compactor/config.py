"""What can be set: one compactor's configuration, and the settings file that gives each role its own."""

from __future__ import annotations

import difflib
import os
import reprlib
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from memory.errors import ContextError
from prompts import PromptError, PromptTemplate, load

__all__ = ["CompactorConfig", "ConfigError"]


class ConfigError(ContextError, ValueError):
    """A setting cannot be used; the message names it, what is wrong with it and the remedy."""

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__(*problems)
        #: What was set, by name, and what is wrong with it.
        self.problems = problems

    def __str__(self) -> str:
        return "; ".join(f"{name}: {wrong}" for name, wrong in self.problems)


# The longest wait that every platform's locks accept is 49 days.
Seconds = Annotated[float, Field(gt=0, le=4_000_000)]
PathText = Annotated[str, BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value)]


class CompactorConfig(BaseModel):
    """How one compactor works. Frozen and valid: nonsense raises ``ConfigError`` when it is made."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    #: More rounds than this after the compaction's end, and the next compaction is due.
    threshold: int = Field(10, ge=0)
    #: The newest rounds stay as they are, this many of them, the open one included.
    retain_recent: int = Field(3, ge=0)
    #: A path or the name of a shipped prompt; empty means the default one. It is read when the configuration is made.
    prompt_template_path: PathText = ""
    #: False: nothing is compacted, what is published stays.
    enabled: bool = True
    #: The prompt's token limit; with it, a compaction is also due when the prompt reaches ``token_ratio`` of it.
    max_tokens: int | None = Field(None, gt=0)
    #: The share of ``max_tokens`` at which a compaction is due.
    token_ratio: float = Field(0.75, gt=0, le=1)
    #: No request to the summarizer is longer, in tokens; what does not fit is folded in by several requests.
    summarizer_input_tokens: int = Field(24_000, ge=256)
    #: How long a summary should be, in tokens; None: no wish.
    target_tokens: int | None = Field(1_000, gt=0)
    #: A summarizer that takes longer, in seconds, has failed; its answer is discarded.
    call_timeout: Seconds = 120.0
    #: Seconds from a first failure to the next attempt; doubled at each further one.
    backoff_initial: Seconds = 1.0
    #: No wait between two attempts is longer, in seconds, while the circuit is closed.
    backoff_max: Seconds = Field(60.0, validate_default=True)
    #: This many failures in a row open the circuit: no attempts for ``circuit_reset`` seconds.
    circuit_failures: int = Field(5, ge=1)
    #: Seconds that an open circuit stays open; then one attempt decides.
    circuit_reset: Seconds = 300.0
    #: The model whose tokenizer counts; empty means o200k_base.
    model: str = ""

    _prompt: PromptTemplate = PrivateAttr()

    if not TYPE_CHECKING:  # type checkers keep the signature that pydantic gives them

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
                self._prompt = load(self.prompt_template_path)
            except ValidationError as exc:
                raise ConfigError(*(_problem(details) for details in exc.errors())) from None
            except PromptError as exc:
                raise ConfigError(("prompt_template_path", str(exc))) from exc

    @field_validator("backoff_max")
    @classmethod
    def _not_below_initial(cls, value: float, info: ValidationInfo) -> float:
        initial = info.data.get("backoff_initial", value)
        if value < initial:
            raise ValueError(f"should be at least backoff_initial, {initial:g}")
        return value

    @property
    def prompt(self) -> PromptTemplate:
        """The template at ``prompt_template_path``, as it was when this was made."""
        return self._prompt

    def merged(self, **changes: Any) -> CompactorConfig:
        """Return a configuration with *changes* made, checked as if it were new."""
        return type(self)(**(self.model_dump(exclude_unset=True) | changes))


def _problem(details: Any) -> tuple[str, str]:
    """Return the setting that pydantic refused, and why, in our words."""
    name = ".".join(map(str, details["loc"]))
    if details["type"] == "extra_forbidden":  # its value may be a secret that was put here by mistake
        return name, f"unknown setting{_nearest(name, CompactorConfig.model_fields)}"
    wanted = details["msg"].removeprefix("Value error, ").removeprefix("Input ")
    default = CompactorConfig.model_fields[name].default
    return name, f"{wanted}, not {reprlib.repr(details['input'])}; leave it out for the default, {default!r}"


def _nearest(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name.lower(), list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are: {', '.join(known)}"
