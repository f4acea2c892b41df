"""Where each message of a prompt comes from: a host gives its own objects back for those that are original."""

from __future__ import annotations

import copy
import pickle
from dataclasses import asdict
from typing import Any

from chats import answer, calls, chat, compacted, memory_of, result, user, words

from compactor import Prompt, Recall, budget_status, compose
from memory import Attachment, Memory, Reduction

WIDE = 100_000


def sources(prompt: Prompt) -> list[tuple[str | None, str]]:
    assert len(prompt.sources) == len(prompt.messages)
    return [(source.ref, source.kind) for source in prompt.sources]


def reduce(memory: Memory, first: int, last: int, kind: Any, text: str = "") -> None:
    """Publish a reduction of posts *first* to *last* of the first round."""
    round_ = memory.conversation.rounds[0]
    posts = [None, *round_.post_list][first : last + 1]
    generation = memory.journal("assistant").read().generation
    assert memory.journal("assistant").reduce(Reduction.over(round_, posts, kind, text), base=generation) is not None


def cut_chat() -> Memory:
    """A session whose prompts have a summary and leave rounds out, if they may take 4,000 tokens."""
    memory = chat(40, tokens=200)
    compacted(memory, 10)
    return memory


def test_without_pressure_each_message_is_the_original() -> None:
    """System messages in front have no reference, whoever gave them; a query and its posts are counted by round."""
    memory = memory_of({"role": "system", "content": "Pack."}, user(), calls("a", "b"), result("b"), result("a"))
    memory.append(answer())
    memory.append(user("more"))

    assert sources(compose(memory, budget=WIDE, system="Be brief.")) == [
        *[(None, "original")] * 2,
        *[(f"r1.p{number}", "original") for number in (0, 1, 2, 3, 4)],
        ("r2.p0", "original"),
    ]


def test_what_we_say_is_ours() -> None:
    """The summary, the line about what is left out and the plan. Summary and line have a reference that an agent may
    reload."""
    memory = cut_chat()
    prompt = compose(memory, budget=4_000, system="Be brief.", plan="Plan: pack.")

    omitted = prompt.report.omitted_rounds
    ours = [source.ref for source in prompt.sources if source.kind == "ours"]
    assert ours == ["r1-r10", f"r{omitted[0]}-r{omitted[-1]}", None]
    assert prompt.messages[sources(prompt).index((None, "ours"))]["content"].endswith("Plan: pack.")
    recall = Recall(memory, role="assistant")
    for ref in filter(None, ours):
        assert "question" in recall.call("context_reload", {"ref": ref})


def test_what_reads_otherwise_is_shortened_and_a_summary_of_posts_is_ours() -> None:
    """Published reductions: a preview, posts that are dropped, and a summary of several."""
    memory = memory_of(user(), *[answer(f"{number} {words(40)}") for number in range(1, 9)], user("more"))
    reduce(memory, 1, 1, "offloaded", "1 …")
    reduce(memory, 3, 4, "dropped")
    reduce(memory, 6, 7, "summarised", "They counted.")

    assert sources(compose(memory, budget=WIDE)) == [
        ("r1", "ours"),
        ("r1.p0", "original"),
        ("r1.p1", "shortened"),
        ("r1.p2", "original"),
        ("r1.p5", "original"),
        ("r1.p6-p7", "ours"),
        ("r1.p8", "original"),
        ("r2.p0", "original"),
    ]


def test_what_a_budget_shortens_keeps_its_reference() -> None:
    """Previews, cleared results and clipped texts."""
    memory = Memory()
    for number in range(30):
        memory.append(user(f"Question {number}"))
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", words(900)))
        memory.append(answer())
    prompt = compose(memory, budget=8_000)

    shortened = {source.ref for source in prompt.sources if source.kind == "shortened"}
    assert shortened == {one.ref for one in prompt.report.reductions}
    for message, source in zip(prompt.messages, prompt.sources, strict=True):
        if source.kind != "ours":
            assert (message in memory.messages()) == (source.kind == "original")


def test_a_long_open_round_has_a_source_for_each_message() -> None:
    """Also where blocks of it are left out, and where a call waits for its result."""
    memory = memory_of(user())
    for number in range(300):
        memory.append(calls(f"c{number}"))
        memory.append(result(f"c{number}", words(30)))
    memory.append(calls("last"))

    everything = [("r1.p0", "original"), *[(f"r1.p{number}", "original") for number in range(1, 602)]]
    assert sources(compose(memory, budget=WIDE)) == everything
    shown = sources(compose(memory, budget=6_000))
    assert shown[:2] == [("r1", "ours"), ("r1.p0", "original")]
    refs = [ref for ref, kind in shown if kind != "ours"]
    assert refs == ["r1.p0", *[f"r1.p{number}" for number in range(603 - len(refs), 602)]]
    assert {kind for _, kind in shown[1:]} == {"original", "shortened"}
    assert shown[-1] == everything[-1]


def test_what_is_erased_is_no_original() -> None:
    """A host that gives its own objects back does not say again what was to be forgotten."""
    memory = memory_of(user("My number is 7."), answer("7."), user("more"))
    memory.redact("r1.p0")
    memory.redact("r1.p1")

    assert sources(compose(memory, budget=WIDE)) == [
        ("r1.p0", "shortened"),
        ("r1.p1", "shortened"),
        ("r2.p0", "original"),
    ]


def test_the_note_in_the_place_of_a_missing_result_is_ours_and_a_late_result_reads_otherwise() -> None:
    """Providers refuse a call without its result, and a result without its call."""
    memory = memory_of(user(), calls("a", "b"), result("b"), user("more"), result("a"), answer())

    assert sources(compose(memory, budget=WIDE)) == [
        ("r1.p0", "original"),
        ("r1.p1", "original"),
        ("r1.p2", "original"),
        ("r1.p1", "ours"),
        ("r2.p0", "original"),
        ("r2.p1", "shortened"),
        ("r2.p2", "original"),
    ]


def test_one_message_with_several_results_has_one_source() -> None:
    """As Anthropic writes them: one user message answers all calls."""
    parts = [{"type": "tool_result", "tool_use_id": id_, "content": words(9)} for id_ in ("a", "b")]
    memory = memory_of(user(), calls("a", "b"), {"role": "user", "content": parts})

    prompt = compose(memory, budget=WIDE)
    assert sources(prompt) == [("r1.p0", "original"), ("r1.p1", "original"), ("r1.p2", "original")]
    assert prompt.messages == memory.messages()


def test_a_query_is_named_once_and_what_other_agents_say_is_no_original() -> None:
    """A first post that repeats the query is not shown twice: where it has attachments, it is what is shown. Another
    agent's words read as the user's, with its name."""
    memory = Memory()
    for attachments in [(), (Attachment(type="plan", content="1. Pack."),)]:
        round_ = memory.create_round("Plan it.")
        memory.add_post(round_, send_from="User", send_to="Planner", message="Plan it.", attachment_list=attachments)
        memory.add_post(round_, send_from="Planner", send_to="Coder", message="Write it.")
        memory.add_post(round_, send_from="Coder", send_to="Planner", message="Done.")
        memory.finish_round(round_)

    prompt = compose(memory, "Planner", budget=WIDE)
    assert [kind for _, kind in sources(prompt)] == ["original", "original", "shortened"] * 2
    assert [ref for ref, _ in sources(prompt)] == ["r1.p0", "r1.p2", "r1.p3", "r2.p1", "r2.p2", "r2.p3"]
    for message, source in zip(prompt.messages, prompt.sources, strict=True):
        assert memory.reload(source.ref or "", role="Planner") in message["content"]


OWN: dict[str, Any] = {"metadata": {"user": 7}, "created_at": 1_760_000_000, "index": 0, "_seen": True}
MARK = {"cache_control": {"type": "ephemeral"}}


def own(one: Any) -> Any:
    """Return a message, part, call or function with keys of the host's own, and those in it as well."""
    inner = {key: own(one[key]) for key in ("function", "custom") if key in one}
    lists = {key: [*map(own, one[key])] for key in ("content", "tool_calls") if isinstance(one.get(key), list)}
    return {**one, **inner, **lists, **OWN}


def test_a_hosts_own_keys_come_back_from_the_log_and_reach_no_provider() -> None:
    """Providers refuse messages, parts and calls with keys that they do not know. What vendors want back stays, and the
    message is the original all the same; only what is sent counts."""
    signed = {**calls("a")["tool_calls"][0], "extra_content": {"signature": "c2ln"}}
    custom = {"id": "b", "type": "custom", "custom": {"name": "sh", "input": "ls"}}
    picture = {"type": "image_url", "image_url": {"url": "https://a/b.png", "detail": "low"}, **MARK}
    others = [
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
        {"type": "file", "file": {"file_id": "file-1"}, "prompt_cache_breakpoint": {"mode": "explicit"}},
    ]
    said: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "Pack.", **MARK}]},
        {"role": "user", "content": [{"type": "text", "text": "Look."}, picture, *others]},
        {"role": "assistant", "content": None, "tool_calls": [signed, custom], "reasoning_content": "Hm."},
        {**result("a"), "name": "f", **MARK},
        {**result("b"), "content": [{"type": "text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "annotations": []},
    ]
    given = [{**own(message), "id": "m-1"} for message in said]
    memory, plain = memory_of(*given), memory_of(*said)

    header = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    prompt = compose(memory, budget=WIDE, system=[own(header)])
    expected = compose(plain, budget=WIDE, system=[header])
    assert prompt.messages == expected.messages == [header, *said]
    assert prompt.tokens == expected.tokens == budget_status(memory, system=[header]).total
    assert {source.kind for source in prompt.sources} == {"original"}
    assert memory.messages() == given


def test_parts_and_calls_that_openai_does_not_have_stay_as_they_are() -> None:
    """Nobody but their vendor knows their keys: blocks of Anthropic, and calls with their name beside the id."""
    block = {"type": "tool_use", "id": "a", "name": "f", "input": {}, "caller": {"type": "direct"}}
    said = [
        {"role": "user", "content": [{"type": "video_url", "video_url": {"url": "https://a"}, "fps": 2}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": "c2ln"}, block]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x", "is_error": True}]},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "b", "type": "function", "name": "f", "args": {}}]},
    ]
    assert compose(memory_of(*said), budget=WIDE).messages == said


def test_copies_of_a_prompt_know_its_sources() -> None:
    """Also behind a process's border. They are no field: what stores a prompt's fields stores what is sent."""
    prompt = compose(cut_chat(), budget=4_000, system="Be brief.")
    for other in (copy.copy(prompt), copy.deepcopy(prompt), pickle.loads(pickle.dumps(prompt))):  # noqa: S301
        assert other.sources == prompt.sources
    assert list(asdict(prompt)) == ["messages", "tokens", "report"]


def test_a_prompt_of_a_host_has_no_sources() -> None:
    """Nobody knows where its messages come from."""
    prompt = compose(memory_of(user()), budget=WIDE)
    assert Prompt(prompt.messages, prompt.tokens, prompt.report).sources == ()
    assert Prompt(prompt.messages, prompt.tokens, prompt.report) == prompt
