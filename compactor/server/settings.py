"""The settings of a server. Tokens come from the environment or a file, never from the command line."""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator

from memory.arguments import ConfigError
from memory.stores.tenants import join_name

from ..config import CompactorConfig

#: The environment variables with tokens, and with the path of a file that holds them.
TOKENS, TOKENS_FILE = "COMPACTOR_TOKENS", "COMPACTOR_TOKENS_FILE"
#: Minimum characters of a token: shorter ones can be guessed.
MIN_TOKEN = 16
_TOKEN = re.compile(rf"[!-+\--9;-~]{{{MIN_TOKEN},500}}", re.ASCII)  # no space, comma or colon


def find_data_folder() -> Path:
    """Return the folder for this user's sessions and files."""
    if sys.platform == "win32":
        home = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        home = Path.home() / "Library" / "Application Support"
    else:
        home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "context-compactor"


class ServerSettings(BaseModel):
    """The settings of a server. Invalid values raise ``ConfigError``."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, hide_input_in_errors=True)

    store: str = Field(default_factory=lambda: f"sqlite:///{find_data_folder() / 'sessions.db'}")
    """URL of the store."""
    archive: str | None = None
    """The archive of the store's sessions, an existing folder or a URL: a session is erased there, too."""
    host: str = "127.0.0.1"
    """Address to listen on. Any address but loopback needs *tokens*."""
    port: int = Field(default=8765, ge=0, le=65_535)
    hosts: tuple[str, ...] = ()
    """Further host names under which browsers reach a loopback server, such as that of a proxy in front of it."""
    proxied: bool = False
    """Whether a reverse proxy on this machine names the clients in ``X-Forwarded-For`` and ``X-Forwarded-Proto``. Any
    program on this machine could."""
    tokens: Mapping[str, SecretStr] = Field(default_factory=dict)
    """Each tenant's token. The tenant without a name owns the command line's sessions. Empty: no token is needed."""
    upstreams: Mapping[str, Annotated[str, Field(pattern=r"^https?://[^\s/]+[^\s]*$")]] = Field(default_factory=dict)
    """Base URLs of the model providers by kind: ``openai``, ``anthropic``."""
    max_body: int = Field(default=16_000_000, ge=1_000)
    """Maximum bytes of a request's body. Longer ones under ``/v1/`` are forwarded unread."""
    body_seconds: float = Field(default=30.0, gt=0)
    """Maximum seconds between two parts of a request's body."""
    max_body_seconds: float = Field(default=300.0, gt=0)
    """Maximum seconds until a body has arrived, unless it is forwarded unread."""
    rate: int | None = Field(default=6_000, ge=1)
    """Maximum requests per minute and tenant; None: unlimited."""
    budget: int = Field(default=100_000, ge=1)
    """Maximum tokens of a prompt if the request names none."""
    config: CompactorConfig = Field(default_factory=CompactorConfig)
    """Configuration of the compactors."""
    roles: tuple[str, ...] = Field(default=("assistant",), min_length=1)
    """Roles that get a compactor."""
    store_dir: Path = Field(default_factory=lambda: find_data_folder() / "files")
    """Folder for offloaded files."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problems = ((".".join(map(str, one["loc"])) or "server", one["msg"]) for one in error.errors())
            raise ConfigError(*((name, text.removeprefix("Value error, ")) for name, text in problems)) from None

    @model_validator(mode="after")
    def _check(self) -> ServerSettings:
        for tenant, token in self.tokens.items():
            join_name(tenant, "")
            if not _TOKEN.fullmatch(token.get_secret_value()):
                raise ValueError(f"a token has {MIN_TOKEN} to 500 ASCII characters, and no space, comma or colon")
        if len({token.get_secret_value() for token in self.tokens.values()}) < len(self.tokens):
            raise ValueError("two tenants have the same token; give each its own")
        if not self.tokens and not self.is_loopback:
            raise ValueError(f"host: others can reach {self.host}, so it needs tokens; set {TOKENS} or {TOKENS_FILE}")
        return self

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def read_tokens(env: Mapping[str, str] | None = None) -> dict[str, SecretStr]:
    """Return each tenant's token from the environment, or from the file that it names.

    Both hold ``TENANT:TOKEN`` pairs, separated by commas or white space; a token alone belongs to the tenant without a
    name. Lines of the file that begin with ``#`` are comments. Raises ``ConfigError``, which never quotes a token.
    """
    env = os.environ if env is None else env
    text, name = env.get(TOKENS, ""), TOKENS
    if path := env.get(TOKENS_FILE, ""):
        if text:
            raise ConfigError((TOKENS, f"and {TOKENS_FILE} are both set; keep one"))
        name = TOKENS_FILE
        try:
            lines = Path(path).read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            fault = f"cannot be read ({type(error).__name__}); give the path of a file with TENANT:TOKEN lines"
            raise ConfigError((TOKENS_FILE, fault)) from None
        text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    tokens: dict[str, SecretStr] = {}
    for pair in re.split(r"[\s,]+", text.strip()) if text.strip() else ():
        tenant, separator, token = pair.rpartition(":")
        if tenant in tokens:
            raise ConfigError((name, "has two tokens for one tenant; keep one"))
        tokens[tenant if separator else ""] = SecretStr(token)
    if path and not tokens:
        raise ConfigError((name, "names a file without tokens; write TENANT:TOKEN into it"))
    return tokens
