"""The server: the library over HTTP, in one process. ``compactor serve`` runs it.

Needs ``pip install "context-compactor[server]"``.
"""

from __future__ import annotations

from ..lazy_imports import import_lazily

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .app import create_app
    from .settings import ServerSettings

__all__ = ["ServerSettings", "create_app"]

try:
    import fastapi  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        'the server needs FastAPI and uvicorn: pip install "context-compactor[server]"', name=error.name
    ) from error

__getattr__, __dir__ = import_lazily(__name__, {"app": "create_app", "settings": "ServerSettings"})
