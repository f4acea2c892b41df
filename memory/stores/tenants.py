"""Tenants: a session's name in a store is the tenant's name, a separator and the session's own name."""

from __future__ import annotations

import re

from ..arguments import ConfigError
from ..patterns import compile_later

#: Between a tenant's name and its session's own.
SEPARATOR = "\x1f"
_TENANT = compile_later(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_CONTROLS = compile_later("[\x00-\x1f\x7f-\x9f]")


def join_name(tenant: str, session: str) -> str:
    """Return the name in a store of a *tenant*'s *session*. Without a tenant (""), it is the session's own name.

    Raises ``ConfigError`` if *tenant* has other characters than letters, digits, ``.``, ``_`` and ``-``, or more than
    64 of them, or if *session* has control characters: it could name another tenant's session.
    """
    if tenant and not _TENANT.fullmatch(tenant):
        raise ConfigError(("tenant", "must be 1 to 64 letters, digits, dots, underscores or hyphens, or empty"))
    if _CONTROLS.search(session):
        raise ConfigError(("session", "must have no control characters"))
    return f"{tenant}{SEPARATOR}{session}" if tenant else session


def require_tenant(tenant: str) -> None:
    """Raise ``ConfigError`` if *tenant* is not the name of a tenant whose sessions may be purged together."""
    if not tenant:
        raise ConfigError(("tenant", "must not be empty: sessions without a tenant are purged by name, or expire"))
    join_name(tenant, "")


def split_name(name: str) -> tuple[str, str]:
    """Return the tenant and the session's own name of a *name* in a store; the tenant is "" if there is none."""
    tenant, separator, session = name.partition(SEPARATOR)
    return (tenant, session) if separator and _TENANT.fullmatch(tenant) else ("", name)
