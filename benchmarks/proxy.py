"""What the proxy adds to an answer's first byte and to its end: a model on loopback is asked directly, and through it.

python benchmarks/proxy.py [--requests N] [--turns N] [--store URL]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parent.parent
#: Requests that are not counted: the tokenizer is loaded then.
WARM_UP = 10
WORDS = "How many of the rows that we loaded from the archive this morning are still without a name or a date? "

#: Servers run in processes of their own, so that none holds up the client's.
UPSTREAM = """
import uvicorn
EVENT = b'data: {"choices": [{"index": 0, "delta": {"content": "Yes."}}]}\\n\\n'
WHOLE = b'{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Yes."}}]}'
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    streams = body.startswith(b'{"model": "gpt-4o-mini", "stream": true')
    kind = b"text/event-stream" if streams else b"application/json"
    headers = [(b"content-type", kind)] + [(b"content-length", b"%d" % len(WHOLE))] * (not streams)
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if not streams:
        await send({"type": "http.response.body", "body": WHOLE})
        return
    await send({"type": "http.response.body", "body": EVENT, "more_body": True})
    await send({"type": "http.response.body", "body": b"data: [DONE]\\n\\n"})
uvicorn.run(app, port=int(__import__("sys").argv[1]), log_level="critical", lifespan="off")
"""


def make_history(turns: int, begin: str) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    for turn in range(turns):
        said.append({"role": "user", "content": f"{begin} {turn}: {WORDS * 4}"})
        said.append({"role": "assistant", "content": f"Answer {turn} has {turn * 17} rows. {WORDS}"})
    return [*said, {"role": "user", "content": f"{begin} {turns}: {WORDS * 4}"}]


async def ask(client: httpx.AsyncClient, url: str, body: bytes) -> tuple[float, float]:
    """Return the milliseconds until the first byte of the answer's body, and until its end."""
    began, first = time.perf_counter(), 0.0
    headers = {"authorization": "Bearer sk-none", "content-type": "application/json"}
    async with client.stream("POST", f"{url}/v1/chat/completions", content=body, headers=headers) as answer:
        async for _ in answer.aiter_raw():
            first = first or time.perf_counter() - began
    return first * 1_000, (time.perf_counter() - began) * 1_000


Times = list[tuple[float, float]]


async def compare(direct: str, proxy: str, turns: int, requests: int, *, stream: bool) -> tuple[Times, Times]:
    """Ask with histories that grow by a turn each time, from *turns* on."""
    begin = f"{'C' if stream else 'W'}{turns}"
    times: tuple[Times, Times] = [], []
    async with httpx.AsyncClient(timeout=60) as client:
        for number in range(requests):
            body: Any = {"model": "gpt-4o-mini", "stream": stream, "messages": make_history(turns + number, begin)}
            raw = json.dumps(body).encode()
            for at in (0, 1) if number % 2 else (1, 0):
                times[at].append(await ask(client, (direct, proxy)[at], raw))
    return times


def start(*arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)  # noqa: S603  (our own code)


async def wait_for(url: str) -> None:
    async with httpx.AsyncClient() as client:
        while True:
            try:
                await client.get(url)
                return
            except httpx.HTTPError:
                await asyncio.sleep(0.1)


def free_ports() -> list[str]:
    import socket

    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [str(each.getsockname()[1]) for each in (one, other)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100, help="requests of each kind, for each length")
    parser.add_argument("--turns", type=int, nargs="+", default=[1, 100, 400], help="turns of the history at first")
    parser.add_argument("--budget", type=int, default=60_000, help="tokens of a prompt; longer ones are shortened")
    parser.add_argument("--store", help="URL of the store; a new SQLite database if none")
    given = parser.parse_args()
    upstream, port = free_ports()
    with tempfile.TemporaryDirectory() as folder:
        (settings := Path(folder, "config.json")).write_text('{"compaction.summarizer_provider": "extractive"}')
        serve = ["-m", "compactor", "serve", "--port", port, "--upstream", f"openai=http://127.0.0.1:{upstream}/v1"]
        serve += ["--store", given.store or f"sqlite:///{folder}/sessions.db", "--config", str(settings)]
        serve += ["--budget", str(given.budget), "--rate", "0"]
        servers = [start("-c", UPSTREAM, upstream), start(*serve)]
        try:
            urls = [f"http://127.0.0.1:{one}" for one in (upstream, port)]
            asyncio.run(wait_for(urls[0]))
            asyncio.run(wait_for(f"{urls[1]}/healthz"))
            asyncio.run(compare(*urls, 1, WARM_UP, stream=True))
            print("Milliseconds to the first byte of the answer's body; 'end p50' is added to the time until its end.")
            print("answer   turns    KB  direct p50  proxy p50  added p50  added p99    end p50")
            for turns, stream in [(turns, stream) for turns in given.turns for stream in (True, False)]:
                direct, proxy = asyncio.run(compare(*urls, turns, given.requests, stream=stream))
                added, whole = (sorted(b[at] - a[at] for a, b in zip(direct, proxy, strict=True)) for at in (0, 1))
                size = len(json.dumps(make_history(turns, ""))) / 1_000
                figures = [statistics.median(first for first, _ in one) for one in (direct, proxy)]
                figures += [statistics.median(added), added[int(len(added) * 0.99)], statistics.median(whole)]
                name = "streamed" if stream else "at once"
                print(f"{name:8} {turns:5} {size:5.0f} {' '.join(f'{one:10.2f}' for one in figures)}", flush=True)
        finally:
            for one in servers:
                one.terminate()
                one.wait()


if __name__ == "__main__":
    main()
