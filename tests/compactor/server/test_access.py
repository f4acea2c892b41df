"""Who may ask the server, from where, how much and how often."""

from __future__ import annotations

import asyncio
import gc
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

import httpx
from fastapi import FastAPI, Request
from pydantic import SecretStr

from compactor import ConfigError, InMemoryStore
from compactor.server import ServerSettings, create_app
from compactor.server.access import COOKIE_SECONDS, Logouts, RateLimit, Tenant
from compactor.server.settings import read_tokens

ALICE, BOB = "alice-token-0123456789", "bob-token-0123456789"
TOKENS = {"alice": SecretStr(ALICE), "bob": SecretStr(BOB)}


def make(**settings: Any) -> FastAPI:
    app = create_app(ServerSettings(store="memory://", **settings), store=InMemoryStore())

    @app.get("/whoami")
    async def whoami(tenant: Tenant) -> str:
        return tenant

    @app.post("/count")
    async def count(request: Request) -> int:
        return len(await request.body())

    @app.get("/fail")
    async def fail() -> None:
        raise ValueError("my secret words")

    @app.get("/stopped")
    async def stopped() -> None:
        raise asyncio.CancelledError

    @app.post("/v1/headers")
    async def headers(request: Request) -> dict[str, str]:
        return dict(request.headers)

    app.router.routes.insert(0, app.router.routes.pop())  # before the proxy's, which take all else under /v1/
    return app


def ask(app: FastAPI, method: str, path: str, **more: Any) -> httpx.Response:
    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client:
            return await client.request(method, path, **more)

    return asyncio.run(run())


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def test_each_token_is_a_tenant() -> None:
    """The token alone says who asks; without one, or with another one, nobody is let in."""
    app = make(tokens=TOKENS)
    assert ask(app, "GET", "/whoami", headers=bearer(ALICE)).json() == "alice"
    assert ask(app, "GET", "/whoami", headers=bearer(BOB)).json() == "bob"
    for headers in ({}, bearer("alice"), bearer(ALICE + "x"), {"authorization": f"Basic {ALICE}"}, bearer("")):
        answer = ask(app, "GET", "/whoami", headers=headers)
        assert answer.status_code == 401
        assert answer.headers["content-type"] == "application/problem+json"
    assert ask(app, "GET", "/whoami", headers={"cookie": "compactor=alice|99999999999|00"}).status_code == 401
    assert ask(app, "GET", "/healthz").json() == {"status": "ok"}
    for path in ("/healthz", "/readyz"):
        assert ask(app, "HEAD", path).status_code == ask(app, "GET", path).status_code


def test_a_provider_key_is_no_token() -> None:
    """Under /v1/ ``Authorization`` is the provider's; our token has a header of its own, and goes no further."""
    app = make(tokens=TOKENS)
    assert ask(app, "POST", "/v1/headers", headers=bearer(ALICE)).status_code == 401
    given = {"x-compactor-token": ALICE, "authorization": "Bearer sk-provider"}
    seen = ask(app, "POST", "/v1/headers", headers=given).json()
    assert seen["authorization"] == "Bearer sk-provider"
    assert "x-compactor-token" not in seen


def test_other_addresses_need_a_token() -> None:
    """A server without tokens cannot be reached from another machine."""
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):  # noqa: S104
        with pytest.raises(ConfigError, match="needs tokens"):
            ServerSettings(host=host)
        assert not ServerSettings(host=host, tokens=TOKENS).is_loopback
    assert all(ServerSettings(host=host).is_loopback for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"))


@pytest.mark.parametrize(
    "tokens", [{"a": "short"}, {"a": "has a space in it"}, {"no/name": ALICE}, {"a": ALICE, "b": ALICE}]
)
def test_bad_tokens_are_refused_without_being_told(tokens: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSettings(tokens=tokens)
    assert not any(token in str(caught.value) for token in tokens.values())


def test_tokens_come_from_the_environment_or_a_file(tmp_path: Any) -> None:
    pairs = {"alice": SecretStr(ALICE), "": SecretStr(BOB)}
    assert read_tokens({"COMPACTOR_TOKENS": f"alice:{ALICE}, {BOB}"}) == pairs
    file = tmp_path / "tokens"
    file.write_text(f"# our people\nalice:{ALICE}\n\n{BOB}\n")
    assert read_tokens({"COMPACTOR_TOKENS_FILE": str(file)}) == pairs
    assert read_tokens({}) == {}
    file.write_text("# nobody\n")
    wrong = [
        {"COMPACTOR_TOKENS_FILE": str(file)},
        {"COMPACTOR_TOKENS_FILE": str(tmp_path / "none")},
        {"COMPACTOR_TOKENS": ALICE, "COMPACTOR_TOKENS_FILE": str(file)},
        {"COMPACTOR_TOKENS": f"alice:{ALICE} alice:{BOB}"},
    ]
    for env in wrong:
        with pytest.raises(ConfigError) as caught:
            read_tokens(env)
        assert ALICE not in str(caught.value)


def test_a_foreign_host_name_is_refused_on_loopback() -> None:
    """A page cannot reach the server by a name of its own that leads to 127.0.0.1."""
    app = make()
    for host in ("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[", "localhost.evil"):
        assert ask(app, "GET", "/whoami", headers={"host": host}).status_code == 421
    for host in ("localhost", "localhost:8765", "127.0.0.1", "[::1]:8765", "LOCALHOST"):
        assert ask(app, "GET", "/whoami", headers={"host": host}).status_code == 200
    assert ask(make(hosts=("chat.example",)), "GET", "/whoami", headers={"host": "chat.example"}).status_code == 200
    assert ask(make(host="127.0.0.2"), "GET", "/whoami", headers={"host": "127.0.0.2:8765"}).status_code == 200
    public = make(host="192.0.2.1", tokens=TOKENS)
    assert ask(public, "GET", "/whoami", headers={"host": "chat.example"} | bearer(BOB)).status_code == 200


FROM: list[tuple[dict[str, str], int]] = [
    ({}, 200),
    ({"origin": "http://127.0.0.1:8765"}, 200),
    ({"sec-fetch-site": "same-origin"}, 200),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"sec-fetch-site": "cross-site"}, 403),
    ({"sec-fetch-site": "same-site", "origin": "http://127.0.0.1:1"}, 403),
    ({"sec-fetch-site": "none", "origin": "http://evil.example"}, 403),
]


def test_another_sites_page_cannot_write() -> None:
    """Not even where no token is asked; programs, which send neither header, can."""
    app = make()
    for headers, status in FROM:
        assert ask(app, "POST", "/count", content=b"x", headers=headers).status_code == status, headers


def test_the_cookie_needs_the_browsers_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logging in gives a cookie that scripts cannot read and other sites' pages cannot use."""
    app, origin = make(tokens=TOKENS), {"origin": "http://127.0.0.1:8765"}
    assert ask(app, "POST", "/login", data={"token": "wrong-token-0123456789"}).status_code == 401
    with monkeypatch.context() as patched:
        patched.setattr(time, "time", lambda: 1_893_456_000.0)
        answer = ask(app, "POST", "/login", data={"token": ALICE}, headers=origin)
        assert answer.status_code == 303
        flags = answer.headers["set-cookie"].lower()
        assert "httponly" in flags
        assert "samesite=strict" in flags
        assert ALICE not in flags
        cookie = {"cookie": answer.headers["set-cookie"].partition(";")[0]}
        assert ask(app, "GET", "/whoami", headers=cookie).json() == "alice"
        assert ask(app, "POST", "/count", headers=cookie).status_code == 403
        assert ask(app, "POST", "/count", headers=cookie | origin).status_code == 200
        assert ask(app, "POST", "/count", headers=cookie | {"origin": "http://evil.example"}).status_code == 403
        assert ask(app, "POST", "/v1/headers", headers=cookie | origin).status_code == 401  # no provider gets it
        other = make(tokens={"alice": SecretStr("another-token-0123456789")})
        assert ask(other, "GET", "/whoami", headers=cookie).status_code == 401  # it ends with its token
        patched.setattr(time, "time", lambda: 1_893_456_000.0 + 13 * 3_600)
        assert ask(app, "GET", "/whoami", headers=cookie).status_code == 401
        assert "max-age=0" in ask(app, "POST", "/logout", headers=bearer(ALICE)).headers["set-cookie"].lower()


def test_a_browser_without_a_token_gets_a_form() -> None:
    answer = ask(make(tokens=TOKENS), "GET", "/", headers={"accept": "text/html"})
    assert answer.status_code == 401
    assert '<form method="post" action="/login">' in answer.text
    assert "form-action 'self'" in answer.headers["content-security-policy"]
    assert ask(make(tokens=TOKENS), "GET", "/login").text == answer.text


def test_tokens_cannot_be_guessed_for_long() -> None:
    app = make(tokens=TOKENS)
    tries = [ask(app, "POST", "/login", data={"token": f"guess-{n:020}"}) for n in range(40)]
    assert {one.status_code for one in tries} == {401, 429}
    assert ask(app, "GET", "/whoami", headers=bearer("x" * 20)).status_code == 429
    assert ask(app, "GET", "/whoami", headers=bearer(ALICE)).status_code == 200


def test_a_long_body_is_refused_while_it_comes() -> None:
    """Neither its word for its length nor the lack of one gets more than the limit into the server."""
    app, sent = make(max_body=1_000), 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1_000_000):
            sent += 400
            yield b"x" * 400

    assert ask(app, "POST", "/count", content=b"x" * 1_000).json() == 1_000
    for content in (b"x" * 1_001, endless()):
        answer = ask(app, "POST", "/count", content=content)
        assert answer.status_code == 413
        assert answer.headers["connection"] == "close"
    assert sent < 5_000
    assert ask(app, "POST", "/count", headers={"content-length": "x"}).status_code == 400


@pytest.mark.parametrize("size", [500_000, 2_000_000])
def test_a_refused_body_is_not_kept(size: int) -> None:
    """Be it too long or no JSON: its memory is free as soon as it is answered, without a garbage collection."""
    app = make(max_body=1_000_000)

    async def send() -> int:
        statuses, parts = list[int](), iter(range(9, -1, -1))

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"x" * (size // 10), "more_body": next(parts) > 0}

        async def answer(message: Any) -> None:
            statuses.append(message.get("status", 0))

        headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/api/sessions/s/messages", "headers": headers}
        await app({"query_string": b"", "root_path": "", **scope}, receive, answer)
        return statuses[0]

    expected = 422 if size < 1_000_000 else 413
    assert asyncio.run(send()) == expected
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            assert asyncio.run(send()) == expected
        assert tracemalloc.get_traced_memory()[0] - before < 400_000
    finally:
        tracemalloc.stop()
        gc.enable()


def test_a_cookie_is_invalid_after_its_logout() -> None:
    """Whoever copied it; the cookie of another browser stays valid."""
    app, origin = make(tokens=TOKENS), {"origin": "http://127.0.0.1:8765"}
    mine, other = (
        {"cookie": ask(app, "POST", "/login", content=f"token={ALICE}").headers["set-cookie"].partition(";")[0]}
        for _ in range(2)
    )
    assert ask(app, "POST", "/logout", headers=mine | origin).status_code == 303
    assert [ask(app, "GET", "/whoami", headers=one).status_code for one in (mine, other)] == [401, 200]


def test_a_bounded_number_of_logouts_is_remembered_until_the_cookies_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.server.access.MAX_LOGOUTS", 2)
    logouts = Logouts()
    for number in range(3):
        logouts.add("alice", str(number), 100 + number, now=99.0)
    assert ("alice", "0", 100) in logouts  # with all others of the tenant, as more than two were to be remembered
    assert ("alice", "9", 99 + COOKIE_SECONDS) in logouts
    assert ("alice", "9", 100 + COOKIE_SECONDS) not in logouts
    assert ("bob", "0", 100) not in logouts
    logouts = Logouts()
    for number in range(9):
        logouts.add("alice", str(number), 100 + number, now=99.5 + number)
    assert len(logouts._ended["alice"]) == 1


def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    app = make(body_seconds=0.01)

    async def silent() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    assert ask(app, "POST", "/count", content=silent()).status_code == 408


@pytest.mark.parametrize("path", ["/count", "/v1/chat/completions"])
def test_a_body_that_trickles_is_not_waited_for_without_end(path: str) -> None:
    """Though each part comes in time."""
    app = make(max_body_seconds=0.2, upstreams={"openai": "http://127.0.0.1:1"})
    sent = 0

    async def trickle() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            await asyncio.sleep(0.01)
            sent += 1
            yield b"x"

    assert ask(app, "POST", path, content=trickle()).status_code == 408
    assert sent < 1_000


def test_each_tenant_has_its_own_rate() -> None:
    """Too many requests get 429 and the seconds to wait; others are not held up."""
    app = make(tokens=TOKENS, rate=3)
    answers = [ask(app, "GET", "/whoami", headers=bearer(ALICE)) for _ in range(4)]
    assert [one.status_code for one in answers] == [200, 200, 200, 429]
    assert 0 < int(answers[-1].headers["retry-after"]) <= 20
    assert ask(app, "GET", "/whoami", headers=bearer(BOB)).status_code == 200
    assert ask(app, "GET", "/healthz").status_code == 200


def test_the_rate_recovers() -> None:
    now = [0.0]
    limit = RateLimit(60, lambda: now[0])
    assert [limit.take("a") for _ in range(60)] == [0.0] * 60
    assert limit.take("a") == pytest.approx(1.0)
    now[0] += 1.0
    assert limit.take("a") == 0.0
    assert limit.take("a") > 0
    assert not any(RateLimit(None).take("a") for _ in range(100))


def test_a_fault_tells_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the answer nor the log has the words of an error, or a traceback."""
    answer = ask(make(), "GET", "/fail")
    assert (answer.status_code, answer.json()["code"]) == (500, "ServerFailed")
    output = "".join(capsys.readouterr())
    assert "ValueError" in output
    assert "secret" not in answer.text + output
    assert "Traceback" not in output


def test_every_answer_has_the_security_headers() -> None:
    app = make(tokens=TOKENS)
    answers = [ask(app, "GET", path, headers=bearer(ALICE)) for path in ("/whoami", "/none", "/fail", "/healthz")]
    for answer in [*answers, ask(app, "GET", "/whoami"), ask(app, "GET", "/x", headers={"host": "evil"})]:
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == "no-store"


def test_a_request_that_the_stopping_server_cancels_may_be_sent_again() -> None:
    answer = ask(make(), "GET", "/stopped")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json()["code"] == "ServerStops"
