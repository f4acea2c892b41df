"""Requests a second of the server: append and compose over HTTP, on SQLite and on PostgreSQL.

    python -m benchmarks.server                              # SQLite in a temporary folder
    python -m benchmarks.server --store postgresql+psycopg://user@host/database
    python -m benchmarks.server --requests 100000            # memory over that many prompts

Needs wrk. Eight connections take turns among 64 sessions. Prints a table in Markdown: requests a second, medians and
99th percentiles in milliseconds, and the server's memory behind each row. "stalled" is the same beside 1,000 idle
clients of events, 20 that are told of everything and never read, and one that begins bodies of 100 MB again and again.
"""

from __future__ import annotations

import argparse
import http.client
import re
import resource
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

CONNECTIONS, SESSIONS = 8, 64
#: A script of wrk: each request goes to the next session. Of *share*, appends alternate questions and answers.
SCRIPT = """
local count = 0
request = function()
  count = count + 1
  local path = "/api/sessions/s" .. (count % {sessions}) .. "/{route}"
  local body = [[{body}]]
  if math.floor(count / {sessions}) % 2 == 1 then body = [[{other}]] end
  return wrk.format("POST", path, {{["Content-Type"] = "application/json"}}, body)
end
done = function(summary, latency)
  print(string.format("RESULT %d %d %d %d %d", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), summary.errors.status + summary.errors.read
    + summary.errors.timeout + summary.errors.connect))
end
"""
WORDS = "The archive holds the invoices of the northern branch since March. " * 8
ASK = f'{{"messages": [{{"role": "user", "content": "{WORDS}"}}]}}'
ANSWER = f'{{"messages": [{{"role": "assistant", "content": "{WORDS}"}}]}}'
COMPOSE = '{"budget": 8000, "system": "Be brief."}'


@contextmanager
def serve(store: str) -> Iterator[tuple[int, int]]:
    """Provide the port and the process of a server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "compactor", "serve", "--store", store, "--port", str(port), "--rate", "0"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # noqa: S603
    try:
        while True:
            with suppress(OSError):
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", "/readyz")
                if connection.getresponse().status == 200:
                    break
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(20)


def memory(pid: int) -> int:
    """Return a process's memory in MB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"VmRSS:\s+(\d+)", status)
    return int(found[1]) // 1024 if found else 0


def load(port: int, route: str, body: str, other: str, seconds: int) -> tuple[float, float, float, int]:
    """Return requests a second, median and 99th percentile in milliseconds, and how many failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT.format(sessions=SESSIONS, route=route, body=body, other=other))
        script.flush()
        target = f"http://127.0.0.1:{port}"
        command = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "--timeout", "30s", "-s", script.name, target]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout  # noqa: S603
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+) (\d+)", output)
    assert found, output
    count, micros, half, most, failed = map(int, found.groups())
    return count * 1e6 / micros, half / 1e3, most / 1e3, failed


@contextmanager
def stall(port: int) -> Iterator[None]:
    """Keep idle clients of events, some that never read, and one that begins bodies of 100 MB."""
    ended = threading.Event()

    def send() -> None:
        head = "POST /api/sessions/s0/messages HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        part = b"%x\r\n%s\r\n" % (65_536, b"x" * 65_536)
        while not ended.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(head.encode())
                for _ in range(1_600):
                    client.sendall(part)

    with ExitStack() as clients:
        opened = []
        for path in ["/api/sessions/idle/events"] * 1_000 + ["/api/events"] * 20:
            opened.append(clients.enter_context(socket.create_connection(("127.0.0.1", port))))
            opened[-1].sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        for client in opened:
            assert client.recv(65_536)  # its stream has begun: to begin a thousand takes the server a second
        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--requests", type=int, default=0, help="compose so many prompts, and print the memory")
    chosen = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))  # of the server too, which inherits it
    with tempfile.TemporaryDirectory() as folder, serve(chosen.store or f"sqlite:///{folder}/chat.db") as (port, pid):
        print("| | requests/s | p50 ms | p99 ms | failed | MB |\n|---|--:|--:|--:|--:|--:|")

        def row(name: str, route: str, body: str, other: str) -> float:
            rate, half, most, failed = load(port, route, body, other, chosen.seconds)
            print(f"| {name} | {rate:,.0f} | {half:.1f} | {most:.1f} | {failed} | {memory(pid)} |", flush=True)
            return rate * chosen.seconds

        row("append", "messages", ASK, ANSWER)
        done = row("compose", "compose", COMPOSE, COMPOSE)
        while done < chosen.requests:
            done += row(f"compose, after {done:,.0f}", "compose", COMPOSE, COMPOSE)
        with stall(port):
            row("append, stalled", "messages", ASK, ANSWER)
            row("compose, stalled", "compose", COMPOSE, COMPOSE)


if __name__ == "__main__":
    main()
