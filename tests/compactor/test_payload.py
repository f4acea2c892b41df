"""A summary may carry its provider's own form of it: byte for byte for that provider and model, text for all others."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command_line import run
from deferred_session import FullStore, Scene
from scene import CONFIG, PRICES, ROLE, add_round, on_command
from scene import memory_of as session_of

from compactor import (
    CompactorConfig,
    Summary,
    SummaryRequest,
    compact_notes,
    compose,
    count_prompt,
    count_tokens,
)
from compactor.formats import anthropic, chat, gemini, responses
from compactor.testing import ScriptedSummarizer
from memory import InMemoryStore, Memory, MessageError, Store, open_store

BLOCK = {
    "type": "compaction",
    "content": "Prices, é \ud83d in euros.",
    "signature": "c2ln==",
    "n": [1, 1.0, None, True],
}
ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAAAA=="}
OWN: dict[str, Any] = {"provider": "anthropic", "model": "claude-x", "data": [BLOCK]}
FORMATS = {"anthropic": anthropic, "responses": responses, "gemini": gemini, "chat": chat}


def carrying(payload: Any, text: str = PRICES) -> ScriptedSummarizer:
    return ScriptedSummarizer([Summary(text, payload=payload)])


def compacted(payload: Any, store: Store | None = None) -> tuple[Memory, Any]:
    """Return a session whose summary has *payload*, and its compactor."""
    scene = Scene(10, carrying(payload), store=store, publish="immediately")
    assert scene.end > 0
    return scene.memory, scene.compactor


def shown(memory: Memory, name: str = "anthropic", model: str = "claude-x", **more: Any) -> str:
    """Return the request of that format, as JSON."""
    prompt = compose(memory, ROLE, budget=100_000, model=model, counter=count_tokens, **more)
    assert prompt.tokens == count_prompt(prompt.messages, count_tokens)
    return json.dumps(FORMATS[name].from_chat(prompt.messages))


@pytest.mark.parametrize("summary_as", ["system", "user"])
def test_it_comes_back_to_its_provider_byte_for_byte_in_place_of_the_text(summary_as: Any) -> None:
    """For Anthropic in a message of the model, which must be the first; for OpenAI as items."""
    memory, _ = compacted(OWN)
    request = json.loads(shown(memory, system="Be brief.", summary_as=summary_as))
    assert request["system"] == "Be brief."
    assert [one["role"] for one in request["messages"][:2]] == ["assistant", "user"]
    assert json.dumps(request["messages"][0]["content"]) == json.dumps([BLOCK])
    assert PRICES not in json.dumps(request)

    memory, _ = compacted({"provider": "responses", "data": [{"role": "user", "content": "Hello"}, ITEM]})
    request = json.loads(shown(memory, "responses", model="any"))
    assert request["input"][:2] == [{"role": "user", "content": "Hello"}, ITEM]
    assert PRICES not in json.dumps(request)


@pytest.mark.parametrize(
    ("name", "model", "more"),
    [
        ("anthropic", "claude-y", {}),
        ("anthropic", "", {}),
        ("responses", "claude-x", {}),
        ("gemini", "claude-x", {}),
        ("chat", "claude-x", {}),
        ("anthropic", "claude-x", {"summary_as": "header"}),
    ],
)
def test_everybody_else_reads_the_text(name: str, model: str, more: dict[str, Any]) -> None:
    """Other providers, other models, and one that is not named; and where the summary is a part of the header."""
    memory, _ = compacted(OWN)
    request = shown(memory, name, model, **more)
    assert PRICES in request
    assert "c2ln" not in request
    assert "native" not in request


def test_it_stays_with_its_summary_through_a_restart_a_fork_and_files(tmp_path: Path) -> None:
    url = f"sqlite:///{(tmp_path / 'chat.db').as_posix()}"
    with closing(open_store(url)) as store:
        memory, _ = compacted(OWN, store)
        whole = shown(memory)
        run("export", "session", "--store", url, "--to", tmp_path / "s.jsonl")
        run("import", tmp_path / "s.jsonl", "--as", "copy", "--store", url)
        for again in (
            Memory("session", store=store),
            memory.fork(10),
            Memory.from_state_dict(json.loads(json.dumps(memory.state_dict()))),
            Memory("copy", store=store),
        ):
            assert shown(again) == whole


@pytest.mark.parametrize("how", ["redact", "rewind", "revert"])
def test_it_goes_with_its_summary(how: str) -> None:
    """Erased text is in no entry any more, nor in what a provider made from it."""
    store = InMemoryStore()
    memory, compactor = compacted(OWN, store)
    if how == "redact":
        memory.redact("r2.p1")
    elif how == "rewind":
        memory.rewind("r2")
    else:
        compactor.revert()
    assert "c2ln" not in shown(memory)
    assert PRICES not in shown(memory)
    if how == "redact":
        assert not [entry for entry in store.read("session") if "c2ln" in entry.body]


def test_it_waits_with_a_deferred_summary() -> None:
    scene = Scene(10, carrying(OWN))
    assert scene.end == 0
    assert "c2ln" not in shown(scene.memory)
    scene.clock.advance(300)
    scene.executor.run_all()
    assert scene.end > 0
    assert "c2ln" in shown(scene.memory)


@pytest.mark.parametrize("how", ["redact", "rewind"])
def test_a_deferred_one_goes_with_the_text_that_it_was_made_of(how: str) -> None:
    """It is never shown, and erased text is in no entry."""
    scene = Scene(10, ScriptedSummarizer([Summary(PRICES, payload=OWN)], default=PRICES))
    if how == "redact":
        scene.memory.redact("r2.p1")
        assert not [entry for entry in scene.store.read("session") if "c2ln" in entry.body]
    else:
        scene.memory.rewind("r2")
        scene.add(8)
    scene.clock.advance(300)
    scene.executor.run_all()
    assert "c2ln" not in shown(scene.memory)
    assert "c2ln" not in shown(Memory("session", store=scene.store))


def test_an_answer_that_was_paid_for_before_a_crash_keeps_it() -> None:
    store = FullStore()
    store.refused = frozenset({"compaction published"})
    scene = Scene(10, carrying(OWN), store=store, publish="immediately")
    assert scene.end == 0
    store.refused = frozenset()

    memory = Memory("session", store=store)
    compactor, executor, _ = on_command(memory, ScriptedSummarizer(default=AssertionError("nobody is to be asked")))
    compactor.start()
    executor.run_all()
    assert "c2ln" in shown(memory)


def test_the_next_summary_is_made_of_the_text_and_has_none_of_its_own() -> None:
    summarizer = ScriptedSummarizer([Summary(PRICES, payload=OWN), f"{PRICES} And so on."])
    scene = Scene(10, summarizer, publish="immediately")
    shown(scene.memory)
    first = scene.end
    scene.add(10)
    assert scene.end > first
    request = summarizer.requests[1]
    assert PRICES in str(request.messages)
    assert "c2ln" not in str(request.messages)
    assert request.continued_prompt is None
    assert "c2ln" not in shown(scene.memory)


def test_edits_of_notes_have_none() -> None:
    """A provider that was asked for what is new made no form of the whole."""

    def summarize(request: SummaryRequest) -> Summary:
        if request.kind == "changes":
            return Summary(f"add [Done]: Item-{request.end_index} was priced.", payload=OWN)
        asked = "## Goal\n- The user asks what items cost.\n\n## Done\n- Four items were priced."
        return Summary(asked, {"input_tokens": 1_000, "output_tokens": 400}, payload=OWN)

    summarizer = ScriptedSummarizer(default=summarize)
    config = CompactorConfig(threshold=4, retain_recent=1)
    scene = Scene(6, summarizer, config=config, strategies=(compact_notes,), publish="immediately")
    assert scene.end > 0
    assert "c2ln" in shown(scene.memory)
    scene.add(4)
    assert summarizer.requests[-1].kind == "changes"
    assert "was priced." in shown(scene.memory)
    assert "c2ln" not in shown(scene.memory)


def test_the_text_is_shown_where_it_says_more() -> None:
    """With a pinned post; where sentences were put back that the answer had lost; with rounds extracted offline."""
    memory, _ = compacted(OWN)
    memory.pin("r2.p1")
    assert "c2ln" not in shown(memory)
    assert PRICES in shown(memory)
    memory.unpin("r2.p1")
    assert "c2ln" in shown(memory)

    model = ScriptedSummarizer([Summary(PRICES, payload=OWN)], default=OSError("away"))
    scene = Scene(10, model, config=CONFIG.copy_with(circuit_breaker_failures=1), publish="immediately")
    assert "c2ln" in shown(scene.memory)
    scene.add(5)
    folded = scene.compactor.get_compaction()
    assert folded.is_offline
    assert PRICES in folded.summary
    assert "c2ln" not in shown(scene.memory)

    memory = session_of(9)
    round_ = memory.create_round("Never delete the folder /srv/data.")
    memory.add_post(round_, send_from="User", send_to=ROLE, message=round_.user_query)
    memory.add_post(round_, send_from=ROLE, send_to="User", message="I keep it.")
    memory.finish_round(round_)
    for _ in range(3):
        add_round(memory)
    compactor, executor, _ = on_command(memory, carrying(OWN))
    compactor.start()
    executor.run_all()
    made = compactor.get_compaction()
    assert made is not None
    assert "/srv/data" in made.summary
    assert "c2ln" not in shown(memory)


def test_a_prompt_without_room_for_it_has_a_shorter_text() -> None:
    """It counts by its own length, and nothing can make it shorter."""
    memory, _ = compacted({**OWN, "data": [{**BLOCK, "content": "word " * 150}]})
    roomy = compose(memory, ROLE, budget=100_000, model="claude-x", counter=count_tokens)
    tight = compose(memory, ROLE, budget=150, model="claude-x", counter=count_tokens)
    assert "c2ln" in str(anthropic.from_chat(roomy.messages))
    assert roomy.tokens > 150 >= tight.tokens
    assert "c2ln" not in str(anthropic.from_chat(tight.messages))
    assert PRICES in str(tight.messages)


def test_one_that_is_no_shorter_than_what_it_stands_for_is_dropped() -> None:
    """It would make every prompt longer; the text does not."""
    memory, _ = compacted({**OWN, "data": [{**BLOCK, "content": "word " * 900}]})
    assert "c2ln" not in shown(memory)
    assert PRICES in shown(memory)


def test_encrypted_text_counts_as_the_provider_counts_it() -> None:
    """Where it said so; else by its length, a token for five characters."""
    for tokens, counted in ((None, 150), (90, 90)):
        item = {**ITEM, "encrypted_content": "x" * 800}
        payload = {"provider": "responses", "data": [item]} | ({} if tokens is None else {"tokens": tokens})
        memory, _ = compacted(payload)
        with_it = compose(memory, ROLE, budget=100_000, counter=count_tokens)
        memory, _ = compacted({**payload, "data": [{**item, "encrypted_content": ""}], "tokens": 60})
        assert with_it.tokens - compose(memory, ROLE, budget=100_000, counter=count_tokens).tokens == counted - 60


def test_a_block_that_cannot_stand_first_is_shown_as_text() -> None:
    """Anthropic refuses it behind other messages."""
    memory, _ = compacted(OWN)
    beginning = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "An agent."}]
    assert "c2ln" not in shown(memory, system=beginning)
    assert PRICES in shown(memory, system=beginning)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {**OWN, "data": BLOCK},
        {**OWN, "data": []},
        {**OWN, "provider": 1},
        {**OWN, "model": None},
        {**OWN, "tokens": -1},
        {**OWN, "x": 1},
    ],
)
def test_another_form_is_refused(payload: Any) -> None:
    with pytest.raises(ValueError, match="payload= is a mapping of 'provider'"):
        Summary("text", payload=payload)


def test_what_is_no_json_is_refused() -> None:
    with pytest.raises(MessageError, match="bytes cannot be stored as JSON"):
        Summary("text", payload={**OWN, "data": [{"signature": b"c2ln"}]})


def test_its_repr_shows_nothing() -> None:
    assert "c2ln" not in repr(Summary("text", payload=OWN))
