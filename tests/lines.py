"""A line to a PostgreSQL server that can be cut: on loopback, with nothing but sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from executors import SOON
from postgres import Postgres

__all__ = ["Line"]


class Line:
    """What stands between a store and its server, and cuts the line when a certain message passes."""

    def __init__(self, server: Postgres) -> None:
        self._server = ("127.0.0.1", server.port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        #: What the message holds; whether the server gets it; how often this happens.
        self.message, self.arrives, self.times = b"", True, 0
        self._start(self._accept)

    def url(self, url: str) -> str:
        return url.replace(str(self._server[1]), str(self._listening.getsockname()[1]))

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(SOON)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            self._start(self._carry, near, socket.create_connection(self._server))

    def _carry(self, near: socket.socket, far: socket.socket) -> None:
        cut, answered = threading.Event(), threading.Event()

        def back() -> None:
            while answer := _received(far):
                if cut.is_set():
                    answered.set()  # and nobody hears of it
                else:
                    near.sendall(answer)
            near.close()

        with near, far:
            self._start(back)
            while asked := _received(near):
                if self.times and self.message in asked:
                    self.times -= 1
                    cut.set()
                    if self.arrives:
                        far.sendall(asked)
                        assert answered.wait(SOON)
                    break
                far.sendall(asked)
            far.shutdown(socket.SHUT_RDWR)


def _received(end: socket.socket) -> bytes:
    try:
        return end.recv(65536)
    except OSError:
        return b""
