"""``compactor chat``: against a server on loopback that answers well, badly or not at all."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from command_line import Done, Stream, refusal, run
from model_server import Answer, Exchange, ModelServer, completion, drop, drop_midway, html, reply, status

KEY = "sk-do-not-show-this-key"
SUMMARY = "The user counts sheep and never rounds figures."


@pytest.fixture(autouse=True)
def no_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def pieces(*texts: str, done: bool = True) -> Answer:
    """Stream an answer; without *done* it breaks off."""

    def answer(exchange: Exchange) -> None:
        exchange.start(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        for text in texts:
            chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
            exchange.write(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\n".encode())
        if done:
            exchange.write(b'data: {"id": "c", "choices": []}\n\ndata: [DONE]\n\n')
        else:
            exchange.write(b"data: {broken\n\n")
        exchange.drop()

    return answer


def chatting(*texts: str) -> Answer:
    """Stream to who wants a stream; who does not is the compactor and gets a summary."""
    stream = pieces(*(texts or ("Counted ", "them.")))

    def answer(exchange: Exchange) -> None:
        if exchange.request.body.get("stream"):
            stream(exchange)
        else:
            exchange.send(200, json.dumps(completion(SUMMARY)))

    return answer


@pytest.fixture
def server() -> Iterator[ModelServer]:
    with ModelServer() as serving:
        serving.always(chatting())
        yield serving


def chat(server: ModelServer, *lines: str, options: tuple[object, ...] = (), **more: Any) -> Done:
    """Chat in *lines*, with the key in the environment; it must not come out anywhere."""
    words = ("chat", "--base-url", server.base_url, "--model", "m-1", *options)
    done = run(*words, said="".join(f"{line}\n" for line in lines), OPENAI_API_KEY=KEY, **more)
    assert KEY not in done.out + done.err
    return done


def sent(server: ModelServer, number: int = -1) -> list[tuple[str, str]]:
    """Return a streamed request's messages: role and content."""
    streamed = [request.body for request in server.requests if request.body.get("stream")]
    return [(message["role"], message["content"]) for message in streamed[number]["messages"]]


# -- a conversation ---------------------------------------------------------------------------------------------------


def test_what_is_said_is_answered_and_remembered(server: ModelServer) -> None:
    """The model reads all that was said, in order, and its answer is printed as it comes."""
    server.answers(pieces("One ", "sheep."), pieces("Two."))
    done = chat(server, "count", "go on", "/quit", "never read", options=("--system", "Be brief."))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == ["One sheep.", "Two."]
    assert sent(server) == [("system", "Be brief."), ("user", "count"), ("assistant", "One sheep."), ("user", "go on")]
    assert {request.body["model"] for request in server.requests} == {"m-1"}
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_it_says_where_the_model_is_and_how_to_get_help(server: ModelServer) -> None:
    assert chat(server).out == f"m-1 at {server.base_url}; /help lists the commands\n"


def test_the_end_of_input_ends_it(server: ModelServer) -> None:
    """Ctrl-D, or a pipe that is through; empty lines say nothing."""
    done = chat(server, "", "   ")
    assert (done.code, done.err) == (0, "")
    assert server.requests == []


def test_an_answer_is_printed_as_text(server: ModelServer) -> None:
    """A model can neither colour the terminal nor write anywhere else on it."""
    server.answers(pieces("[bold]x[/bold] \x1b[31m", "\x07 \x9b2J"))
    done = chat(server, "hi")
    assert "[bold]x[/bold] \\x1b[31m\\x07 \\x9b2J\n" in done.out
    assert "\x1b" not in done.out


@pytest.mark.parametrize("content", ["One sheep.", [{"type": "text", "text": "One sheep."}]])
def test_an_answer_that_is_not_streamed_is_read_as_a_whole(server: ModelServer, content: Any) -> None:
    """Some servers know nothing of streams, and answer with a plain completion."""
    server.answers(reply(completion(content)), pieces("Two."))
    done = chat(server, "count", "go on", "/quit")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == ["One sheep.", "Two."]
    assert sent(server) == [("user", "count"), ("assistant", "One sheep."), ("user", "go on")]


def test_a_stream_that_calls_itself_json_is_read_as_a_stream(server: ModelServer) -> None:
    chunk = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    choice = {"index": 0, "delta": {"content": "One sheep."}, "finish_reason": None}
    server.answers(reply(f"data: {json.dumps(chunk | {'choices': [choice]})}\n\ndata: [DONE]\n\n"))
    assert chat(server, "count", "/quit").out.splitlines()[1:] == ["One sheep."]


def test_input_that_is_no_utf_8_is_no_crash(server: ModelServer) -> None:
    done = run("chat", "--base-url", server.base_url, said=b"caf\xe9\n")
    assert done.code == 0
    assert sent(server) == [("user", "caf\ufffd")]


def test_half_a_character_is_no_end_of_the_chat(server: ModelServer) -> None:
    """Endpoints cut emoji in two: halves that meet are one again, and one that stays alone can be sent back."""
    server.answers(pieces("sheep \ud83d", "\udc11!"), pieces("half \ud83d"), pieces("\udc11 other"), pieces("Well."))
    done = chat(server, "one", "two", "three", "four", "/quit")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[1:] == ["sheep \U0001f411!", "half \ufffd", "\ufffd other", "Well."]
    assert sent(server)[1::2] == [
        ("assistant", "sheep \U0001f411!"),
        ("assistant", "half \ufffd"),
        ("assistant", "\ufffd other"),
    ]


def test_bytes_that_are_no_text_are_no_end_of_the_chat(server: ModelServer) -> None:
    """That answer is lost; it can be asked for again, and the chat goes on."""

    def cut(exchange: Exchange) -> None:
        exchange.start(200, {"Content-Type": "text/event-stream", "Connection": "close"})
        exchange.write(b'data: {"choices": [{"delta": {"content": "\xf0\x9f\x90\n\n')
        exchange.drop()

    server.answers(cut, pieces("Again."))
    done = chat(server, "one", "/retry", "/quit")
    assert "/retry sends the message again" in done.err
    assert done.out.splitlines()[-1] == "Again."


def test_the_conversation_is_not_sent_to_where_the_endpoint_points(server: ModelServer) -> None:
    """It says what to do where that is wanted."""
    with ModelServer() as elsewhere:
        server.answers(status(307, headers={"Location": f"{elsewhere.base_url}/chat/completions"}))
        done = chat(server, "one", "/quit")
        assert elsewhere.requests == []
    assert re.search(r"HTTP 307.*redirects.*--base-url", done.err)


def test_what_the_endpoint_calls_itself_is_printed_as_text(server: ModelServer) -> None:
    """Its model's name may hold whatever a terminal acts on, also in the log of events."""
    named = completion(SUMMARY) | {"model": "m\x1b]0;owned\x07\x9b2J"}

    def answer(exchange: Exchange) -> None:
        if exchange.request.body.get("stream"):
            pieces("Counted.")(exchange)
        else:
            exchange.send(200, json.dumps(named))

    server.always(answer)
    options = ("--threshold", 50, "--retain", 1, "--log-events", "console")
    done = chat(server, *talk(5), "/compact", "/quit", options=options)
    assert "owned" in done.err
    assert not re.search("[\x1b\x07\x9b]", done.out + done.err)


# -- compaction -------------------------------------------------------------------------------------------------------


def talk(count: int) -> list[str]:
    return [
        f"Count flock-{number} with {number * 11} sheep, and give exact figures, please." for number in range(count)
    ]


def test_what_is_compacted_is_shown_and_used(server: ModelServer) -> None:
    """The model that answers also summarises, and the next prompt begins with its summary."""
    done = chat(server, *talk(5), "/compact", "and now?", options=("--threshold", 50, "--retain", 1))
    assert (done.code, done.err) == (0, "")
    assert re.search(r"^  \[compacting rounds 1-4 in the background \([\d,]+ tokens\)\]$", done.out, re.MULTILINE)
    assert re.search(r"^  \[rounds 1-4 now read as a summary: [\d,]+ -> \d+ tokens", done.out, re.MULTILINE)
    prompt = sent(server)
    assert prompt[0][0] == "system"
    assert SUMMARY in prompt[0][1]
    assert [content for role, content in prompt if role == "user"] == [talk(5)[4], "and now?"]


def test_compaction_goes_on_behind_the_chat(server: ModelServer) -> None:
    """While the model is busy with a summary it is asked and answers, and no turn waits for that."""
    gate = threading.Event()
    stream = pieces("Yes.")

    def answer(exchange: Exchange) -> None:
        if exchange.request.body.get("stream"):
            stream(exchange)
        else:
            exchange.wait(gate)
            exchange.send(200, json.dumps(completion(SUMMARY)))

    server.always(answer)
    done = chat(server, *talk(6), "/prompt", options=("--threshold", 2, "--retain", 1))
    assert done.code == 0
    assert done.out.count("Yes.") == 6
    assert "compacting rounds" in done.out
    assert "now read as a summary" not in done.out
    assert "6 rounds: 6 as they were said" in done.out
    assert re.search(r"^1 round: 1 as they were said\n2 messages, ", chat(server, "hi", "/prompt").out, re.MULTILINE)


def test_summaries_can_stay_on_this_machine(server: ModelServer) -> None:
    """With the extractive summarizer the endpoint is asked for answers only."""
    done = chat(server, *talk(5), "/compact", options=("--threshold", 50, "--retain", 1, "--summarizer", "extractive"))
    assert "rounds 1-4 now read as a summary" in done.out
    assert all(request.body.get("stream") for request in server.requests)


def test_sizes_of_the_prompt_are_shown(server: ModelServer) -> None:
    """Rounds, messages and tokens, before a compaction and after it."""
    done = chat(
        server,
        *talk(5),
        "/prompt",
        "/compact",
        "/prompt",
        "/revert",
        "/prompt",
        options=("--threshold", 50, "--retain", 1),
    )
    sizes = re.findall(r"^(5 rounds: .*)\n(\d+) messages, (\d+) tokens of at most 8,000$", done.out, re.MULTILINE)
    assert [(rounds, messages) for rounds, messages, _ in sizes] == [
        ("5 rounds: 5 as they were said", "10"),
        ("5 rounds: 1-4 as a summary, 1 as they were said", "3"),
        ("5 rounds: 5 as they were said", "10"),
    ]
    assert int(sizes[1][2]) < int(sizes[0][2]) == int(sizes[2][2])
    assert "[reverted: all rounds are as they were said again]" in done.out


def test_rounds_that_a_prompt_leaves_out_are_counted(server: ModelServer) -> None:
    server.always(lambda exchange: (chatting() if exchange.request.body.get("stream") else status(500))(exchange))
    done = chat(server, *talk(12), "/prompt", options=("--budget", 200, "--threshold", 50))
    assert re.search(r"12 rounds: 12 as they were said, \d+ of these left out", done.out)


def test_nothing_to_compact_and_nothing_to_go_back_to_are_said(server: ModelServer) -> None:
    done = chat(server, "/compact", "/revert", "/retry")
    assert done.out.splitlines()[1:] == [
        "nothing to compact yet: the newest rounds stay as they are",
        "there is no summary to go back from",
        "nothing waits for an answer",
    ]


def test_a_summary_that_fails_is_shown_and_the_chat_goes_on(server: ModelServer) -> None:
    """With its reason where it is asked for."""
    server.always(lambda exchange: (chatting() if exchange.request.body.get("stream") else status(401))(exchange))
    done = chat(server, *talk(4), "/compact", "/prompt", "go on", options=("--threshold", 50, "--retain", 1))
    assert done.code == 0
    assert "no summary this time (SummarizerError); next try in" in done.out
    assert re.search(r"^no compaction: .*HTTP 401.*OPENAI_API_KEY", done.err)
    assert re.search(r"^the last summary failed: .*HTTP 401", done.out, re.MULTILINE)
    assert sent(server)[-1] == ("user", "go on")


def test_help_and_unknown_commands_list_what_there_is(server: ModelServer) -> None:
    done = chat(server, "/help", "/nope \x1b[2J")
    assert done.out.count("/retry    send the last message again\n") == 2
    assert "/nope \\x1b[2J is no command; these are:" in done.out
    assert server.requests == []


def test_events_can_be_logged(server: ModelServer) -> None:
    options = ("--threshold", 50, "--retain", 1, "--log-events", "json")
    done = chat(server, *talk(5), "/compact", options=options)
    names = [json.loads(line)["event"] for line in done.err.splitlines()]
    assert names == ["tokens.model_unknown", "compaction.started", "compaction.published"]
    assert "flock" not in done.err


# -- what can go wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (status(401), r"HTTP 401 .*check the key in OPENAI_API_KEY"),
        (status(404), r"HTTP 404 .*check --model and --base-url"),
        (status(429), r"HTTP 429 .*too many requests"),
        (status(500), r"HTTP 500"),
        (drop(), r"no connection to the endpoint, or it broke off .*check --base-url"),
        (html(), r"the endpoint's answer is empty"),
        (reply(b"data: {nonsense\n\n", headers={"Content-Type": "text/event-stream"}), r"cannot be read \(\w+\)"),
        (reply(completion("")), r"the endpoint's answer is empty"),
        (reply(completion(None)), r"the endpoint's answer is empty"),
        (reply({"error": {"message": "no such model"}}), r"the endpoint's answer cannot be read \(\w+\)"),
        (reply({"choices": []}), r"the endpoint's answer cannot be read \(\w+\)"),
        (reply("[]"), r"the endpoint's answer cannot be read \(\w+\)"),
        (reply('{"choices": ['), r"the endpoint's answer cannot be read \(\w+\)"),
        (drop_midway(), r"no connection to the endpoint, or it broke off"),
        (pieces(), r"the endpoint's answer is empty"),
        (pieces(" ", "\n"), r"the endpoint's answer is empty"),
        (pieces("half an ans", done=False), r"the endpoint's answer cannot be read"),
    ],
)
def test_a_bad_answer_is_one_line_and_can_be_asked_for_again(server: ModelServer, answer: Answer, says: str) -> None:
    """The chat goes on; the message is still there, once, and what broke off is not taken for an answer."""
    server.answers(answer, pieces("Here it is."))
    done = chat(server, "count", "/retry", "/retry")
    assert done.code == 0
    assert len(done.err.splitlines()) == 1
    assert re.search(says, done.err)
    assert "/retry" in done.err
    assert "Here it is." in done.out
    assert "nothing waits for an answer" in done.out
    assert sent(server) == [("user", "count")]


def test_after_a_bad_answer_one_may_also_go_on(server: ModelServer) -> None:
    server.answers(status(500), pieces("Yes."))
    chat(server, "count", "all of them")
    assert sent(server) == [("user", "count"), ("user", "all of them")]


def test_an_endpoint_that_is_not_there_is_one_line(server: ModelServer) -> None:
    done = run("chat", "--base-url", "http://127.0.0.1:9/v1", said="hello\n")
    assert done.code == 0
    assert re.search(r"^no connection to the endpoint.*; /retry sends the message again\n$", done.err)


def test_an_endpoint_that_does_not_answer_is_given_up(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compactor.cli.chat._READ_TIMEOUT", 0.05)
    server.hang()
    assert chat(server, "hello").err.startswith("the endpoint did not answer in time (")


def test_a_message_over_the_budget_is_left_out_and_the_chat_goes_on(server: ModelServer) -> None:
    """It would stand in the way of all that follows."""
    done = chat(server, "many " * 300, "/retry", "few", options=("--budget", 120))
    assert re.search(r"the budget is 120; .*; the message is left out\n$", done.err)
    assert "nothing waits for an answer" in done.out
    assert sent(server) == [("user", "few")]


def test_a_system_message_over_the_budget_is_said_of_the_prompt_too(server: ModelServer) -> None:
    done = chat(server, "/prompt", options=("--budget", 50, "--system", "many " * 300))
    assert "the budget is 50" in done.err


def test_without_an_endpoint_it_says_what_to_do() -> None:
    said = refusal(run("chat"))
    assert "set OPENAI_API_KEY, or pass --base-url" in said
    assert "http://localhost:11434/v1" in said


def test_the_endpoint_may_come_from_the_environment(server: ModelServer) -> None:
    assert run("chat", said="hi\n", OPENAI_BASE_URL=server.base_url).code == 0
    assert sent(server) == [("user", "hi")]
    assert server.requests[0].headers["authorization"] == "Bearer not-needed"


def test_a_key_alone_means_openai() -> None:
    assert run("chat", "--model", "m", OPENAI_API_KEY=KEY).out.startswith("m at https://api.openai.com/v1;")


def test_nonsense_is_refused_before_anything_is_asked(server: ModelServer) -> None:
    assert "--base-url must be an address" in refusal(run("chat", "--base-url", "nowhere"))
    assert "--model must be the name of a model" in refusal(run("chat", "--base-url", server.base_url, "--model", " "))
    assert "API key contains invalid characters" in refusal(run("chat", OPENAI_API_KEY="two words"))
    assert "the shipped prompts are" in refusal(run("chat", "--base-url", server.base_url, "--prompt", "nope"))
    assert "--budget" in refusal(run("chat", "--budget", "some"))
    assert server.requests == []


def test_an_address_is_shown_without_its_password(server: ModelServer) -> None:
    url = server.base_url.replace("http://", "http://me:hidden@")
    assert run("chat", "--model", "m", "--base-url", url).out.startswith(f"m at {server.base_url};")


# -- a terminal that somebody types at --------------------------------------------------------------------------------


class Typist:
    """Stands for ``input``: gives one line after the other; ``Ctrl-C`` and ``Ctrl-D`` are what they are."""

    def __init__(self, *lines: str) -> None:
        self._lines = iter(lines)

    def __call__(self, prompt: str) -> str:
        sys.stdout.write(prompt)
        match next(self._lines):
            case "Ctrl-C":
                raise KeyboardInterrupt
            case "Ctrl-D":
                raise EOFError
            case line:
                sys.stdout.write(f"{line}\n")
                return line


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(Stream, "isatty", lambda self: True)
    monkeypatch.setattr("builtins.input", Typist(*lines))


@pytest.mark.parametrize("key", ["Ctrl-C", "Ctrl-D"])
def test_both_keys_end_it_cleanly(server: ModelServer, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Exit code 0, nothing on standard error, and the shell's prompt on a line of its own."""
    typed(monkeypatch, "hello", key)
    done = chat(server, terminal=True)
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("you> hello\nCounted them.\nyou> \n")


def test_an_interrupt_ends_it_in_the_middle_of_an_answer(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(screen: object, piece: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("compactor.cli.terminal.ConversationScreen._write", interrupted)
    done = chat(server, "hello", "never read")
    assert (done.code, done.err) == (0, "")
    assert len(server.requests) == 1
