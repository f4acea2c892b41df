"""A connection to PostgreSQL that gives a server up which says nothing.

TCP notices a machine that is gone, and not a server that is stopped, or something between that takes everything and
hands nothing on: nobody else would ever end that wait.

It rests on psycopg's ``Connection.wait``, through which all waiting goes, and on that calling back several times a
second while there is nothing: it does so from 3.2.13 on.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any, TypeVar

from psycopg import Connection, OperationalError

Result = TypeVar("Result")


class Silent(OperationalError):
    """The server said nothing for too long. Whether it did what it was asked is not known."""

    silent = True


def connection_class(seconds: float) -> type[Connection[Any]]:
    """Return the class of connections that are closed where the server says nothing for so many *seconds*.

    Each has ``given_up_after``, for whoever knows that a statement takes longer.
    """

    class Attentive(Connection[Any]):
        given_up_after = seconds

        def wait(self, gen: Generator[Any, Any, Result], *more: Any, **options: Any) -> Result:
            return super().wait(self._attended(gen), *more, **options)

        def _attended(self, gen: Generator[Any, Any, Result]) -> Generator[Any, Any, Result]:
            # Whoever drives it comes back several times a second, with nothing, to let signals through.
            seconds = self.given_up_after
            last = time.monotonic() + seconds
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if ready:
                        last = time.monotonic() + seconds
                    elif time.monotonic() > last:
                        self.pgconn.finish()
                        raise Silent(f"it has said nothing for {seconds:g} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                result: Result = end.value
                return result

    return Attentive
