"""Conversations, searches, prompts, files and settings are read in time that grows with their length, and no faster."""

from __future__ import annotations

import asyncio
import io
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import pytest
from hostile import SIZES, Read, find_growth

from compactor import (
    ConfigError,
    ExtractiveSummarizer,
    Plan,
    Settings,
    SummarizerError,
    SummaryRequest,
    compose,
    count_tokens,
)
from compactor.acceptance.prohibitions import UserWords, find_instructions, read_user_words, restore_sentences
from compactor.cli.evaluate.retention import Said, SummaryWords, find_items
from compactor.cli.replay import read_transcript
from compactor.cli.terminal import CommandError, make_one_line
from compactor.events import escape_controls
from compactor.host_rounds import HostRounds
from compactor.notes import find_headings, normalize_heading, read_notes, render_notes
from compactor.plan import render_plan
from compactor.presets import (
    MemoryWithCompress,
    NotAnArchive,
    OffloadFiles,
    make_archive,
    memory_with_compress,
    offload_context,
    read_archive,
)
from compactor.prompt.groups import parse_kind
from compactor.prompt.shorten import clip_message, clip_text
from compactor.strategies import OffloadRule
from compactor.strategies.note_edits import NoteEdit, apply_edits
from compactor.summarizers.actions import choose_files, choose_lines, find_actions, parse_action
from compactor.summarizers.content import find_assignment, read_content
from compactor.summarizers.cues import is_prohibition, may_prohibit, rate_instruction, split_words
from compactor.summarizers.results import find_structures
from compactor.summarizers.sentences import split_clauses, split_sentences
from compactor.summarizers.statements import from_rounds, from_summary
from compactor.tokens import clip_to_tokens
from compactor.transcript import StepLimit, quote, shorten_name, split_into_steps
from memory import (
    USER,
    Attachment,
    CompactedMessage,
    InMemoryStore,
    Memory,
    Note,
    Post,
    Recall,
    Round,
    StoreDamaged,
    ToolCall,
    UnknownReference,
    open_store,
)
from memory.recall import Refused, read_arguments, read_number
from memory.references import Passage, find_ceil_boundary, find_floor_boundary, parse_reference, take_beginning
from memory.search import split_query
from memory.transfer.jsonl import import_session
from prompts import PromptTemplate, escape_tags, load

pytestmark = pytest.mark.timeout(120)


# -- a round in which a text stands at one of the places that others fill ---------------------------------------------


def asked(text: str) -> Round:
    return Round(user_query=text, number=1, state="finished")


def round_of(*posts: Post) -> Round:
    numbered = tuple(post.model_copy(update={"number": number}) for number, post in enumerate(posts, 1))
    return Round(user_query="q", number=1, state="finished", post_list=numbered)


def called(name: str = "f", arguments: str = "{}", call_id: str = "c", result: str = "ok") -> Round:
    call = ToolCall(id=call_id, name=name, arguments=arguments)
    return round_of(
        Post(send_from="assistant", send_to=USER, tool_calls=(call,)),
        Post(send_from="tool", send_to="assistant", message=result, tool_call_id=call_id),
    )


def named(text: str) -> Round:
    carried = Attachment(type=text, content="x")
    return round_of(
        *called(text, call_id=text).post_list, Post(send_from=text, send_to=text, attachment_list=(carried,))
    )


def carrying(text: str) -> Round:
    kinds = ("plan", "python", "file")
    carried = tuple(Attachment(type=kind, content=text) for kind in kinds)
    return round_of(Post(send_from="Planner", send_to=USER, message=text, attachment_list=carried))


ROUNDS: dict[str, Callable[[str], Round]] = {
    "query": asked,
    "result": lambda text: called(result=text),
    "arguments": lambda text: called(arguments=text),
    "names": named,
    "answer and attachments": carrying,
}


# -- what reads them --------------------------------------------------------------------------------------------------


def transcribe(make: Callable[[str], Round], text: str) -> None:
    quote(make(text))
    list(split_into_steps([make(text)], StepLimit(4_000), count_tokens))


def choose_actions(make: Callable[[str], Round], text: str) -> None:
    actions = find_actions([make(text)])
    choose_lines(actions, 200, count_tokens)
    choose_files(actions, (text[:2_000],), (text,), "", 200, count_tokens)


def append_blocks(text: str) -> None:
    memory = Memory()
    memory.append({"role": "user", "content": [{"type": "text", "text": text}, {"type": text, "x": text}, text]})
    call = {"type": "tool_use", "id": text, "name": text, "input": {"a": text}}
    memory.append({"role": "assistant", "content": [call]})
    said = {"type": "tool_result", "tool_use_id": text, "content": [{"type": "text", "text": text}]}
    memory.append({"role": "user", "content": [said]})
    Memory.from_state_dict(json.loads(json.dumps(memory.state_dict())))


def host(text: str) -> None:
    post = {"send_from": text, "send_to": USER, "message": {"a": text}, "tool_calls": [{"id": text, "name": text}]}
    list(HostRounds([{"user_query": text, "post_list": [post]}], ""))


def cut(text: str) -> None:
    for place in (1, len(text) // 3, len(text) // 2, len(text) - 1):
        find_floor_boundary(text, place), find_ceil_boundary(text, place), take_beginning(text, place)


def look_up(text: str) -> None:
    passage = Passage([text, text[:1_000], text])
    passage.quote(10, passage.find_ceil_boundary(len(text) + 3))
    for pattern in (text[:100], text[-3:], "qqq"):
        list(islice(passage.find_offsets(pattern), 1_000))
    with suppress(UnknownReference):
        parse_reference(text)


def recall(text: str) -> None:
    memory = Memory.from_messages([{"role": "user", "content": text}, {"role": "assistant", "content": "a"}])
    answers = Recall(memory)
    for query in (text, text[:50], "nothing"):
        answers.call("search_history", {"query": query})
    for arguments in (
        text,
        {"ref": text},
        {"ref": "r1", "pattern": text[:150]},
        {"ref": "r1", "offset": len(text) // 2},
    ):
        answers.call("context_reload", arguments)
    answers.call("read_rounds", {"start": text})


def search_store(folder: Path, text: str) -> None:
    store = open_store(f"sqlite:///{folder / 'log.db'}")
    try:
        memory = Memory(store=store)
        for said in (text, "next"):
            memory.append({"role": "user", "content": said})
            memory.append({"role": "assistant", "content": "a"})
        memory.search(text[:40])
        memory.search("nothing")
    finally:
        store.close()


def read_call(text: str) -> None:
    with suppress(Refused):
        read_arguments(text, {})
    with suppress(Refused):
        read_number({"a": text}, "a", None, 0, 9)


def import_lines(text: str) -> None:
    head = '{"format":"context-compactor session","version":1,"session":"s","entries":3}\n'
    for lines in (text, head + text):
        with suppress(StoreDamaged):
            import_session(InMemoryStore(), io.StringIO(lines))


def render(text: str) -> None:
    values = {"previous_summary": text, "plan": text, "role": text}
    PromptTemplate("mine", "{content} {previous_summary} {plan} {role}").render(text, **values)
    # What stands in place of so many placeholders is short: else the answer itself grows with the square.
    PromptTemplate("mine", "{content} " + text.replace("{content}", "")).render(text, role="Planner")


def load_prompt(folder: Path, text: str) -> None:
    path = folder / "mine.yaml"
    indented = re.sub(r"[^\n -~]|\n", "\n  ", text[:60_000])
    path.write_text(f"version: 1\ncontent: |\n  {{content}} {indented}\n")
    load(path)


def configure(text: str) -> None:
    for key, value in ((text, "1"), ("compaction.threshold", text), (f"{text}.compaction.threshold", 3)):
        with suppress(ConfigError):
            Settings.from_dict({key: value}, env={f"COMPACTOR_{text}": text})
        with suppress(ConfigError):
            Settings.from_dict({key: value}, env={})
    with suppress(ValueError):
        parse_kind(f"A{text}")


def take_notes(text: str) -> None:
    notes = read_notes(text, (1, 1))
    render_notes(notes)
    find_headings(text)
    normalize_heading(text)
    apply_edits(notes, [NoteEdit("add", 0, text[:100], text)])


def attribute(text: str) -> None:
    heard = UserWords([asked(text)])
    heard.attribute(text)
    heard.attribute(f"Instructions from the user:\n- {text}")
    heard.attribute_notes((Note(text=text, section="Instructions from the user"),))


def carry(text: str) -> None:
    restore_sentences(text, ("Never sell it.", text[:400]), 1_000, count_tokens)
    find_instructions(f"Instructions from the user:\n{text}")
    read_user_words([asked(text)])


def clip(text: str) -> None:
    clip_text(text, 200, "r1", count_tokens)
    parts = [{"type": "tool_use", "id": "a", "input": {"a": text}}, {"type": "text", "text": text}]
    clip_message({"role": "assistant", "content": parts}, 200, "r1", count_tokens)
    round_ = called(arguments=text, result=text)
    for post in round_.post_list:
        OffloadRule(ending=100, arguments=True, tokens=True).apply(round_, post, count_tokens)


def compose_small(text: str) -> None:
    call = {"id": text[:99], "type": "function", "function": {"name": text[:99], "arguments": text}}
    memory = Memory.from_messages(
        [
            {"role": "user", "content": text},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": text[:99], "content": text},
            {"role": "assistant", "content": text},
            {"role": "user", "content": "q"},
        ]
    )
    compose(memory, budget=3_000)


def summarize(make: Callable[[str], Round], text: str) -> None:
    ExtractiveSummarizer()(SummaryRequest(rounds=(make(text),), end_index=1, target_tokens=1_000))


def summarize_again(text: str) -> None:
    """Go on from *text*, as a summary and as what stands below headings of one."""
    for summary in (text, f"Goal:\n- x\n\nInstructions from the user:\n- {text}\n\nFacts:\n- {text}"):
        before = CompactedMessage(start_index=1, end_index=1, summary=summary)
        ExtractiveSummarizer()(SummaryRequest(previous=before, rounds=(asked("What now?"),), end_index=2))


def offload(text: str) -> None:
    """Have a result moved to a file, what was said summed up, and that summed up again."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": text[:1_000]}}
    messages: list[dict[str, object]] = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": text},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "b"},
    ]
    most = max(len(text) // 4, 400)
    made = offload_context(messages, max_total_tokens=most, target_tokens=most, keep_recent_count=0)
    more = [
        {"role": "user", "content": text[: 2 * most]},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "next"},
    ]
    offload_context([*made.messages, *more], max_total_tokens=most // 2, target_tokens=most, keep_recent_count=0)


def archive(text: str) -> None:
    read_archive(make_archive([{"role": "user", "content": text, text: text, "x": {text: [text]}}]))
    with suppress(NotAnArchive):
        read_archive(f"--- message 1 of 1: {{}}\n{text}")


def search_files(folder: Path, text: str) -> None:
    files = OffloadFiles(folder, text, search_seconds=1e9)
    path = files.write(text, text)
    for pattern in (text[:200], "zzz"):
        files.grep(pattern, glob=text)
    files.read_file(path, 0, None, len(text) // 2)
    files.read_file(text)
    files.delete()


def evaluate(make: Callable[[str], Round], text: str) -> None:
    """Find what *text* says, and look for some of it in a summary that it could be."""
    items, words = find_items([make(text)], "assistant"), SummaryWords(text[:4_000])
    for item in items[:: max(1, len(items) // 20)]:
        words.keeps(item)
    Said(text).find_invented(text[:4_000])


def compress(text: str) -> None:
    """Have *text* stand for others, as a summarizer's answer."""
    memory = MemoryWithCompress(max_token=20, compress_func=lambda _: [{"role": "user", "content": "short"}])
    for number in range(3):
        memory.memory.append({"role": "user", "content": f"{number} {text}"})
        memory.memory.append({"role": "assistant", "content": "a"})
    asyncio.run(memory.get_memory())


def answer_in_json(text: str) -> None:
    with suppress(SummarizerError):
        memory_with_compress(99, lambda _: text)["summarizer"](SummaryRequest(end_index=1))


def read_file(folder: Path, text: str) -> None:
    path = folder / "chat.json"
    path.write_text(text, encoding="utf-8", errors="replace")
    with suppress(CommandError):
        read_transcript(str(path))


#: Each by what it reads. Those that do more than read are measured on shorter texts.
READERS: dict[str, Read] = {
    "content parts": append_blocks,
    "another host's rounds": host,
    "cuts": cut,
    "references and passages": look_up,
    "words of a query": split_query,
    "arguments of our tools": read_call,
    "lines of an export": import_lines,
    "prompt values": render,
    "tags": escape_tags,
    "tokens": count_tokens,
    "tokens of a beginning": lambda text: clip_to_tokens(text, 500),
    "names": lambda text: shorten_name(text, 64),
    "JSON-like text": lambda text: list(find_structures(text)),
    "terms": read_content,
    "values": find_assignment,
    "clauses": lambda text: list(split_clauses(text)),
    "a line of an action": parse_action,
    "words of cues": split_words,
    "instructions": lambda text: (rate_instruction(text), is_prohibition(text), may_prohibit(text)),
    "plans": lambda text: (render_plan(text), str(Plan(text, text, [(text, text), (text, "done")]))),
    "settings": configure,
    "log lines": lambda text: (escape_controls(text), make_one_line(text)),
    "structured answers": answer_in_json,
    "carried instructions": carry,
    "archives": archive,
}
LONGER: dict[str, Read] = {
    **{f"transcript of a {place}": partial(transcribe, make) for place, make in ROUNDS.items()},
    **{
        f"statements of a {place}": lambda text, make=make: list(from_rounds([make(text)]))
        for place, make in ROUNDS.items()
    },
    **{f"actions of a {place}": partial(choose_actions, make) for place, make in ROUNDS.items()},
    "sentences": lambda text: list(split_sentences(text, 400)),
    "an earlier summary": lambda text: list(from_summary(text)),
    "a summary by notes": take_notes,
    "quotes in a summary": attribute,
    "a clipped message": clip,
    **{f"what to keep of a {place}": partial(evaluate, make) for place, make in ROUNDS.items()},
    "recall": recall,
    "a prompt": compose_small,
    "compressed memory": compress,
}
WHOLE: dict[str, Read] = {
    **{f"summary of a {place}": partial(summarize, make) for place, make in ROUNDS.items()},
    "a summary of a summary": summarize_again,
    "offload_context": offload,
}
ON_DISK: dict[str, Callable[[Path, str], None]] = {
    "a store": search_store,
    "a prompt file": load_prompt,
    "offloaded files": search_files,
    "a transcript": read_file,
}


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_what_only_reads_takes_half_a_megabyte(reader: str) -> None:
    """Of the worst of 150 hostile texts, in no more time than in proportion."""
    assert not find_growth(READERS[reader])


@pytest.mark.slow
@pytest.mark.parametrize("reader", LONGER)
def test_what_works_with_a_text_takes_in_proportion(reader: str) -> None:
    """Units and transcripts, statements, actions, notes and quotes."""
    assert not find_growth(LONGER[reader], (500, 8_000, 128_000))


@pytest.mark.slow
@pytest.mark.parametrize("reader", WHOLE)
def test_whole_summaries_take_in_proportion(reader: str) -> None:
    """Of a chosen summary and of ``offload_context``, all steps together."""
    assert not find_growth(WHOLE[reader], (125, 2_000, 32_000))


@pytest.mark.slow
@pytest.mark.parametrize("reader", ON_DISK)
def test_what_reads_and_writes_files_takes_half_a_megabyte(reader: str, tmp_path: Path) -> None:
    """Of a store, with its index; of prompts as much as one may be."""

    def read(text: str) -> None:
        for left in tmp_path.glob("log.db*"):
            left.unlink()
        ON_DISK[reader](tmp_path, text)

    assert not find_growth(read, SIZES)


@pytest.mark.slow
def test_what_is_quadratic_is_found() -> None:
    """The tests above can fail."""
    blanks = re.compile(r"<(?=\s*/?\s*b)")
    assert "characters of '<' and " in find_growth(blanks.search, (2_000, 32_000))
