"""The OpenAPI description says what the server does: Schemathesis finds nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install 'context-compactor[server]'")

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from compactor import CompactorConfig, InMemoryStore
from compactor.server import ServerSettings, create_app

URL = "http://127.0.0.1"
BODY = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning."}]}


@pytest.fixture(scope="module")
def schema(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
    from schemathesis.python.asgi import get_client  # here: it is imported for a second, by one process

    config, folder = CompactorConfig(threshold=1_000), tmp_path_factory.mktemp("files")
    app = create_app(
        ServerSettings(store="memory://", rate=None, config=config, store_dir=folder), store=InMemoryStore()
    )
    with get_client(app) as client:  # the app's lifespan, once for all tries
        client.headers["host"] = "127.0.0.1"
        assert client.post(f"{URL}/api/sessions/s/messages", json=BODY).status_code == 201
        yield schemathesis.openapi.from_dict(app.openapi()), client


def check(schema: Any, examples: int) -> None:
    """Try each operation but the streams of events, which do not end."""
    description, client = schema
    assert len([*description.get_all_operations()]) > 20
    for found in description.get_all_operations():
        operation = found.ok()
        if not operation.path.endswith("/events"):
            _try(operation, client, examples)


def _try(operation: Any, client: Any, examples: int) -> None:
    from schemathesis.checks import not_a_server_error, positive_data_acceptance

    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(case=operation.as_strategy(), is_known=st.booleans())
    def run(case: Any, is_known: bool) -> None:
        if is_known and "session_id" in case.path_parameters:
            case.path_parameters["session_id"] = "s"
        # No schema can say what an import takes, nor which cursors a list has ordered by activity.
        open_ended = operation.path.endswith("/import") or "after" in (case.query or {})
        excluded = [positive_data_acceptance] if open_ended else []
        response = case.call(session=client, base_url=URL)
        if response.status_code == 504:  # what a time-out of no time leads to; only operations that say so answer it
            excluded.append(not_a_server_error)
        case.validate_response(response, excluded_checks=excluded)

    run()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_schemathesis_finds_nothing(schema: Any) -> None:
    check(schema, 15)


def test_the_description_names_the_token_and_what_is_refused_before_a_route() -> None:
    """A client made of it sends the token, and knows each status that it may get."""
    open_, closed = (
        create_app(ServerSettings(store="memory://", tokens=tokens)).openapi()
        for tokens in ({}, {"alice": SecretStr("alice-token-0123456789")})
    )
    assert "securitySchemes" not in open_["components"]
    assert closed["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in closed["paths"].items():
        for method, operation in operations.items():
            is_public = path in ("/healthz", "/readyz")
            assert ("security" in operation) is not is_public, path
            expected = {"403", "421"} if is_public else {"400", "401", "403", "421", "429"}
            assert operation["responses"].keys() >= expected | ({"408", "413"} if method != "get" else set()), path
            assert ("410" in operation["responses"]) == path.startswith("/api"), path
            wrong = operation["responses"].get("422", {"content": {"application/problem+json": {}}})
            assert "application/problem+json" in wrong["content"], path
    operations_ = [one for operations in closed["paths"].values() for one in operations.values()]
    names = [one["operationId"] for one in operations_]
    assert len({*names}) == len(names)
    assert {"append_messages", "compose", "export_session", "context_offload"} <= {*names}
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for operation in operations_:
        for status, response in operation["responses"].items():
            if status >= "4" and "content" in response:
                assert response["content"]["application/problem+json"] == problem, (operation["operationId"], status)
                assert operation["tags"] == ["reme"] or len(response["content"]) == 1
    assert "401" not in open_["paths"]["/api/sessions"]["get"]["responses"]
