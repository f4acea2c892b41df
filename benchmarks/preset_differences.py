"""What each preset shows of real dialogues, message by message; and where two versions of the package differ in it.

    python -m benchmarks.preset_differences record NEW.jsonl [--data ../shared/data] [--budgets 2000 4000]
    PYTHONPATH=OTHER_CHECKOUT python benchmarks/preset_differences.py record OLD.jsonl
    python -m benchmarks.preset_differences compare OLD.jsonl NEW.jsonl [--show 1]

``record`` takes dialogues through every preset and through none, offline and with a model that does as it is told, and
writes a line of JSON for each prompt: what it shows, its tokens, what happened before it, and its faults. ``compare``
groups the prompts in which two such files differ by how they differ. Only public names are used, so that the script
runs on versions that differ inside.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import re
import sys
import tempfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

from compactor import (
    CompactorConfig,
    ContextCompactor,
    ExtractiveSummarizer,
    SummaryRequest,
    compose,
    count_tokens,
    presets,
)
from compactor.presets import AutoContextMemory, MemoryWithCompress, OffloadFiles, offload_context
from compactor.testing import FakeClock
from memory import Memory

__all__ = ["PRESETS", "WAYS", "compare", "find_faults", "is_whole", "main", "outline", "play", "record"]

Message = dict[str, Any]

PRESETS = ("auto_context", "selective", "memory_with_compress", "context_offload")
WAYS = ("none", "rounds", *PRESETS, "AutoContextMemory", "MemoryWithCompress", "offload_context")
SUMMARIZERS = ("offline", "outline")
BUDGETS = (2_000, 4_000)
#: Of the joined conversation.
JOINED_BUDGETS = (4_000, 8_000)
UNLIMITED = 10**9

# -- a model that does as it is told -----------------------------------------------------------------------------------

_TERM = re.compile(r"[\w$][\w$.,:/@-]*[\w]")
_MAX_TERMS, _MAX_NEW_TERMS, _MAX_WORDS = 40, 8, 12


def outline(request: SummaryRequest) -> str:
    """Return a line for each new round, behind the lines of the summary before: how it began, and the terms in it."""
    room = max((request.target_tokens or 800) - 20, 30)
    lines = request.previous.summary.splitlines() if request.previous else []
    known = set(_terms("\n".join(lines)))
    for round_ in request.rounds:
        said = "\n".join([round_.user_query, *(post.message for post in round_.post_list)])
        called = Counter(call.name for post in round_.post_list for call in post.tool_calls)
        new = [term for term in _terms(said) if term not in known][: max(2, min(_MAX_NEW_TERMS, len(said) // 60))]
        known.update(new)
        began = " ".join(round_.user_query.split()[:_MAX_WORDS]).rstrip(".,;:!?")
        parts = [f"The user said: {began}." if began else "", f"Named: {', '.join(new)}." if new else ""]
        parts += [f"{name} was called {times} times." for name, times in called.items()]
        lines.append(" ".join(filter(None, parts)))
    while count_tokens("\n".join(lines)) > room and len(lines) > 1:  # as a model would: of two old lines, their terms
        terms = _terms("\n".join(lines[:2]))
        lines[:2] = [f"Before: {', '.join(terms[-_MAX_TERMS:])}."]
        if len(lines) == 2:
            break
    return "\n".join(lines)


def _terms(text: str) -> list[str]:
    """Return ids, numbers and names, each once."""
    found = (term for term in _TERM.findall(text) if any(map(str.isdigit, term)) or term[1:] != term[1:].lower())
    return list(dict.fromkeys(found))


# -- ways to a prompt --------------------------------------------------------------------------------------------------


class Shown(NamedTuple):
    """What a model is shown at one step."""

    messages: Sequence[Message]
    tokens: int
    #: By how much it is over the budget, as far as the way promises to keep one.
    over: int = 0
    #: First and last round behind the compaction, and its text.
    span: tuple[int, int] | None = None
    summary: str = ""
    #: References of what is shortened, and numbers of rounds that are left out.
    reduced: tuple[str, ...] = ()
    omitted: tuple[int, ...] = ()
    #: Tokens of all that would be shown without a budget; None: unknown.
    whole: int | None = None


class Way(AbstractContextManager["Way"], Protocol):
    #: What happened since somebody looked.
    events: list[str]

    def say(self, message: Message) -> None: ...
    def show(self) -> Shown: ...
    def resolve(self, text: str) -> Iterator[str]:
        """Give each reference in *text* that leads nowhere."""


_FACTS = ("strategy", "check", "reason", "error", "start", "end", "kind", "part", "messages_before", "offline")
_QUIET = ("compaction.evaluated", "compaction.skipped", "compaction.prepared", "compaction.started", "search.")
_REFERENCE = re.compile(r"(?<![\w-])(r\d+(?:\.p\d+(?:-p\d+)?|-r\d+)?)(?![\w-])")
_FILE = re.compile(r"in the file (\S+?)[;\]]")


class _Log:
    """A Memory, and a compactor where there is one."""

    def __init__(self, budget: int, way: str, summarizer: Any) -> None:
        self.budget, self.events, self._stack, self._clock = budget, list[str](), ExitStack(), FakeClock()
        self.memory = Memory("dialogue")
        self.compactor: ContextCompactor | None = None
        if way != "none":
            options: dict[str, Any] = {"summarizer": summarizer}
            if way == "rounds":
                options["config"] = CompactorConfig(threshold=4, retain_recent=1, max_tokens=budget)
            else:
                options = getattr(presets, way)(max_token=budget, summarizer=summarizer)
            self.compactor = ContextCompactor.for_role(self.memory, "assistant", **options, clock=self._clock)
            self.compactor.on_event(self._hear)

    def _hear(self, event: Any) -> None:
        if not event.name.startswith(_QUIET):
            facts = event.facts()
            self.events.append(" ".join([event.name, *(f"{name}={facts[name]}" for name in _FACTS if name in facts)]))

    def __enter__(self) -> _Log:
        if self.compactor is not None:
            self._stack.enter_context(self.compactor)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def say(self, message: Message) -> None:
        self.memory.append(message)
        if self.compactor is None or self.compactor.wait_idle(120):
            return
        self._clock.advance(600)  # what failed is tried again at once
        if not self.compactor.wait_idle(120):
            self.events.append("not idle")

    def show(self) -> Shown:
        whole = compose(self.memory, budget=UNLIMITED).tokens
        prompt = compose(self.memory, budget=self.budget)
        counted = sum(count_tokens(_said(message)) for message in prompt.messages)
        return self._shown(
            prompt.messages,
            prompt.tokens,
            over=max(prompt.tokens - self.budget, counted - prompt.tokens, 0),
            reduced=tuple(f"{one.ref} {getattr(one, 'by', '')}".strip() for one in prompt.report.reductions),
            omitted=prompt.report.omitted_rounds,
            whole=whole,
        )

    def _shown(self, messages: Sequence[Message], tokens: int, **more: Any) -> Shown:
        made = self.compactor.get_compaction() if self.compactor is not None else None
        if made is None:
            return Shown(messages, tokens, **more)
        return Shown(messages, tokens, span=(made.start_index, made.end_index), summary=made.summary, **more)

    def resolve(self, text: str) -> Iterator[str]:
        for found in _REFERENCE.findall(text):
            try:
                self.memory.reload(found)
            except KeyError:
                yield found


class _AutoContext(_Log):
    """``AutoContextMemory`` shows everything, without a budget."""

    def __init__(self, budget: int, _way: str, summarizer: Any) -> None:
        super().__init__(budget, "auto_context", summarizer)
        self.context = AutoContextMemory(self.memory, compactor=self.compactor)

    def show(self) -> Shown:
        messages = self.context.get_messages()
        tokens = sum(count_tokens(_said(message)) for message in messages)
        return self._shown(messages, tokens, whole=tokens)

    def resolve(self, text: str) -> Iterator[str]:
        for found in _REFERENCE.findall(text):
            try:
                if not self.context.reload(found):
                    yield found
            except KeyError:
                yield found


class _Compressed:
    """``MemoryWithCompress``, which compresses when it is read."""

    def __init__(self, budget: int, _way: str, summarizer: Any) -> None:
        self.events: list[str] = []
        self.memory = Memory("dialogue")
        self.memory.on_event(self._hear)
        self.context = MemoryWithCompress(budget, count_tokens, summarizer=summarizer, memory=self.memory)
        self._budget = budget

    _hear = _Log._hear
    resolve = _Log.resolve

    def __enter__(self) -> _Compressed:
        return self

    def __exit__(self, *_exc: object) -> None:
        return None

    def say(self, message: Message) -> None:
        asyncio.run(self.context.add([message]))

    def show(self) -> Shown:
        try:
            messages = asyncio.run(self.context.get_memory())
        except ValueError as error:
            self.events.append(f"raised {type(error).__name__}: {error}")
            messages = self.context.shown() if hasattr(self.context, "shown") else []
        tokens = sum(count_tokens(_said(message)) for message in messages)
        # What may not be compressed may be over the limit by itself, which is told.
        return Shown(messages, tokens)


class _Offloaded:
    """``offload_context`` over what it gave before."""

    def __init__(self, budget: int, _way: str, summarizer: Any) -> None:
        self.events: list[str] = []
        self._budget, self._summarizer = budget, summarizer
        self._messages: list[Message] = []
        self._folder = tempfile.TemporaryDirectory()
        self._files = OffloadFiles(self._folder.name, "dialogue")

    def __enter__(self) -> _Offloaded:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._folder.cleanup()

    def say(self, message: Message) -> None:
        self._messages.append(message)

    def show(self) -> Shown:
        made = offload_context(
            self._messages,
            max_total_tokens=self._budget,
            max_tool_message_tokens=300,
            store_dir=self._folder.name,
            chat_id="dialogue",
            summarizer=self._summarizer,
        )
        if made.failure is not None:
            self.events.append(f"failed {made.failure}")
        self._messages = list(made.messages)
        return Shown(made.messages, made.tokens_after)

    def resolve(self, text: str) -> Iterator[str]:
        for found in _FILE.findall(text):
            if self._files.read_file(found).startswith("Error"):
                yield found


_MADE_BY = {"AutoContextMemory": _AutoContext, "MemoryWithCompress": _Compressed, "offload_context": _Offloaded}


def _said(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls") or ()
    return "\n".join([str(message.get("content") or ""), *(call["function"]["arguments"] for call in calls)])


# -- what must be true of every prompt ---------------------------------------------------------------------------------

_INSTRUCTIONS = re.compile(r"^(?:#+ )?Instructions from the user:\n((?:- .*\n?|  .*\n?)+)", re.MULTILINE)
_OURS = re.compile(r"left out|stood here|kept in full|Stands for|reload r\d")
_WORDS = re.compile(r"\w+")
_JOINS = "\u200d\ufe0f"


def find_faults(said: Sequence[Message], shown: Sequence[Message]) -> Iterator[str]:
    """Give what is wrong with *shown*, which is all that a model sees of what was *said*."""
    if not is_whole(shown):
        yield "torn: a call without its result, or the reverse"
    queries = [message["content"] for message in said if message["role"] == "user"]
    answered = said[-1]["role"] == "assistant" and not said[-1].get("tool_calls")
    if (
        queries
        and not answered
        and not any(message["role"] == "user" and message["content"] == queries[-1] for message in shown)
    ):
        yield "no question: the newest one is not there"
    own = [_bare(_said(message)) for message in said if message["role"] == "assistant"]
    for message in shown:
        text = str(message.get("content") or "")
        if message["role"] == "assistant" and text and not _is_told(text, own):
            yield f"voice: the assistant never said {text[:80]!r}"
        if any(unicodedata.combining(line[0]) or line[0] in _JOINS for line in text.split("\n") if line):
            yield "grapheme: a text is cut within a character"
        yield from _misplaced(text, said)
    yield from _unread(said, shown)


def is_whole(messages: Sequence[Message]) -> bool:
    """Return whether each call is followed by its results at once; those at the very end may wait."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                return False
            waiting.discard(message["tool_call_id"])
        elif waiting:
            return False
        waiting |= {call["id"] for call in message.get("tool_calls") or ()}
    return True


def _is_told(text: str, own: Sequence[str]) -> bool:
    """Return whether all of *text*, but for our own lines, is a stretch of what was said."""
    parts = (_bare(part) for part in text.split("\n") if not _OURS.search(part))
    return all(any(part in one for one in own) for part in parts)


def _misplaced(text: str, said: Sequence[Message]) -> Iterator[str]:
    """Give each line below the heading of the user's instructions that the user did not say."""
    for found in _INSTRUCTIONS.finditer(text):
        for line in re.split(r"^- ", found[1], flags=re.MULTILINE):
            parts = [words for part in line.split("…") if (words := _words(part)).strip()]
            for role in ("user", "tool", "assistant", "nobody"):
                texts = [_words(_said(message)) for message in said if message["role"] == role]
                if all(any(part in one for one in texts) for part in parts) or role == "nobody":
                    if role != "user" and parts:
                        yield f"instruction: of the {role}: {line.strip()[:80]!r}"
                    break


def _bare(text: str) -> str:
    return " ".join(text.split())


def _words(text: str) -> str:
    return f" {' '.join(_WORDS.findall(text.lower()))} "


def _unread(said: Sequence[Message], shown: Sequence[Message]) -> Iterator[str]:
    """Give results behind the assistant's last message that are not shown as they came."""
    results = {message["tool_call_id"]: message["content"] for message in shown if message["role"] == "tool"}
    for message in reversed(said):
        if message["role"] != "tool":
            return
        call = message["tool_call_id"]
        if results.get(call) != message["content"]:
            what = "shortened" if call in results else "gone"
            yield f"unread {what}: a result of {count_tokens(message['content'])} tokens"


# -- recording ---------------------------------------------------------------------------------------------------------


def play(conversation: Sequence[Message], way: str, budget: int, summarizer: str) -> Iterator[dict[str, Any]]:
    """Give what *way* shows after each message of *conversation*, with its faults."""
    asked = ExtractiveSummarizer() if summarizer == "offline" else outline
    bare, bare_before, whole_before = Memory("bare"), 0, None
    with _MADE_BY.get(way, _Log)(budget, way, asked) as player:
        for step, message in enumerate(conversation):
            player.say(message)
            bare.append(message)
            if not any(one["role"] == "user" for one in conversation[: step + 1]):
                continue
            shown = player.show()
            faults = [*find_faults(conversation[: step + 1], shown.messages)]
            if shown.over:
                faults.append(f"over: by {shown.over} tokens")
            faults += [
                f"reference: {found} leads nowhere"
                for one in shown.messages
                if _OURS.search(_said(one))
                for line in _said(one).split("\n")
                if _OURS.search(line)
                for found in player.resolve(line)
            ]
            bare_now = compose(bare, budget=UNLIMITED).tokens if shown.whole is not None else 0
            if shown.whole is not None:
                if whole_before is not None and shown.whole - whole_before > bare_now - bare_before:
                    faults.append(f"longer: by {shown.whole - whole_before - bare_now + bare_before} tokens")
                whole_before = shown.whole
            bare_before = bare_now
            events, player.events = player.events, []
            yield {"step": step, "shown": shown, "events": events, "faults": faults}


def record(
    conversations: Mapping[str, Sequence[Message]], ways: Sequence[str], budgets: Sequence[int], out: TextIO
) -> Counter[str]:
    """Write a line for each prompt, and one for each text before it is first referred to; return faults by kind."""
    known: set[str] = set()
    faults: Counter[str] = Counter()

    def digest_of(message: Mapping[str, Any]) -> str:
        text = json.dumps(message, ensure_ascii=False, sort_keys=True)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        if digest not in known:
            known.add(digest)
            out.write(json.dumps({"digest": digest, "message": message}) + "\n")
        return digest

    for name, conversation in conversations.items():
        out.write(json.dumps({"conversation": name, "said": [digest_of(message) for message in conversation]}) + "\n")
        for budget in budgets:
            for way in ways:
                for summarizer in SUMMARIZERS if way != "none" else SUMMARIZERS[:1]:
                    for one in play(conversation, way, budget, summarizer):
                        shown: Shown = one.pop("shown")
                        run = f"{name} {way} {summarizer} {budget}"
                        faults.update(f"{way}: {fault.partition(':')[0]}" for fault in one["faults"])
                        told = shown._asdict() | {"messages": [*map(digest_of, shown.messages)]}
                        out.write(json.dumps({"run": run, **one, **told}) + "\n")
        out.flush()
    return faults


# -- comparing ---------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_PLACE = re.compile(r" (?:start|end|messages_before|offline)=\w+")
_NAME = re.compile(r"\S*[/\\]\S+|compressed_group\S*|call_\w+")


class Recorded(NamedTuple):
    messages: dict[str, Message]
    said: dict[str, frozenset[str]]
    prompts: dict[tuple[str, int], dict[str, Any]]


def _read(path: Path) -> Recorded:
    found = Recorded({}, {}, {})
    with path.open(encoding="utf-8") as lines:
        for line in map(json.loads, lines):
            if "digest" in line:
                found.messages[line["digest"]] = line["message"]
            elif "said" in line:
                found.said[line["conversation"]] = frozenset(line["said"])
            else:
                found.prompts[line["run"], line["step"]] = line
    return found


def _form(message: Message, *, is_said: bool) -> str:
    """Return what kind of message it is: its role, and the lines around the text that are ours, without numbers."""
    if is_said:
        return f"{message['role']} as it was said"
    lines = [line for line in str(message.get("content")).split("\n") if line[:1] in "[<" and line[-1:] in "]>"]
    forms = (_NUMBER.sub("N", _NAME.sub("FILE", _REFERENCE.sub("REF", line))) for line in lines)
    return f"{message['role']}: " + " ".join(dict.fromkeys(form[:70] for form in forms))


def _causes(old: dict[str, Any], new: dict[str, Any], before: Recorded, after: Recorded) -> Iterator[str]:
    """Give how two prompts differ."""
    said = before.said[old["run"].split(" ")[0]]
    if (old["span"] is None) != (new["span"] is None):
        yield "compacted " + ("no more" if new["span"] is None else "only now")
    elif old["span"] != new["span"]:
        yield "compaction reaches " + ("further" if new["span"][1] > old["span"][1] else "less far")
    elif old["summary"] != new["summary"]:
        yield "the summary's text"
    forms = [
        Counter(_form(one.messages[digest], is_said=digest in said) for digest in prompt["messages"])
        for one, prompt in ((before, old), (after, new))
    ]
    yield from (f"- {form}" for form in sorted(forms[0] - forms[1]))
    yield from (f"+ {form}" for form in sorted(forms[1] - forms[0]))
    if forms[0] == forms[1] and old["summary"] == new["summary"]:
        yield "the text of what is ours"


def compare(old: Path, new: Path, show: int, only: str = "") -> None:
    """Print the groups of prompts that differ: how many, in how many runs it is the first difference, and examples."""
    before, after = _read(old), _read(new)
    keys = [key for key in before.prompts if key in after.prompts and only in key[0]]
    groups: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    firsts: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    differs: set[str] = set()
    same = 0
    for key in keys:
        one, other = before.prompts[key], after.prompts[key]
        if one["messages"] == other["messages"]:
            same += 1
            continue
        causes = tuple(_causes(one, other, before, after))
        groups[causes].append(key)
        if key[0] not in differs:
            firsts[causes].append(key)
            differs.add(key[0])
    runs = len({run for run, _ in keys})
    as_before = runs - len(differs)
    print(f"{len(keys):,} prompts of {runs:,} runs in both; {same:,} prompts are the same, and {as_before:,} runs")
    for name, found in (("before", before), ("now", after)):
        prompts = [one for (run, _), one in found.prompts.items() if only in run]
        faults = Counter(
            f"{one['run'].split(' ')[1]}: {fault.partition(':')[0]}" for one in prompts for fault in one["faults"]
        )
        events = Counter(_PLACE.sub("", event).strip() for one in prompts for event in one["events"])
        print(f"faults {name}: {dict(sorted(faults.items()))}")
        print(f"events {name}: {dict(events.most_common(25))}")
    for title, chosen in (("first differences of a run", firsts), ("all differences", groups)):
        print(f"\n## {title}: {len(chosen)} groups")
        for causes, found in sorted(chosen.items(), key=lambda item: -len(item[1])):
            print(f"\n{len(found):,} prompts, {len({run for run, _ in found})} runs: " + "\n    ".join(causes))
            for run, step in found[:show]:
                print(f"    e.g. {run} at {step}")


def conversations_in(data: Path, every: int, joined: int) -> dict[str, list[Message]]:
    lines = (data / "airline.jsonl").read_text(encoding="utf-8").splitlines()
    talks = [json.loads(line) for line in lines if line.strip()]
    found = {talk["id"]: talk["messages"] for talk in talks[::every]}
    if joined:
        found["joined"] = [*talks[0]["messages"][:1]] + [
            message for talk in talks[1 : 1 + joined] for message in talk["messages"] if message["role"] != "system"
        ]
    return found


def main(given: Iterable[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    modes = parser.add_subparsers(dest="mode", required=True)
    recording = modes.add_parser("record")
    recording.add_argument("out", type=Path)
    recording.add_argument("--data", type=Path, default=Path(os.environ.get("COMPACTOR_DATA", "../shared/data")))
    recording.add_argument("--every", type=int, default=8, help="of each so many dialogues, take one")
    recording.add_argument("--joined", type=int, default=12, help="so many dialogues as one conversation")
    recording.add_argument("--budgets", type=int, nargs="+", default=[*BUDGETS])
    recording.add_argument("--ways", nargs="+", choices=WAYS, default=[*WAYS])
    comparing = modes.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    comparing.add_argument("--show", type=int, default=1, help="so many examples of each group")
    comparing.add_argument("--only", default="", help="in runs whose name holds this")
    chosen = parser.parse_args(None if given is None else [*given])
    if chosen.mode == "compare":
        compare(chosen.old, chosen.new, chosen.show, chosen.only)
        return 0
    talks = conversations_in(chosen.data, chosen.every, 0)
    joined = conversations_in(chosen.data, UNLIMITED, chosen.joined) if chosen.joined else {}
    with chosen.out.open("w", encoding="utf-8") as out:
        faults = record(talks, chosen.ways, chosen.budgets, out)
        faults += record({"joined": joined["joined"]} if joined else {}, chosen.ways, JOINED_BUDGETS, out)
    print(f"{sys.modules['compactor'].__file__}: {dict(faults)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
