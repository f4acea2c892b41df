"""The proxy, by the official clients as they are and by plain HTTP: a model on loopback tells what arrived there."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
import socket
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
import structlog
from anthropic import AsyncAnthropic
from fenced import blocks
from model_server import ModelServer, reply, status
from openai import AsyncOpenAI, OpenAI
from proxied import (
    AUTH,
    CLIENT,
    KEY,
    ONE_TURN,
    SIGNS,
    WORDS,
    answer_any,
    list_sessions,
    make_history,
    proxy,
    read_text,
    texts_of,
)

from compactor import (
    InMemoryStore,
    count_prompt,
    get_counter,
)

# -- conversations -------------------------------------------------------------------------------------------------------


async def say_chat(client: AsyncOpenAI, history: list[Any], *, stream: bool) -> str:
    if not stream:
        done = await client.chat.completions.create(model="gpt-4o-mini", messages=history)
        return str(done.choices[0].message.content)
    chunks = await client.chat.completions.create(model="gpt-4o-mini", messages=history, stream=True)
    return "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])


async def say_response(client: AsyncOpenAI, history: list[Any], *, stream: bool) -> str:
    if not stream:
        return (await client.responses.create(model="gpt-4o-mini", input=history)).output_text
    async with client.responses.stream(model="gpt-4o-mini", input=history) as events:
        ended = [event async for event in events if event.type == "response.completed"]
    return str(ended[0].response.output_text)


async def say_message(client: AsyncAnthropic, history: list[Any], *, stream: bool) -> str:
    given: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 100, "messages": history}
    if not stream:
        return str((await client.messages.create(**given)).content[0].text)
    async with client.messages.stream(**given) as events:
        return await events.get_final_text()


def test_conversations_in_parallel_that_begin_alike_are_sessions_of_their_own() -> None:
    """Twenty by the official clients, half streaming: no prompt over the budget, no answer changed, none mixed."""
    budget, count, turns = 900, 20, 5

    async def converse(number: int, chat: AsyncOpenAI, claude: AsyncAnthropic) -> None:
        stream, kind = number % 2 == 0, number % 3
        history: list[Any] = []
        for turn in range(turns):
            who = f"conversation {number}" if turn > 1 else "we"
            asked = f"{turn}: {who} ask. {WORDS * 10}"
            history.append({"role": "user", "content": asked})
            if kind == 0:
                said = await say_chat(chat, history, stream=stream)
            elif kind == 1:
                said = await say_message(claude, history, stream=stream)
            else:
                said = await say_response(chat, history, stream=stream)
            assert said == f"re: {asked[:40]}"
            history.append({"role": "assistant", "content": said})

    with ModelServer("") as model, proxy(model, budget=budget) as (url, state):
        model.always(answer_any())

        async def main() -> None:
            async with (
                AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY) as chat,
                AsyncAnthropic(base_url=url, api_key=KEY) as claude,
            ):
                await asyncio.gather(*(converse(number, chat, claude) for number in range(count)))

        asyncio.run(main())
        sessions = list_sessions(state)
        assert len(sessions) == count
        owners = []
        for session in sessions:
            text = texts_of(state, session)
            (owner,) = [one for one in range(count) if f"conversation {one} ask" in text]
            owners.append(owner)
        assert sorted(owners) == [*range(count)]
        assert len(model.requests) == count * turns
        shortened = 0
        for request in model.requests:
            body = request.body
            said = [{"role": one["role"], "content": read_text(one)} for one in body.get("messages", body.get("input"))]
            system = [{"role": "system", "content": body["system"]}] if body.get("system") else []
            assert count_prompt([*system, *said], get_counter("gpt-4o-mini")) <= budget
            named = {one for one in range(count) if f"conversation {one} ask" in json.dumps(body)}
            assert len(named) <= 1
            shortened += any(sign in json.dumps(body) for sign in SIGNS)
        assert shortened >= count


def test_a_branch_is_a_session_of_its_own_and_a_repeated_request_is_not() -> None:
    """A client that edits an earlier message goes on beside the first conversation; one that asks again does not."""
    history = make_history(3)
    edited = [*history[:4], {"role": "user", "content": "Something else"}]
    with ModelServer("") as model, proxy(model) as (url, state):
        for one in (history, history, edited, [*history, {"role": "assistant", "content": "x"}, history[0]]):
            CLIENT.post(f"{url}/v1/chat/completions", json={"model": "gpt-4o", "messages": one}, headers=AUTH)
        first, second = sorted(list_sessions(state), key=lambda one: len(texts_of(state, one)))
        assert "Something else" in texts_of(state, first)
        assert "Something else" not in texts_of(state, second)


def test_a_reminder_that_each_request_ends_with_makes_no_branches() -> None:
    """Agents add one to the newest request, and the next request does not have it."""
    reminder = {"role": "user", "content": "Reminder: keep the list of tasks."}
    with ModelServer("") as model, proxy(model) as (url, state):
        for turns in range(1, 6):
            messages = [*make_history(turns), reminder]
            CLIENT.post(f"{url}/v1/chat/completions", json={"model": "gpt-4o", "messages": messages}, headers=AUTH)
        (session,) = list_sessions(state)
        assert texts_of(state, session).count("Reminder") == 1


def test_a_conversation_over_the_budget_is_shortened_before_the_models_first_answer() -> None:
    """It goes on in the same session when the answer has come, also after a restart; a short question has none."""
    notes = [{"role": "user", "content": f"Note {number}. {WORDS * 4}"} for number in range(30)]
    answered = [*notes, {"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And now?"}]
    store = InMemoryStore()
    with ModelServer("") as model:
        for told in ([notes, [*notes, notes[0]]], [answered], [[*answered, notes[0]]]):
            with proxy(model, store, budget=900) as (url, state):
                for messages in told:
                    body = {"model": "gpt-4o-mini", "messages": messages}
                    CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=AUTH)
                CLIENT.post(f"{url}/v1/chat/completions", json=ONE_TURN, headers=AUTH)
                sessions = list_sessions(state)
        sent = [one.body["messages"] for one in model.requests if one.body["messages"] != ONE_TURN["messages"]]
    assert len(sessions) == 2  # the answer is a branch of the repeated note
    assert [count_prompt(one, get_counter("gpt-4o-mini")) <= 900 for one in sent] == [True] * 4
    assert [len(one) < 30 for one in sent] == [True] * 4


def test_keys_and_users_are_told_apart_and_stored_nowhere() -> None:
    """The same words, under the same name or none, by another key or for another user, are another session."""
    store, events = InMemoryStore(), list[str]()
    history, named = make_history(2), {"x-session-id": "trip"}
    with ModelServer("") as model, structlog.testing.capture_logs() as logs:
        with proxy(model, store, budget=5) as (url, state):
            for key in (KEY, f"{KEY}-2"):
                for user in ("ann", "bob"):
                    for more in ({}, named):
                        body = {"model": "gpt-4o", "messages": history, "user": user}
                        headers = {"authorization": f"Bearer {key}", **more}
                        CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            sessions = list_sessions(state)
            assert len(sessions) == 8
            assert sum(one.startswith("trip~") for one in sessions) == 4
            for session in sessions:
                events += [entry.body for entry in store.read(session)]
        assert logs
    assert KEY not in "".join([*events, *sessions, str(logs)])
    assert {request.headers["authorization"] for request in model.requests} == {f"Bearer {KEY}", f"Bearer {KEY}-2"}


#: Headers and fields by which gateways and agents name a session.
NAMINGS: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"X-Session-Id": "trip"}, {}),
    ({"Helicone-Session-Id": "trip"}, {}),
    ({"x-litellm-session-id": "trip"}, {}),
    ({"X-Claude-Code-Session-Id": "trip"}, {}),
    ({"session_id": "trip"}, {}),
    ({}, {"metadata": {"session_id": "trip"}}),
    ({}, {"litellm_session_id": "trip"}),
    ({}, {"metadata": {"user_id": json.dumps({"device_id": "d", "session_id": "trip"})}}),
]


def test_a_session_can_be_named() -> None:
    """From the first message on, and also when the client edits its history: each way of naming leads to the same."""
    with ModelServer("") as model, proxy(model) as (url, state):
        for headers, more in NAMINGS:
            for messages in (ONE_TURN["messages"], make_history(2), make_history(1)):
                body = {"model": "gpt-4o", "messages": [*ONE_TURN["messages"], *messages], **more}  # type: ignore[misc]
                CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=AUTH | headers)
            assert [name.partition("~")[0] for name in list_sessions(state)] == ["trip"], (headers, more)


def test_a_name_in_a_header_is_read_as_utf_8_or_else_as_latin_1() -> None:
    """Most clients send UTF-8, those that follow Fetch send latin-1; a body's name is the same session."""
    with ModelServer("") as model, proxy(model) as (url, state):
        for name in ("für-Ünal", "été"):
            for raw in (name.encode(), name.encode("latin-1")):
                headers = [*AUTH.items(), (b"x-session-id", raw)]
                CLIENT.post(f"{url}/v1/chat/completions", json=ONE_TURN, headers=headers)  # type: ignore[arg-type]
            CLIENT.post(f"{url}/v1/chat/completions", json={**ONE_TURN, "session_id": name}, headers=AUTH)
        agent = [*AUTH.items(), ("x-session-id", "trip"), (b"x-claude-code-agent-id", "zwölf".encode())]
        CLIENT.post(f"{url}/v1/chat/completions", json=ONE_TURN, headers=agent)  # type: ignore[arg-type]
        names = sorted(name.partition("~")[0] for name in list_sessions(state))
        assert names == sorted(["für-Ünal", "été", "trip.zwölf"])


def test_what_an_agent_asks_beside_its_conversation_does_not_end_it() -> None:
    """Agents ask for titles, and have others work for them, under the name of their session."""
    headers = AUTH | {"x-claude-code-session-id": "trip"}
    title = [{"role": "user", "content": "Write a title."}]
    with ModelServer("") as model, proxy(model) as (url, state):
        for messages in (make_history(1), title, make_history(2), title, make_history(3)):
            CLIENT.post(f"{url}/v1/messages", json={"model": "claude-haiku-4-5", "messages": messages}, headers=headers)
        own, beside = sorted(list_sessions(state))
        assert "Question 3" in texts_of(state, own)
        assert "title" not in texts_of(state, own)
        assert texts_of(state, beside).count("Write a title.") == 1


def test_conversations_go_on_where_they_were_after_a_restart() -> None:
    """Named or not: the store has all that it takes to find them."""
    store = InMemoryStore()
    with ModelServer("") as model:
        for turns in (2, 4, 6):
            with proxy(model, store, budget=700) as (url, state):
                for begin, headers in (("One", {}), ("Two", {}), ("Three", {"x-session-id": "trip"})):
                    body = {"model": "gpt-4o", "messages": make_history(turns, begin)}
                    CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=AUTH | headers)
                assert len(list_sessions(state)) == 3


# -- bytes ---------------------------------------------------------------------------------------------------------------

ODD = (
    b'\r\n{ "model" :"gpt-4o-mini","temperature": 1.10, "unknown":{"b":1,"a":[ 1e5 ,null]},\t"\\u006dax_tokens":9 ,\n'
    b'"messages": [ {"content":"Gr\\u00fc\xc3\x9fe \\ud83d\\ude00", "role" : "user", "x":0.1000} ]  }\n'
)


def test_rest_reaches_a_session_by_whatever_name_it_was_given() -> None:
    """Or nobody could delete it."""
    with ModelServer("") as model, proxy(model) as (url, state):
        for name in ("a/b", ".a", "..", "a%2Fb", "a.b/../c", "a b?c#d"):
            CLIENT.post(f"{url}/v1/chat/completions", json=ONE_TURN, headers=AUTH | {"x-session-id": name})
            (session,) = list_sessions(state)
            assert CLIENT.delete(f"{url}/api/sessions/{quote(session, safe='')}").status_code == 204
            assert list_sessions(state) == []


def test_what_needs_no_change_arrives_byte_for_byte() -> None:
    """Odd white space, numbers, escapes, the order of keys, unknown fields, and the client's own headers."""
    headers = AUTH | {"x-own": "a, b", "content-type": "application/json; charset=utf-8"}
    headers |= {"cookie": "mine=1", "connection": "keep-alive, x-hop", "x-hop": "1", "x-compactor-token": "t"}
    with ModelServer("") as model, proxy(model) as (url, _):
        for path in ("chat/completions", "messages", "responses"):
            body = ODD.replace(b'"messages"', b'"input"') if path == "responses" else ODD
            own = headers | {"x-session-id": path}
            answer = CLIENT.post(f"{url}/v1/{path}?beta=true", content=body, headers=own)
            request = model.requests[-1]
            assert (answer.status_code, request.path, request.raw) == (200, f"/v1/{path}?beta=true", body)
            assert request.headers["x-own"] == "a, b"
            assert request.headers["content-type"] == "application/json; charset=utf-8"
            assert request.headers["host"] in model.base_url
            assert not request.headers.keys() & {"cookie", "x-hop", "x-compactor-token"}
        assert len(model.requests) == 3


def test_of_a_body_that_changes_only_the_conversation_changes() -> None:
    """What stands around it has the same bytes."""
    messages = json.dumps(make_history(9)).encode()
    before, behind = b'{ "model":"gpt-4o-mini",  "messages" : ', b' ,"top_p":0.10, "stop" :["\\u0041"],"n":1 }'
    with ModelServer("") as model, proxy(model, budget=600) as (url, _):
        CLIENT.post(f"{url}/v1/chat/completions", content=before + messages + behind, headers=AUTH)
        raw = model.requests[0].raw
    assert raw.startswith(before)
    assert raw.endswith(behind)
    assert len(raw) < len(messages)
    assert raw[len(before) : -len(behind)].startswith(b'[{"role":"system"')


def test_the_system_prompt_of_each_format_gets_the_summary_behind_its_own_words() -> None:
    """One system message in chat, for many servers take no second one; Anthropic's blocks keep their marks."""
    history, block = make_history(9), {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}
    bodies: dict[str, dict[str, Any]] = {
        "chat/completions": {"messages": [{"role": "system", "content": "Be brief."}, *history]},
        "messages": {"system": [block], "messages": history},
        "responses": {"instructions": "Be brief.", "input": history},
    }
    got = {}
    with ModelServer("") as model, proxy(model, budget=700) as (url, _):
        for path, body in bodies.items():
            CLIENT.post(f"{url}/v1/{path}", json={"model": "gpt-4o-mini", **body}, headers=AUTH)
            got[path] = model.requests[-1].body
    first, second = got["chat/completions"]["messages"][:2]
    assert first["content"].startswith("Be brief.\n\n[")
    assert second["role"] == "user"
    assert got["messages"]["system"][0] == block
    assert any(sign in got["messages"]["system"][1]["text"] for sign in SIGNS)
    assert got["responses"]["instructions"] == "Be brief."
    assert got["responses"]["input"][0]["role"] == "developer"
    assert any(sign in got["responses"]["input"][0]["content"] for sign in SIGNS)


NOT_OURS: list[tuple[str, dict[str, Any]]] = [
    ("responses", {"previous_response_id": "resp_1"}),
    ("responses", {"conversation": "conv_1"}),
    ("responses", {"input": [{"type": "item_reference", "id": "i"}, *make_history(9)]}),
    ("responses", {"input": [{"type": "compaction", "encrypted_content": "x"}, *make_history(9)]}),
    ("chat/completions", {"messages": [{"role": "robot", "content": "?"}, *make_history(9)]}),
    ("chat/completions", {"messages": "none"}),
    ("chat/completions", {"model": None}),
]


def test_what_is_not_understood_or_is_the_providers_passes_untouched() -> None:
    """However long it is."""
    with ModelServer("") as model, proxy(model, budget=600) as (url, _):
        for path, more in NOT_OURS:
            key = "input" if path == "responses" else "messages"
            body = json.dumps({"model": "gpt-4o", key: make_history(9), **more}).encode()
            assert CLIENT.post(f"{url}/v1/{path}", content=body, headers=AUTH).status_code == 200
            assert model.requests[-1].raw == body
        assert len(model.requests) == len(NOT_OURS)


UNREADABLE = [
    b"",
    b"{",
    b'{"a": }',
    b'{"a":[1,]}',
    b"[1]",
    b'{"messages":[],"messages":[]}',
    b'{"a":1} x',
    b"\xff\xfe{",
    gzip.compress(ODD),
]


def test_bodies_that_cannot_be_read_pass_untouched() -> None:
    """The provider says what it thinks of them."""
    with ModelServer("") as model, proxy(model) as (url, _):
        model.always(status(400))
        for body in UNREADABLE:
            assert CLIENT.post(f"{url}/v1/chat/completions", content=body, headers=AUTH).status_code == 400
        assert [request.raw for request in model.requests] == UNREADABLE


def test_of_an_array_that_changes_the_items_that_stay_keep_their_bytes() -> None:
    """The newest message is always one of them."""
    messages = json.dumps(make_history(9, last=False)).encode()
    newest = b'{"content":"caf\\u00e9", "role" : "user", "n":1e2, "m":0.10, "m":12345678901234567890 }'
    with ModelServer("") as model, proxy(model, budget=600) as (url, _):
        body = b'{"model":"gpt-4o","messages":' + messages[:-1] + b" , " + newest + b"\n] }"
        CLIENT.post(f"{url}/v1/chat/completions", content=body, headers=AUTH)
        raw = model.requests[0].raw
    assert len(raw) < len(body) / 2
    assert raw.endswith(b" , " + newest + b"\n] }")


def test_no_path_leads_out_of_the_endpoints_own() -> None:
    """By raw bytes: clients would resolve it."""
    with ModelServer("") as model, proxy(model) as (url, _):
        for path in ("../admin", "%2e%2e/admin", "..%2Fadmin", "files/./a"):
            connection = http.client.HTTPConnection(url.removeprefix("http://"))
            connection.request("POST", f"/v1/{path}", b"{}", AUTH)
            assert connection.getresponse().status == 400, path
            connection.close()
        assert not model.requests


@pytest.mark.slow
def test_an_answer_cannot_speak_for_the_servers_own_pages() -> None:
    """An endpoint's cookie and content policy would count for them."""
    given = {"content-security-policy": "script-src *", "set-cookie": "compactor=1", "x-request-id": "r"}
    with ModelServer("") as model, proxy(model) as (url, _):
        model.always(reply({}, headers=given))
        headers = CLIENT.post(f"{url}/v1/files", content=b"{}").headers
    assert headers["x-request-id"] == "r"
    assert "set-cookie" not in headers
    assert "default-src 'none'" in headers["content-security-policy"]


def test_other_paths_pass_through() -> None:
    """With their method, query and body; those that both providers have go to whom the headers name."""
    with ModelServer("") as openai, ModelServer("") as claude:
        urls = {"openai": openai.base_url, "anthropic": claude.base_url.removesuffix("/v1")}
        with proxy(openai, upstreams=urls) as (url, _):
            assert OpenAI(base_url=f"{url}/v1", api_key=KEY).models.list() is not None
            CLIENT.get(f"{url}/v1/models?limit=2", headers={"anthropic-version": "2023-06-01"})
            CLIENT.delete(f"{url}/v1/files/a%2Fb")
            CLIENT.post(f"{url}/v1/messages/count_tokens", content=b"{}")
    assert [(one.method, one.path) for one in openai.requests] == [
        ("GET", "/v1/models"),
        ("DELETE", "/v1/files/a%2Fb"),
    ]
    assert [(one.method, one.path, one.raw) for one in claude.requests] == [
        ("GET", "/v1/models?limit=2", b""),
        ("POST", "/v1/messages/count_tokens", b"{}"),
    ]


class RawServer:
    """An endpoint that keeps each request's bytes, and answers ``{}``."""

    def __init__(self) -> None:
        self.received: list[bytes] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    data = b""
                    while not self._is_whole(data):
                        data += connection.recv(65_536)
                    self.received.append(data)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}")

    @staticmethod
    def _is_whole(data: bytes) -> bool:
        head, end, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if b"transfer-encoding" in head.lower():
            return body.endswith(b"0\r\n\r\n")
        return bool(end) and len(body) >= (int(length[1]) if length else 0)

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_exc: object) -> None:
        with suppress(OSError):  # not everywhere can that be done to one that listens
            self._socket.shutdown(socket.SHUT_RDWR)  # else its thread would wait on, at an open port
        self._socket.close()


ODD_LINES = [
    "GET /v1/models?x={a}&y='b'|c^`d`\"e",
    "GET /v1/files/a%7Eb;c=1,2(3)!*@$&?q=%e4+x%2f&z&&",
    "GET /v1//double//slash",
    "PURGE /v1/x",
    "QUERY /v1/x",
    "TRACE /v1/x",
    "WHATEVER /v1/x?a[0]=1",
]


def test_methods_paths_and_queries_arrive_byte_for_byte() -> None:
    """Sent by a socket: clients would change them."""
    with RawServer() as raw, ModelServer("") as model, proxy(model, upstreams={"openai": f"{raw.url}/v1"}) as (url, _):
        for line in ODD_LINES:
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
                client.sendall(f"{line} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n".encode())
                assert client.makefile("rb").read().startswith(b"HTTP/1.1 200"), line
        assert [one.partition(b" HTTP/1.1\r\n")[0].decode() for one in raw.received] == ODD_LINES


@pytest.mark.parametrize("path", ["files", "chat/completions"])
@pytest.mark.parametrize("has_length", [True, False])
def test_bodies_over_the_limit_are_forwarded_unread(path: str, has_length: bool) -> None:
    """Files and pictures need no session, and a conversation that is too long to read goes on as it was."""
    body = json.dumps({"model": "gpt-4o", "messages": make_history(90)}).encode()
    pieces = (body[at : at + 9_000] for at in range(0, len(body), 9_000))
    with (
        ModelServer("") as model,
        RawServer() as raw,
        structlog.testing.capture_logs() as logs,
        proxy(model, upstreams={"openai": f"{raw.url}/v1"}, max_body=20_000, budget=500) as (url, state),
    ):
        answer = CLIENT.post(f"{url}/v1/{path}", content=body if has_length else pieces, headers=AUTH)
        assert (answer.status_code, answer.json()) == (200, {})
        assert CLIENT.post(f"{url}/api/sessions/s/messages", content=body).status_code == 413
        head, _, sent = raw.received[0].partition(b"\r\n\r\n")
        assert list_sessions(state) == []
    if has_length:
        assert f"content-length: {len(body)}".encode() in head
    else:
        sent = b"".join(part.partition(b"\r\n")[2] for part in re.split(rb"\r\n(?=[0-9a-f]+\r\n)", sent))[:-2]
    assert sent.removesuffix(b"\r\n") == body
    told = [one["error"] for one in logs if one["event"] == "proxy.passed_unchanged"]
    assert told == (["BodyTooLong"] if path == "chat/completions" else [])


def test_a_length_beside_an_encoding_is_not_forwarded() -> None:
    """The endpoint could take the rest of the body for another request."""
    head = "POST /v1/files HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
    with (
        ModelServer("") as model,
        RawServer() as raw,
        proxy(model, upstreams={"openai": f"{raw.url}/v1"}) as (url, _),
        socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client,
    ):
        client.sendall(head.encode() + b"b\r\nfrom a file\r\n0\r\n\r\n")
        assert client.recv(12) == b"HTTP/1.1 200"
        assert b"from a file" in raw.received[0]
        assert b"content-length" not in raw.received[0].lower()


@pytest.mark.parametrize("path", ["files", "chat/completions"])
def test_a_client_that_leaves_within_its_body_leaves_nothing_behind(path: str) -> None:
    with ModelServer("") as model, structlog.testing.capture_logs() as logs, proxy(model) as (url, _):
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.sendall(f"POST /v1/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 99\r\n\r\n{{".encode())
        assert CLIENT.post(f"{url}/v1/{path}", json=ONE_TURN, headers=AUTH).status_code == 200
    assert [one for one in logs if one["event"] == "server.failed"] == []


def test_tool_calls_stay_whole() -> None:
    """Each call that a provider sees has its result, and each result its call."""
    chat: list[dict[str, Any]] = []
    claude: list[dict[str, Any]] = []
    for turn in range(8):
        ids = [f"call_{turn}_{number}" for number in range(3)]
        function = {"name": "load", "arguments": '{"part": 1}'}
        calls = [{"id": one, "type": "function", "function": function} for one in ids]
        uses = [{"type": "tool_use", "id": one, "name": "load", "input": {"part": 1}} for one in ids]
        results = [{"type": "tool_result", "tool_use_id": one, "content": WORDS * 3} for one in ids]
        chat.append({"role": "user", "content": f"Load {turn}"})
        chat.append({"role": "assistant", "content": None, "tool_calls": calls})
        chat += [{"role": "tool", "tool_call_id": one, "content": WORDS * 3} for one in ids]
        chat.append({"role": "assistant", "content": f"Loaded {turn}"})
        claude += [{"role": "user", "content": f"Load {turn}"}, {"role": "assistant", "content": uses}]
        claude += [{"role": "user", "content": results}, {"role": "assistant", "content": f"Loaded {turn}"}]
    with ModelServer("") as model, proxy(model, budget=500) as (url, _):
        for end in range(2, len(chat)):
            if chat[end]["role"] == "assistant":  # all results are there
                body = {"model": "gpt-4o-mini", "messages": chat[:end]}
                CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=AUTH)
        for end in range(3, len(claude) + 1, 2):
            body = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": claude[:end]}
            CLIENT.post(f"{url}/v1/messages", json=body, headers=AUTH)
        for request in model.requests:
            asked: list[str] = []
            answered: list[str] = []
            for message in request.body["messages"]:
                blocks = message["content"] if isinstance(message["content"], list) else []
                asked += [call["id"] for call in message.get("tool_calls", [])]
                asked += [block["id"] for block in blocks if block["type"] == "tool_use"]
                results = [message["tool_call_id"]] if message["role"] == "tool" else []
                results += [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
                assert {*results} <= {*asked}
                answered += results
            waiting = Counter(asked) - Counter(answered)
            assert not waiting


@pytest.mark.slow
def test_the_clients_of_the_page_work_as_they_stand_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the server's own address in place of the usual one."""
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, KEY)
    clients = blocks("docs/proxy.md", "py")
    with ModelServer("") as model, proxy(model) as (url, state):
        model.always(answer_any())
        for block in clients:
            replace(block, text=block.text.replace("http://127.0.0.1:8765", url)).run()
        (named,) = list_sessions(state)
    assert capsys.readouterr().out == "re: Where is my parcel?\n" * 2
    assert named.startswith("parcel-17~")
