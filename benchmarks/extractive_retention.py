"""Print how many planted facts survive a summary of fixed size: ours against plain baselines. Deterministic.

    python -m benchmarks.extractive_retention [--split dev|held-out] [--seeds 10] [--data airline.jsonl]

Facts are sentences, rules, tool results, paths and corrections with random values, hidden in filler (generated agent
transcripts) or in real customer dialogues. ``surface_retention`` says when one is kept, ``planting`` how they are
worded. ``needed later`` plants nothing: the first half of each real dialogue is summarised, and the values are counted
that the agent's later tool calls take from it.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from benchmarks.plain_summaries import METHODS, Method, lines, ours, successive
from benchmarks.planting import CORRECTIONS, REPORTS, RESULTS, RULES, USER_FACTS, Wording, correction, fact, values
from benchmarks.surface_retention import Fact, kept
from compactor import count_tokens as count
from memory import USER, Attachment, Post, Round, ToolCall

__all__ = [
    "METHODS",
    "agent_transcript",
    "lines",
    "ours",
    "planted_dialogue",
    "real_dialogues",
    "share_kept",
    "surviving",
]

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "airline.jsonl"

USER_FILLER = [
    "ok, go on",
    "Thanks, that looks {adjective}.",
    "Sounds right to me, please {verb} the {thing} as well.",
    "Why did the {thing} take so long {when}?",
    "Could you {verb} the {adjective} {thing} {when}?",
    "Great.",
    "yes please",
    "I had a look at the {thing} and it seems {adjective}.",
    "Let's {verb} the {adjective} {thing} {when} then.",
    "Can you {verb} the {thing} once more?",
    "I wonder whether the {thing} is too {adjective} for the {thing2}.",
]
AGENT_FILLER = [
    "Sure, I can {verb} the {thing}.",
    "I will {verb} the {adjective} {thing} and come back to you {when}.",
    "Let me {verb} the {thing} and the {thing2} first.",
    "The next step is to {verb} the remaining {thing2}.",
    "The {thing} looks {adjective}, so I would {verb} the {thing2} {when}.",
    "Is there any other {thing} to {verb}?",
    "I went through the {thing}, and nothing {adjective} came up in batch {n}.",
    "Step {dd} of the {thing} is finished.",
    "I compared the {thing} with the {thing2} of {month}, and they look {adjective}.",
    "We can {verb} it {when}.",
    "As a next action I would {verb} the {thing} of {name} and compare it with the {adjective} {thing2}.",
]
NOISE = [
    "2024-05-{dd} 12:{dd}:{dd} INFO worker-{dd} processed batch {n} in {dd} ms",
    "drwxr-xr-x 2 app app {n} May {dd} cache_{n}",
    "GET /static/{n}.js 200 {dd}ms",
    "row {n}: ok",
    "epoch {dd}: loss 0.{n}",
    "- item {n}: {adjective} {thing}",
    '{{"id": "{code}", "label": "{adjective} {thing}", "city": "{city}", "price": {n}}}',
    "{ident} {n} {n2} {city} {adjective}",
]


# --- transcripts ------------------------------------------------------------------------------------------------------


def agent_transcript(rng: random.Random, split: str, rounds: int = 24) -> tuple[list[Round], list[Fact]]:
    """Return a transcript with 19 facts: 6 of the user, 3 rules, 4 results, 3 reports, 3 corrections."""

    def some(kind: dict[str, list[Wording]], count: int) -> list[Fact]:
        return [fact(rng, wording) for wording in rng.sample(kind[split], count)]

    said = some(USER_FACTS, 6) + some(RULES, 3)
    results, reports = some(RESULTS, 4), some(REPORTS, 3)
    corrections = [(wording[0], correction(rng, wording)) for wording in rng.sample(CORRECTIONS[split], 3)]
    places: dict[tuple[str, int], list[str]] = {}
    for kind, facts in (("user", said), ("tool", results), ("agent", reports)):
        for item in facts:
            places.setdefault((kind, rng.randrange(rounds)), []).append(item.text)
    for kind, item in corrections:
        places.setdefault((kind, rng.randrange(rounds // 2)), []).append(item.old)
        places.setdefault((kind, rng.randrange(rounds // 2, rounds)), []).append(item.text)
    style = rng.choice(["openai", "agents"])
    log = [
        _agent_round(rng, style, *(places.get((k, i), []) for k in ("user", "tool", "agent"))) for i in range(rounds)
    ]
    return log, said + results + reports + [item for _, item in corrections]


def _agent_round(rng: random.Random, style: str, said: list[str], results: list[str], reports: list[str]) -> Round:
    query = _mixed(rng, said, USER_FILLER)
    noise = rng.choice(NOISE)
    outputs = [_output(rng, noise, item) for item in results] or [_output(rng, noise, "")]
    answer = _mixed(rng, reports, AGENT_FILLER)
    if style == "openai":
        posts = []
        for output in outputs:
            call = ToolCall(
                id=f"call_{rng.randrange(10**9)}", name="run", arguments=f'{{"step": {rng.randint(1, 99)}}}'
            )
            posts.append(Post(send_from="assistant", send_to="tool", tool_calls=(call,)))
            posts.append(Post(send_from="tool", send_to="assistant", message=output, tool_call_id=call.id))
        posts.append(Post(send_from="assistant", send_to=USER, message=answer))
        return Round(user_query=query, state="finished", post_list=tuple(posts))
    attachments = (
        Attachment(type="thought", content=rng.choice(AGENT_FILLER).format(**values(rng))),
        *(Attachment(type="execution_result", content=output) for output in outputs),
    )
    return Round(
        user_query=query,
        state="finished",
        post_list=(
            Post(send_from=USER, send_to="Planner", message=query),
            Post(
                send_from="Planner", send_to="CodeInterpreter", message=rng.choice(AGENT_FILLER).format(**values(rng))
            ),
            Post(send_from="CodeInterpreter", send_to="Planner", message="Done.", attachment_list=attachments),
            Post(send_from="Planner", send_to=USER, message=answer),
        ),
    )


def _mixed(rng: random.Random, items: list[str], filler: Sequence[str]) -> str:
    sentences = [rng.choice(filler).format(**values(rng)) for _ in range(rng.randint(1, 2))] + items
    rng.shuffle(sentences)
    return " ".join(sentences)


def _output(rng: random.Random, noise: str, item: str) -> str:
    if item.startswith(("{", "[")):
        return item
    lines = [noise.format(**values(rng)) for _ in range(rng.randint(2, 9))]
    lines.insert(rng.randrange(len(lines) + 1), item)
    return "\n".join(line for line in lines if line)


def to_rounds(messages: Iterable[dict[str, object]]) -> list[Round]:
    """Return OpenAI chat *messages* as rounds; the system header is left out."""
    rounds: list[tuple[str, list[Post]]] = []
    for message in messages:
        role, text = str(message["role"]), str(message.get("content") or "")
        if role == "user":
            rounds.append((text, []))
        elif role != "system" and rounds:
            calls = [
                ToolCall(id=call["id"], name=call["function"]["name"], arguments=call["function"]["arguments"])
                for call in message.get("tool_calls") or ()  # type: ignore[attr-defined]
            ]
            to = "assistant" if role == "tool" else "tool" if calls else USER
            answered = message.get("tool_call_id")
            rounds[-1][1].append(
                Post(send_from=role, send_to=to, message=text, tool_calls=tuple(calls), tool_call_id=answered)
            )
    return [Round(user_query=query, state="finished", post_list=tuple(posts)) for query, posts in rounds]


def real_dialogues(path: Path) -> list[list[dict[str, object]]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line)["messages"] for line in lines]


def planted_dialogue(
    rng: random.Random, split: str, dialogues: list[list[dict[str, object]]], size: int = 24, facts: int = 16
) -> tuple[list[Round], list[Fact]]:
    """Return *size* real dialogues as one, with *facts* sentences planted into what the customers say."""
    rounds = [round_ for messages in rng.sample(dialogues, size) for round_ in to_rounds(messages)]
    wordings = [rng.choice(USER_FACTS[split] if i % 4 else RULES[split]) for i in range(facts)]
    planted = [fact(rng, wording) for wording in wordings]
    for item, place in zip(planted, rng.sample(range(len(rounds)), facts), strict=True):
        sentences = re.split(r"(?<=[.!?]) ", rounds[place].user_query)
        sentences.insert(rng.randrange(len(sentences) + 1), item.text)
        rounds[place] = rounds[place].model_copy(update={"user_query": " ".join(sentences)})
    return rounds, planted


# --- measurements -----------------------------------------------------------------------------------------------------


def share_kept(method: Method, cases: Iterable[tuple[list[Round], list[Fact], int]]) -> float:
    """Return the share of facts that *method* keeps; each case is (rounds, facts, target)."""
    hits = total = 0
    for rounds, facts, target in cases:
        summary = method(rounds, None, target)
        assert count(summary) <= target, "over the target"
        hits += sum(kept(item, summary) for item in facts)
        total += len(facts)
    return hits / total


def surviving(
    method: Method, rng: random.Random, split: str, target: int, steps: Sequence[int] = (1, 5, 20)
) -> list[tuple[int, int]]:
    """Return (kept, planted) of the facts of the first transcript after that many compactions."""
    first, facts = agent_transcript(rng, split)
    batches = [first, *([_agent_round(rng, "openai", [], [], []) for _ in range(10)] for _ in range(max(steps) - 1))]
    texts = list(successive(method, batches, target))
    return [(sum(kept(item, texts[step - 1]) for item in facts), len(facts)) for step in steps]


def surviving_real(
    method: Method, rng: random.Random, split: str, dialogues: list[list[dict[str, object]]], target: int
) -> list[tuple[int, int]]:
    """Return the same where each of 20 compactions brings two real dialogues; the facts stand in the first."""
    first, facts = planted_dialogue(rng, split, dialogues, size=4, facts=12)
    rest = [[r for m in rng.sample(dialogues, 2) for r in to_rounds(m)] for _ in range(19)]
    texts = list(successive(method, [first, *rest], target))
    return [(sum(kept(item, texts[step - 1]) for item in facts), len(facts)) for step in (1, 5, 20)]


def needed_later(method: Method, dialogues: list[list[dict[str, object]]], share: float) -> float:
    """Return the share of argument values of later tool calls, known from the first half, that its summary holds."""
    hits = total = 0
    for messages in dialogues:
        rounds = to_rounds(messages)
        head, tail = rounds[: len(rounds) // 2], rounds[len(rounds) // 2 :]
        known = "\n".join(text for _, text in lines(head))
        calls = [call.arguments for round_ in tail for post in round_.post_list for call in post.tool_calls]
        wanted = {value for arguments in calls for value in re.findall(r'"([\w@.-]*\d[\w@.-]{2,})"', arguments)}
        wanted = {value for value in wanted if value in known}
        if wanted:
            summary = method(head, None, max(40, int(share * count(known))))
            hits += sum(value in summary for value in wanted)
            total += len(wanted)
    return hits / total


def measures(split: str, seeds: int, data: Path) -> dict[str, Callable[[Method], str]]:
    """Return the columns of the table; those on real dialogues only where *data* is."""
    base = 0 if split == "dev" else 10_000

    def rngs() -> Iterable[random.Random]:
        return (random.Random(base + seed) for seed in range(seeds))

    columns: dict[str, Callable[[Method], str]] = {
        "of 19 facts, 400 tokens": lambda method: (
            f"{19 * share_kept(method, [(*agent_transcript(rng, split), 400) for rng in rngs()]):.1f}"
        ),
        "after 1 / 5 / 20": lambda method: _ratios([surviving(method, rng, split, 600) for rng in rngs()]),
    }
    if not data.exists():
        print(f"(no {data.name}: the columns on real dialogues are left out)\n")
        return columns
    dialogues = real_dialogues(data)
    long = [planted_dialogue(rng, split, dialogues) for rng in rngs()]
    sized = [(rounds, facts, sum(count(text) for _, text in lines(rounds)) // 50) for rounds, facts in long]
    return columns | {
        "real, 2%": lambda method: f"{share_kept(method, sized):.0%}",
        "real, after 1 / 5 / 20": lambda method: _ratios(
            [surviving_real(method, rng, split, dialogues, 600) for rng in rngs()]
        ),
        "needed later, 5%": lambda method: f"{needed_later(method, dialogues, 0.05):.0%}",
        "needed later, 10%": lambda method: f"{needed_later(method, dialogues, 0.1):.0%}",
    }


def report(split: str, seeds: int, data: Path) -> None:
    columns = measures(split, seeds, data)
    print(f"| {split} wordings, {seeds} seeds | " + " | ".join(columns) + " |")
    print("|---" * (len(columns) + 1) + "|")
    for name, method in METHODS.items():
        print(f"| {name} | " + " | ".join(measure(method) for measure in columns.values()) + " |", flush=True)


def _ratios(runs: list[list[tuple[int, int]]]) -> str:
    sums = [(sum(hit for hit, _ in step), sum(total for _, total in step)) for step in zip(*runs, strict=True)]
    return " / ".join(f"{hit / total:.0%}" for hit, total in sums)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--split", choices=["dev", "held-out"], default="held-out")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    report(options.split, options.seeds, options.data)
