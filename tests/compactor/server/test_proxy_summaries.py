"""Budgets, summaries and redaction in the proxy, and requests that continue a known conversation."""

from __future__ import annotations

import base64
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from model_server import ModelServer, completion, reply, status
from proxied import (
    AUTH,
    CLIENT,
    KEY,
    WORDS,
    _message,
    answer_any,
    list_sessions,
    make_history,
    proxy,
    texts_of,
)

from compactor import (
    CompactedMessage,
    CompactorConfig,
    InMemoryStore,
    SummarizerError,
    SummaryRequest,
    count_prompt,
    get_counter,
)
from compactor.integrations.redaction import redact
from compactor.server.proxy.summarizer import KEY_SECONDS, RequestSummarizers
from compactor.testing import FakeClock
from memory import Memory, open_store


@pytest.mark.slow
def test_without_a_budget_in_the_settings_the_models_window_counts() -> None:
    """Less what the answer may take."""
    with ModelServer("") as model, proxy(model) as (url, _):
        for name, longest in (("gpt-4", 0), ("gpt-4o", 0), ("gpt-4", 4_000)):
            body: dict[str, Any] = {"model": name, "messages": make_history(60, f"{name} {longest}")}
            body |= {"max_tokens": longest} if longest else {}
            CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=AUTH)
        small, large, smaller = (count_prompt(one.body["messages"], get_counter("gpt-4")) for one in model.requests)
    assert smaller <= 8_192 - 4_000 < small <= 8_192 * 7 / 8 < large


@pytest.mark.parametrize("path", ["chat/completions", "messages"])
def test_summaries_are_asked_of_the_requests_own_endpoint_model_and_key(path: str) -> None:
    """Where none is configured; with the key of the newest request."""
    config = CompactorConfig(threshold=2, retain_recent=1)
    with ModelServer("") as model, proxy(model, budget=100_000, config=config) as (url, _):
        model.always(answer_any())
        headers = {"x-api-key": KEY} if path == "messages" else AUTH
        body = {"model": "gpt-4o-mini", "max_tokens": 50, "messages": make_history(6)}
        CLIENT.post(f"{url}/v1/{path}", json=body, headers=headers)
        assert model.wait_for_requests(2)  # in either order
        asked = next(one for one in model.requests if one.body["messages"][-1] != body["messages"][-1])
    assert (asked.path.partition("?")[0], asked.body["model"]) == (f"/v1/{path}", "gpt-4o-mini")
    assert KEY in (asked.headers.get("x-api-key", ""), asked.headers.get("authorization", "").removeprefix("Bearer "))


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("messages", {"x-api-key": KEY, "authorization": "Bearer other"}),
        ("messages", {"authorization": f"Bearer {KEY}"}),
        ("messages", {"authorization": "Basic abc"}),
        ("messages", {}),
        ("chat/completions", {}),
        ("chat/completions", {"authorization": "Basic abc"}),
        ("chat/completions", {"authorization": b"Bearer k\xe4"}),
    ],
)
def test_whatever_keys_a_request_has_it_is_compacted_with_them_and_no_others(
    path: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two keys, one of another scheme, or none. A key that no client takes costs the summary, not the cut."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "of-this-process")
    monkeypatch.setenv("OPENAI_API_KEY", "of-this-process")
    config = CompactorConfig(threshold=2, retain_recent=1)
    with ModelServer("") as model, proxy(model, budget=900, config=config) as (url, _):
        model.always(answer_any())
        body = {"model": "gpt-4o-mini", "max_tokens": 50, "messages": make_history(9)}
        CLIENT.post(f"{url}/v1/{path}", json=body, headers=given)
        newest = body["messages"][-1]
        forwarded = next(one for one in model.requests if one.body["messages"][-1] == newest)
        assert len(forwarded.body["messages"]) < 19
        if isinstance(given.get("authorization"), bytes):
            return
        assert model.wait_for_requests(2)  # in either order
        asked = next(one.headers for one in model.requests if one.body["messages"][-1] != newest)
    sent = {name: asked[name] for name in ("x-api-key", "authorization") if name in asked}
    assert sent.items() >= (given or {"x-api-key": "not-needed"}).items()
    assert "of-this-process" not in str(sent)


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
def test_sessions_share_connections_but_neither_keys_nor_cookies(kind: str) -> None:
    """A client for each session took 0.8 MB; an endpoint's cookie may stand for an account."""
    request = SummaryRequest(messages=[{"role": "user", "content": "Summarize."}], end_index=1)
    header, value = ("authorization", "Bearer {}") if kind == "openai" else ("x-api-key", "{}")
    body = _message("Good.")[0] if kind == "anthropic" else completion("Good.")
    with ModelServer("") as model:
        model.always(reply(body, headers={"set-cookie": "account=a"}))
        url = model.base_url if kind == "openai" else model.base_url.removesuffix("/v1")
        known = RequestSummarizers()
        for session in "ab":
            one = known.find(session)
            for name in ("m", "n", "m"):
                one.follow(kind, url, name, {header: value.format(session)})
            assert one._summarizers == {}
            one(request)
            (made,) = one._summarizers.values()
            one.follow(kind, url, "n", {header: value.format(session)})
            one(request)
            one.follow(kind, url, "m", {header: value.format(session)})
            one(request)
            assert made in one._summarizers.values()
        sent = [(one.headers.get(header), one.headers.get("cookie")) for one in model.requests]
        assert sent == [(value.format(session), None) for session in "aaabbb"]
        pools = {id(made._get_client()._client) for one in known._known.values() for made in one._summarizers.values()}
        assert len(pools) == 1
        known.forget()


def test_keys_are_dropped_after_an_hour_and_come_back_with_the_next_request() -> None:
    """Also on a server without requests; and for a session that has been open all the while."""
    clock, request = FakeClock(), SummaryRequest(messages=[{"role": "user", "content": "Summarize."}], end_index=1)
    known = RequestSummarizers(clock)
    with ModelServer("") as model:
        model.always(reply(completion("Good.")))
        one, other = known.find("a"), known.find("b")
        for summarizer in (one, other):
            summarizer.follow("openai", model.base_url, "m", {"authorization": "Bearer k"})
        clock.advance(KEY_SECONDS / 2)
        assert known.find("b") is other
        clock.advance(KEY_SECONDS / 2)
        with pytest.raises(SummarizerError, match="no request of this session has brought a key lately"):
            one(request)
        other(request)
        clock.advance(KEY_SECONDS / 2)
        assert other.model == ""
        assert clock.pending == []
        assert known.find("a") is one
        one.follow("openai", model.base_url, "m", {"authorization": "Bearer k"})
        one(request)


DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Call 555-0199."}}
PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD5550199="}}


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("chat/completions", "data: 555-0199"),
        ("chat/completions", "data:image/png;base64, and then 555-0199"),
        ("messages", [DOCUMENT, {"type": "text", "text": "Who is that?"}]),
    ],
)
def test_a_redactor_also_sees_words_that_look_like_a_file(path: str, said: Any) -> None:
    """A message may begin with ``data:``, and a document's data may be its text."""
    messages = [{"role": "user", "content": said}, {"role": "assistant", "content": "Ok."}]
    with (
        ModelServer("") as model,
        proxy(model, redactor=lambda text: text.replace("555-0199", "[number]")) as (url, state),
    ):
        body = {"model": "gpt-4o-mini", "messages": [*messages, {"role": "user", "content": "Go on."}]}
        CLIENT.post(f"{url}/v1/{path}", json=body | {"max_tokens": 5}, headers=AUTH)
        (session,) = list_sessions(state)
        kept = repr([entry.record.model_dump_json() for entry in state.sessions.store.read(session, 0)])
    assert "[number]" in kept
    assert "555-0199" not in kept


def test_a_redactor_leaves_the_data_of_a_picture() -> None:
    """A file whose letters were replaced is no file any more."""
    assert redact([PICTURE], lambda text: text.replace("555", "***")) == [PICTURE]


KEYS = ("data", "id", "type", "format", "role", "signature", "call_id", "SECRET")
TEXT_FILE = "data:text/plain;base64," + base64.b64encode(b"call SECRET").decode()


@pytest.mark.parametrize(
    "said",
    [
        {"type": "mcp_tool_use", "id": "m", "name": "n", "input": {key: f"SECRET {key}" for key in KEYS}},
        {"type": "server_tool_use", "id": "m", "name": "n", "input": {"deep": [{"id": "SECRET"}]}},
        {"type": "unknown", "payload": {key: f"SECRET {key}" for key in KEYS}},
        {"type": "local_shell_call", "id": "l", "action": {"type": "SECRET"}},
        {"type": "unknown", "data": "SECRET"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "SECRET"}},
        {"type": "text", "text": "data:image/png;base64,SECRET"},
        {"type": "file", "file": {"file_data": "data:text/csv;base64,SECRET"}},
        {"type": "file", "file": {"file_data": TEXT_FILE}},
        {
            "type": "function",
            "function": {"name": "n", "parameters": {"properties": {"id": {"description": "SECRET"}}}},
        },
    ],
    ids=str,
)
def test_a_redactor_sees_every_text_whatever_its_key(said: dict[str, Any]) -> None:
    """The keys of ids are those of blocks, and not of a tool's input or of an unknown item's payload."""
    done = redact([{"role": "user", "id": "SECRET-1", "content": [said]}], lambda text: text.replace("SECRET", "***"))
    assert done[0]["id"] == "SECRET-1"
    assert "SECRET" not in str(done[0]["content"])
    for encoded in re.findall("base64,([A-Za-z0-9+/=]+)", str(done[0]["content"])):
        assert b"SECRET" not in base64.b64decode(encoded)


@pytest.mark.parametrize(
    "said",
    [
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,QUJD5550199="}},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD555"}},
        {"type": "input_audio", "input_audio": {"data": "QUJD555", "format": "wav"}},
        {"type": "redacted_thinking", "data": "QUJD555"},
        {"type": "tool_use", "id": "call_555", "name": "n", "input": {}},
    ],
    ids=str,
)
def test_a_redactor_leaves_ids_and_the_data_of_files(said: dict[str, Any]) -> None:
    """A file whose letters were replaced is no file any more."""
    assert redact([said], lambda text: text.replace("555", "***")) == [said]


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_a_redactor_sees_what_the_log_and_summarizers_get_and_the_model_what_was_sent(path: str) -> None:
    """Also where the request is shortened."""
    key, seen = "input" if path == "responses" else "messages", list[str]()

    def summarize(request: Any) -> str:
        seen.append(json.dumps(request.messages))
        return "Answers have rows."

    history = [*make_history(9), {"role": "user", "content": "My number is 555-0199."}]
    with ModelServer("") as model:
        hide = {"redactor": lambda text: text.replace("555-0199", "[number]").replace("archive", "[place]")}
        with proxy(model, budget=900, summarizer=summarize, **hide) as (url, state):
            body = {"model": "gpt-4o-mini", key: history, "max_tokens": 5}
            CLIENT.post(f"{url}/v1/{path}", json=body, headers=AUTH)
            (session,) = list_sessions(state)
            text = texts_of(state, session)
            with state.open("", session) as opened:
                assert opened.compactor.wait_idle(30)
            sent = model.requests[0].body[key]
    assert "My number is [number]." in text, text[-600:]
    assert "555-0199" not in text + "".join(seen)
    assert "archive" not in text + "".join(seen)
    assert len(sent) < len(history)
    assert "My number is 555-0199." in json.dumps(sent)


class GatedStore(InMemoryStore):
    """A store whose appends wait while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def append(self, *given: Any, **more: Any) -> Any:
        assert self.gate.wait(60)
        return super().append(*given, **more)


def publish_summary(state: Any) -> None:
    """Publish one of the first four rounds of the only session."""
    (session,) = list_sessions(state)
    with state.open("", session) as opened:
        ids = [one.id for one in opened.memory.conversation.rounds[:4]]
        made = CompactedMessage(start_index=1, end_index=4, summary="Rows without a name.", end_round_id=ids[-1])
        opened.memory.journal("assistant").publish(made, base=0, round_ids=ids)


@pytest.mark.parametrize("has_summary", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
def test_a_conversation_that_is_known_to_fit_does_not_wait_for_the_log(path: str, has_summary: bool) -> None:
    """Also if its body has more bytes than the budget has tokens; its answer ends when the log is written."""
    key, store, history = "input" if path.endswith("responses") else "messages", GatedStore(), make_history(6)
    with ModelServer("") as model, proxy(model, store=store, budget=1_500) as (url, state):
        model.always(answer_any())

        def send(**more: Any) -> bytes:
            given = {"model": "gpt-4o-mini", "max_tokens": 10, key: history, **more}
            if path == "/v1/messages":
                given["system"] = "Sei höflich."  # behind the messages
            headers = {"authorization": f"Bearer {KEY}", "x-session-id": "long"}
            raw = json.dumps(given, ensure_ascii=False).encode()
            return httpx.post(url + path, content=raw, headers=headers, timeout=60).content

        history[-1]["content"] += " Süß?"
        send()
        if has_summary:
            publish_summary(state)
            send()
        history += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "In the file and the image?"}]
        assert len(json.dumps(history)) > 1_500
        store.gate.clear()
        with ThreadPoolExecutor() as threads:
            sent = threads.submit(send)
            try:
                assert model.wait_for_requests(3 if has_summary else 2, timeout=40)
                assert not sent.done()
            finally:
                store.gate.set()
            assert b"re: " in sent.result()
        last = model.requests[-1].body
        send(top_p=1)  # no longer the same around the conversation
        assert model.requests[-1].body == last | {"top_p": 1}
    assert ("Rows without a name." in json.dumps(last)) is has_summary
    assert last[key][-5:] == history[-5:]
    assert (last[key] == history) is not has_summary


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_arrives_before_the_log_is_written_and_ends_afterwards(stream: bool) -> None:
    """Its last byte waits, and that of its stream's last event: what the client does next finds the request in the
    log, although it reads a stream no further."""
    store, headers = GatedStore(), AUTH | {"x-session-id": "long"}
    with ModelServer("") as model, proxy(model, store=store) as (url, state):
        model.always(answer_any())

        def begin(turns: int) -> AbstractContextManager[httpx.Response]:
            body = {"model": "gpt-4o-mini", "stream": stream, "messages": make_history(turns)}
            return CLIENT.stream("POST", f"{url}/v1/chat/completions", json=body, headers=headers)

        with begin(1) as answer:
            length = len(answer.read())
        store.gate.clear()
        try:
            with begin(2) as answer:
                parts, read = answer.iter_raw(), b""
                while len(read) < length - 1:
                    read += next(parts)
                assert len(read) == length - 1
                store.gate.set()
                read += b"".join(parts)
                assert "Question 2" in texts_of(state, list_sessions(state)[0])
        finally:
            store.gate.set()
    assert len(read) == length
    assert read.endswith(b"[DONE]\n\n" if stream else b"}")


def test_a_request_is_in_the_log_although_its_client_leaves_before_the_answer() -> None:
    """Whoever continues the conversation finds it there."""
    written, headers = threading.Event(), AUTH | {"x-session-id": "long"}

    class WatchedStore(InMemoryStore):
        def append(self, session: str, entries: Any, after: int) -> int:
            number = super().append(session, entries, after)
            if after:  # the second request's
                written.set()
            return number

    with ModelServer("") as model, proxy(model, store=WatchedStore()) as (url, state):

        def send(turns: int, **more: Any) -> httpx.Response:
            body = {"model": "gpt-4o-mini", "messages": make_history(turns)}
            return CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=headers, **more)

        model.always(answer_any())
        send(1)
        gate = model.hang()
        with pytest.raises(httpx.ReadTimeout):
            send(2, timeout=httpx.Timeout(20, read=1))
        assert written.wait(20)
        gate.set()
        assert "Question 2" in texts_of(state, list_sessions(state)[0])


CONTINUED: list[tuple[str, bool]] = [
    (', {"type": "item_reference", "id": "i"}', True),
    (', {"type": "message"', True),
    (" , ", True),
    ("\u00a0", True),
    ('  , {"role": "user", "content": "And?"} ', False),
    ("", False),
    (', {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]}', True),  # over the budget
    (', {"role": "user", "content": "' + WORDS * 30 + '"}', False),
]


@pytest.mark.parametrize("number", range(len(CONTINUED)))
def test_what_follows_a_known_conversation_is_read_before_it_is_forwarded(number: int) -> None:
    """It may be no conversation any more, or take more tokens than are left."""
    more, passes = CONTINUED[number]
    begin = f'{{"model": "gpt-4o-mini", "input": {json.dumps(make_history(6))[:-1]}'
    with ModelServer("") as model, proxy(model, budget=1_500) as (url, state):
        model.always(answer_any())
        headers = AUTH | {"x-session-id": "long"}
        CLIENT.post(f"{url}/v1/responses", content=f"{begin}]}}", headers=headers)
        publish_summary(state)
        CLIENT.post(f"{url}/v1/responses", content=f"{begin}]}}", headers=headers)
        if passes:
            model.always(status(400))
        raw = f"{begin}{more}]}}".encode()
        CLIENT.post(f"{url}/v1/responses", content=raw, headers=headers)
        sent = model.requests[-1]
    assert (sent.raw == raw) is passes
    assert passes or (
        "Rows without a name." in sent.raw.decode() and json.loads(raw)["input"][-1] == sent.body["input"][-1]
    )


def shows_summary(url: str, model: ModelServer, history: list[dict[str, Any]]) -> bool:
    """Send the conversation, and return whether the model gets the summary."""
    body = {"model": "gpt-4o-mini", "messages": history}
    CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=AUTH | {"x-session-id": "long"})
    return "Rows without a name." in model.requests[-1].raw.decode()


@pytest.mark.parametrize("act", ["revert", "redact", "purge"])
def test_what_another_process_erases_is_not_in_the_next_request(act: str, tmp_path: Path) -> None:
    """Although the request continues a known one, and nothing has told this process."""
    url_of_store, history = f"sqlite:///{tmp_path / 'sessions.db'}", make_history(6)
    with ModelServer("") as model, proxy(model, store=url_of_store, budget=1_500) as (url, state):
        model.always(answer_any())
        shows_summary(url, model, history)
        publish_summary(state)
        assert shows_summary(url, model, history)
        with closing(open_store(url_of_store)) as store:
            (session,) = list_sessions(state)
            if act == "purge":
                store.purge(session)
            elif act == "redact":
                Memory(session, store=store).redact("r2.p1")
            else:
                Memory(session, store=store).journal("assistant").revert()
        history += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        assert not shows_summary(url, model, history)


def test_a_purged_session_whose_new_log_is_as_long_shows_no_old_summary() -> None:
    history = make_history(6)
    with ModelServer("") as model, proxy(model, budget=1_500) as (url, state):
        model.always(answer_any())
        shows_summary(url, model, history)
        publish_summary(state)
        assert shows_summary(url, model, history)
        (session,) = list_sessions(state)
        size = state.sessions.store.get_extent(session).number
        state.sessions.purge(session)
        with state.open("", session) as opened:
            opened.memory.append({"role": "user", "content": "Hello"})
            while opened.memory.snapshot.number < size:
                opened.memory.record_usage("assistant", 1, counted=1)
        assert state.sessions.store.get_extent(session).number == size
        history += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        assert not shows_summary(url, model, history)


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1_500, 100_000])
def test_a_summary_is_in_the_next_request_although_the_conversation_fits(budget: int) -> None:
    """The model last got the whole conversation, which is longer than the budget in bytes, or not."""
    history, headers = make_history(6), {"x-session-id": "long"}
    with ModelServer("") as model, proxy(model, budget=budget) as (url, state):
        model.always(answer_any())
        for turn in range(3):
            body = {"model": "gpt-4o-mini", "messages": history}
            CLIENT.post(f"{url}/v1/chat/completions", json=body, headers=headers)
            if turn == 1:
                publish_summary(state)
            history += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": "And?"}]
        sent = [json.dumps(one.body["messages"]) for one in model.requests]
    assert ["Rows without a name." in one for one in sent] == [False, False, True]
    assert len(sent[2]) < len(sent[0])


def test_a_conversation_whose_system_prompt_grew_is_not_known_to_fit() -> None:
    with ModelServer("") as model, proxy(model, budget=1_500) as (url, _):
        model.always(answer_any())
        history = make_history(6)
        for system in ("Be brief.", "Be brief. " * 300):
            given = [{"role": "system", "content": system}, *history]
            body = {"model": "gpt-4o-mini", "messages": given}
            httpx.post(f"{url}/v1/chat/completions", json=body, headers={"x-session-id": "long"}, timeout=60)
        first, second = (one.body["messages"] for one in model.requests)
        assert first[1:] == history
        assert count_prompt(second, get_counter("gpt-4o-mini")) <= 1_500
