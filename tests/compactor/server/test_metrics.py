"""``/metrics`` of the server: the same metrics as everywhere, of all sessions together, for those who may know."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

import httpx
from pydantic import SecretStr

from compactor import CompactorConfig, InMemoryStore
from compactor.server import ServerSettings, create_app

TOKENS = {name: SecretStr(f"{name}-token-0123456789") for name in ("alice", "metrics")}


def ask(tokens: dict[str, SecretStr], *tenants: str) -> list[httpx.Response]:
    """Return what each of *tenants* reads after a compaction of a session named ``hers``."""
    settings = ServerSettings(store="memory://", tokens=tokens, config=CompactorConfig(threshold=2, retain_recent=1))
    app = create_app(settings, store=InMemoryStore())

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8765") as client,
        ):
            with app.state.compactor.open("alice" if tokens else "", "hers") as session:
                for number in range(1, 5):
                    session.append({"role": "user", "content": f"Question {number}: what does item-{number} cost?"})
                    session.append({"role": "assistant", "content": f"Item-{number} costs {number * 11} euros. " * 9})
                await asyncio.to_thread(session.compactor.compact_now, 10)
            headers = [{"authorization": f"Bearer {name}-token-0123456789"} if name else {} for name in tenants]
            return [await client.get("/metrics", headers=one) for one in headers]

    return asyncio.run(run())


def test_the_metrics_are_those_of_all_sessions_without_their_names() -> None:
    """On one's own machine without a token."""
    (answer,) = ask({}, "")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert 'compactor_compactions_total{outcome="published",role="assistant"}' in answer.text
    assert "hers" not in answer.text


def test_a_tenant_among_others_does_not_see_what_all_of_them_spend() -> None:
    """One of that name may; whoever is alone sees nothing but their own."""
    refused, allowed, nobody = ask(TOKENS, "alice", "metrics", "")
    assert (refused.status_code, allowed.status_code, nobody.status_code) == (403, 200, 401)
    assert "compactor_" not in refused.text
    assert ask({"alice": TOKENS["alice"]}, "alice")[0].status_code == 200
