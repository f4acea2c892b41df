"""Print how many planted facts survive a summary of fixed size: ours against plain baselines. Deterministic.

    python -m benchmarks.extractive_retention [--split dev|held-out] [--seeds 10] [--data airline.jsonl]

Facts are sentences, rules, tool results, paths and corrections with random values, hidden in filler (generated agent
transcripts) or in real customer dialogues. A fact is kept when all its gold words stand within 40 words of each other
in the summary and what it corrects is gone. There are two sets of wordings: the scorer was tuned while looking at
``dev``; ``held-out`` was only counted. ``needed later`` plants nothing: the first half of each real dialogue is
summarised, and the values are counted that the agent's later tool calls take from it.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compactor.summarizers.base import Summary, SummaryRequest
from compactor.summarizers.extractive import ExtractiveSummarizer
from compactor.tokens import clip_to_tokens
from compactor.tokens import count_tokens as count
from memory.overlays import CompactedMessage
from memory.rounds import USER, Attachment, Post, Round, ToolCall

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "airline.jsonl"
WINDOW = 40

# --- wordings: (text, gold words) -------------------------------------------------------------------------------------

Wording = tuple[str, str]

USER_FACTS: dict[str, list[Wording]] = {
    "dev": [
        ("My sister {name} is allergic to {food}, which matters for the catering.", "{name}|allergic|{food}"),
        ("Our warehouse code is {code} if you need it.", "warehouse|{code}"),
        ("I was born on {date}, by the way.", "born|{date}"),
        ("We are a team of {n} people and {name} leads it.", "{n}|{name}"),
        ("You can reach me at {email} during the week.", "reach|{email}"),
        ("Our production database lives on {host} port {n}.", "database|{host}|{n}"),
        ("I drive a {colour} van with the plate {code}.", "{colour}|{code}"),
        ("We have {amount} left in the travel fund.", "{amount}|travel|fund"),
        ("My doctor told me to stay away from {food}.", "doctor|{food}"),
        ("The key for the shed is with {name}, our neighbour.", "key|shed|{name}"),
        ("The invoice should carry the reference {code} and go to {city}.", "invoice|{code}|{city}"),
        ("We moved here from {city} in {year}.", "{city}|{year}"),
    ],
    "held-out": [
        ("{name} from accounting signs off on everything above {amount}.", "{name}|accounting|{amount}"),
        ("For context, the pilot runs in {city} until the end of {month}.", "pilot|{city}|{month}"),
        ("Badge {code} belongs to my colleague {name}.", "{code}|{name}"),
        ("There's a spare laptop, serial {code}, in the {colour} cabinet.", "{code}|{colour}|cabinet"),
        ("I usually work from {city} on {day}s.", "{city}|{day}"),
        ("The survey got {n} answers, mostly from {city}.", "survey|{n}|{city}"),
        ("Just so you know, {name} left the company in {month} {year}.", "{name}|left|{month}|{year}"),
        ("Our landlord keeps a deposit of {amount}.", "landlord|{amount}"),
        ("My grandmother can't digest {food}.", "grandmother|{food}"),
        ("The backup goes to {host} every night at {time}.", "backup|{host}|{time}"),
        ("I paid {amount} for the {colour} bicycle.", "{amount}|{colour}|bicycle"),
        ("If anything breaks, write to {email}, that's {name}.", "{email}|{name}"),
        ("Somebody painted the meeting room {colour} and nobody knows why.", "meeting|room|{colour}"),
        ("The lease ends on {date}.", "lease|{date}"),
    ],
}
RULES: dict[str, list[Wording]] = {
    "dev": [
        ("Never delete anything under {path}.", "never|delete|{path}"),
        ("From now on, write all amounts in {currency}.", "amounts|{currency}"),
        ("Do not contact {name} without asking me first.", "not|contact|{name}"),
        ("Always run the linter before you show me code.", "always|linter|code"),
        ("Remember that the total must stay under {amount}.", "total|under|{amount}"),
    ],
    "held-out": [
        ("Under no circumstances may {name} see the salary sheet.", "no circumstances|{name}|salary"),
        ("Please keep every answer below {n} words.", "answer|below|{n}|words"),
        ("You must not push to the branch {code}.", "not push|{code}"),
        ("I don't want you to touch {path}, ever.", "don|touch|{path}"),
        ("Whatever happens, ask me before you spend more than {amount}.", "ask me|spend|{amount}"),
        ("Only use the mirror at {host} for downloads.", "only|mirror|{host}"),
    ],
}
RESULTS: dict[str, list[Wording]] = {
    "dev": [
        ('{{"account": {{"iban": "{code}", "limit": {n}, "currency": "{currency}"}}, "ok": true}}', "{code}|{n}"),
        ("Migration finished: {n} rows moved to table {ident}.", "{n}|{ident}"),
        ('{{"order_id": "{code}", "status": "shipped", "carrier": "{name} Logistics"}}', "{code}|shipped"),
        ("ValueError: column '{ident}' has {n} missing entries", "ValueError|{ident}|{n}"),
        ("accuracy on the validation set = 0.{n}", "accuracy|0 {n}"),
        ("wrote {path} ({n} bytes)", "{path}|{n}"),
    ],
    "held-out": [
        ('[{{"host": "{host}", "uptime_days": {n}, "owner": "{name}"}}]', "{host}|{n}|{name}"),
        ("The shape of {ident} is ({n}, 17)", "shape|{ident}|{n}"),
        ('{{"result": {{"confirmation": "{code}", "seat": "14C", "paid": {n}}}}}', "{code}|{n}"),
        ("ERROR: disk quota on {host} exceeded by {n} MB", "quota|{host}|{n}"),
        ("Best model: {ident} with F1 0.{n}", "{ident}|0 {n}"),
        ("3 checks passed, 1 failed: {ident} (see {path})", "failed|{ident}|{path}"),
        ("exported to {path}", "exported|{path}"),
    ],
}
REPORTS: dict[str, list[Wording]] = {
    "dev": [
        ("I saved the cleaned table to {path}.", "cleaned|{path}"),
        ("The booking is confirmed under number {code}.", "booking|{code}"),
        ("The outliers all come from sensor {ident}.", "outliers|{ident}"),
        ("I registered {name} for the course on {date}.", "{name}|course|{date}"),
    ],
    "held-out": [
        ("The chart is in {path} now, with the legend on the left.", "chart|{path}"),
        ("{name} has been added as a reviewer of {code}.", "{name}|reviewer|{code}"),
        ("It turned out that {ident} was written twice, which explains the {n} duplicates.", "{ident}|{n}|duplicates"),
        ("Your refund of {amount} carries the reference {code}.", "refund|{amount}|{code}"),
    ],
}
#: Who says it, the old value, the newer one, gold words of the newer.
CORRECTIONS: dict[str, list[tuple[str, str, str, str]]] = {
    "dev": [
        ("user", "The launch is planned for {day}.", "The launch is now planned for {day2}.", "launch|{day2}"),
        ("user", "Our budget is {amount}.", "Actually, raise the budget to {amount2}.", "budget|{amount2}"),
        ("tool", "status of {code} = pending", "status of {code} = done", "{code}|done"),
        ("tool", "total: {n}", "total: {n2}", "total|{n2}"),
    ],
    "held-out": [
        ("user", "The meeting is in room {n}.", "They moved us, the meeting is in room {n2} now.", "meeting|room|{n2}"),
        ("user", "My phone number is {n}.", "Sorry, my phone number is {n2}.", "phone|{n2}"),
        ("tool", "queue length: {n}", "queue length: {n2}", "queue length|{n2}"),
        ("tool", '{{"ticket": "{code}", "state": "open"}}', '{{"ticket": "{code}", "state": "shut"}}', "{code}|shut"),
    ],
}
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
THINGS = [
    "table",
    "second column",
    "figure",
    "draft",
    "layout",
    "summary page",
    "import script",
    "filter",
    "sample",
    "test run",
    "legend",
    "lookup",
    "comparison",
    "header",
    "schedule",
    "form",
    "query",
    "model",
    "forecast",
    "mapping",
    "template",
    "export",
    "log",
    "folder",
    "chapter",
    "index",
    "survey page",
    "notebook",
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


@dataclass(frozen=True)
class Fact:
    text: str
    gold: tuple[str, ...]
    #: The statement that this one replaces; it must be gone.
    old: str = ""


def values(rng: random.Random) -> dict[str, str]:
    """Return one random value for each slot of the wordings."""

    def pick(words: str) -> str:
        return rng.choice(words.split())

    letters = "".join(rng.choices(string.ascii_uppercase, k=3))
    small, year = rng.randint(10, 99), rng.randint(1990, 2022)
    amounts = rng.sample(range(110, 9900), 2)
    numbers = rng.sample(range(1201, 98765), 2)
    days = rng.sample(["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"], 2)
    things = rng.sample(THINGS, 2)
    stem = pick("alpha delta harvest ledger orbit pluto quartz tundra velvet willow")
    folder, stage, suffix = pick("srv data home/app mnt"), pick("raw out final"), pick("csv parquet json md")
    return {
        "name": pick("Marta Oskar Yuki Priya Tobias Amara Leila Henrik Rosa Kofi Ingrid Mateo"),
        "city": pick("Lisbon Graz Osaka Tampere Quito Bergen Lyon Haifa Bristol Gdansk"),
        "food": pick("peanuts shellfish gluten mustard celery lactose sesame mango"),
        "colour": pick("green purple orange turquoise yellow maroon"),
        "month": pick("January February March April June July August September October"),
        "currency": pick("EUR CHF JPY NOK"),
        "code": rng.choice([f"{letters}-{rng.randint(1000, 9999)}", f"{letters}{small}K", f"{letters}{7 * small}"]),
        "date": f"2023-{rng.randint(1, 12):02}-{rng.randint(10, 28)}",
        "day": days[0],
        "day2": days[1],
        "n": str(numbers[0]),
        "n2": str(numbers[1]),
        "amount": f"${amounts[0]}",
        "amount2": f"${amounts[1]}",
        "year": str(year),
        "time": f"{rng.randint(0, 23):02}:{rng.randint(10, 59)}",
        "email": f"{stem}{small}@example.org",
        "host": f"{stem}-{small}.internal",
        "ident": f"{stem}_{pick('index total rate batch v2')}_{small}",
        "path": f"/{folder}/{stem}/{stage}_{rng.randint(1, 999)}.{suffix}",
        "dd": str(rng.randint(10, 28)),
        "thing": things[0],
        "thing2": things[1],
        "adjective": pick("odd good broad strict missing recent plain stable partial separate noisy rough modern"),
        "verb": pick("check sort rename merge print review describe split plot extend repair group simplify collect"),
        "when": pick("now today again later first twice quickly afterwards separately if_possible").replace("_", " "),
    }


def fact(rng: random.Random, wording: Wording) -> Fact:
    slots = values(rng)
    return Fact(wording[0].format(**slots), tuple(g.format(**slots) for g in wording[1].split("|")))


def correction(rng: random.Random, wording: tuple[str, str, str, str]) -> Fact:
    slots = values(rng)
    _, old, new, gold = wording
    return Fact(new.format(**slots), tuple(g.format(**slots) for g in gold.split("|")), old.format(**slots))


def kept(fact: Fact, summary: str) -> bool:
    """Whether all gold words stand within ``WINDOW`` words of each other, and what the fact replaced is gone."""
    words = re.findall(r"\w+", summary.lower())
    if fact.old and " ".join(re.findall(r"\w+", fact.old.lower())) in " ".join(words):
        return False
    places = []
    for gold in fact.gold:
        want = re.findall(r"\w+", gold.lower())
        places.append([i for i in range(len(words)) if words[i : i + len(want)] == want])
    return all(places) and any(
        all(any(start <= place < start + WINDOW for place in found) for found in places)
        for start in (place for found in places for place in found)
    )


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


# --- summarizers ------------------------------------------------------------------------------------------------------

Method = Callable[[Sequence[Round], "CompactedMessage | None", int], str]


def lines(rounds: Sequence[Round], previous: CompactedMessage | None = None) -> list[tuple[str, str]]:
    """Return (speaker, text) for everything that was said, oldest first, the previous summary before it."""
    said = [("summary", previous.summary)] if previous else []
    for round_ in rounds:
        said.append((USER, round_.user_query))
        for post in round_.post_list:
            texts = [post.message, *(a.content for a in post.attachment_list), *(c.arguments for c in post.tool_calls)]
            said += [(post.send_from, text) for text in texts if text and text != round_.user_query]
    return said


def ours(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    answer = ExtractiveSummarizer()(SummaryRequest(rounds=rounds, previous=previous, target_tokens=target))
    return answer.text if isinstance(answer, Summary) else answer


def last_tokens(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    # Cut from the end by reversing: the counts of both directions differ by a few tokens at most.
    words = "\n".join(text for _, text in lines(rounds, previous)).split(" ")
    low, high = 0, len(words)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if count(" ".join(words[middle:])) <= target else (middle + 1, high)
    return " ".join(words[low:])


def first_user_messages(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    return _fill([text for speaker, text in lines(rounds, previous) if speaker in {USER, "summary"}], target)


def tf_idf(rounds: Sequence[Round], previous: CompactedMessage | None, target: int) -> str:
    """Sentences by the mean TF-IDF of their words, each sentence a document."""
    sentences = [s for _, text in lines(rounds, previous) for s in re.split(r"(?<=[.!?])\s+|\n+", text) if s.strip()]
    bags = [Counter(re.findall(r"\w+", sentence.lower())) for sentence in sentences]
    spread = Counter(word for bag in bags for word in bag)

    def worth(place: int) -> float:
        bag = bags[place]
        total = sum(times * math.log(len(bags) / spread[word]) for word, times in bag.items())
        return total / (sum(bag.values()) or 1)

    ranked = sorted(range(len(sentences)), key=worth, reverse=True)
    return _fill([sentences[place] for place in ranked], target, skip=True)


def _fill(texts: Iterable[str], target: int, *, skip: bool = False) -> str:
    taken: list[str] = []
    left = target
    for text in texts:
        cost = count(text) + 1
        if cost <= left:
            taken.append(text)
            left -= cost
        elif not skip:
            taken.append(clip_to_tokens(text, left))
            break
    return "\n".join(taken)


METHODS: dict[str, Method] = {
    "extractive": ours,
    "last tokens": last_tokens,
    "first user messages": first_user_messages,
    "tf-idf": tf_idf,
}

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


def successive(method: Method, batches: Sequence[Sequence[Round]], target: int) -> Iterable[str]:
    """Yield the summary after each of *batches*, each made from the one before and the new rounds only."""
    previous, end = None, 0
    for batch in batches:
        end += len(batch)
        text = method(batch, previous, target)
        previous = CompactedMessage(start_index=1, end_index=end, summary=text)
        yield text


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
