"""Print how many answers are refused of those that should be shown, and shown of those that should be refused.

    python -m benchmarks.acceptance [--data ../shared/data] [--every 1] [--show]

Answers are made by rule from conversations: honest summaries in fourteen styles and lengths, with a summary before them
and without, and hollow, copied, broken-off and forgetful ones and errors. *--show* prints each that went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from compactor import SummaryRejected, count_tokens
from compactor.acceptance.checks import Source, check_summary
from compactor.summarizers.content import find_identifiers
from compactor.transcript import quote
from memory import Memory, Round

__all__ = ["STYLES", "Case", "bad_answers", "cases_of", "check_of", "honest_answers", "main", "talks"]

#: Rounds that one summary takes in, and characters of what is cut from longer ones.
ROUNDS, LONGEST = 8, 40_000
#: Posts of which a longer round is taken for several; and where a conversation has but one or two of them, fewer.
POSTS, FEW_POSTS = 10, 3


@dataclass(frozen=True)
class Case:
    """What is to be summed up."""

    name: str
    rounds: Sequence[Round]
    #: The summary of what was said before it; empty: none.
    previous: str = ""

    @property
    def text(self) -> str:
        return "<conversation>\n" + "\n".join(map(quote, self.rounds)) + "\n</conversation>"

    @property
    def source(self) -> Source:
        tokens, beside = count_tokens(self.text), (self.previous,)
        return Source(
            self.text, tokens, count_tokens(self.previous), beside=beside, sent=tokens, previous=self.previous
        )


def check_of(answer: str, case: Case, source: Source | None = None) -> str:
    """Return the name of the check that refuses *answer*; empty where it may be shown."""
    try:
        check_summary(answer, source or case.source, target_tokens=None, count=count_tokens)
    except SummaryRejected as rejected:
        return rejected.check
    return ""


# -- what is said of a conversation ----------------------------------------------------------------------------------

_SENTENCE = re.compile(r"[^.!?\n]+")
_NUMBER = re.compile(r"(?<![\w./:,#-])\$?\d+(?:,\d{3})*(?:\.\d+)?(?![\w/:-])")
_SMALL_WORDS = """
    a an the and or but if of to in on at by for with from as is are was were be been i you we they he she it my
    your our me us them this that these those there here do does did have has had can could would will shall
    should may might so not no yes please just also all any some what which who when where how then than too very
    about into out up
"""
_SMALL = frozenset(_SMALL_WORDS.split())


class _Gist(NamedTuple):
    """What a reader would note of one round."""

    asked: str
    answered: str
    names: tuple[str, ...]
    numbers: tuple[str, ...]
    tools: tuple[str, ...]


def _gist(round_: Round) -> _Gist:
    posts = [post.message for post in round_.post_list]
    said = round_.user_query or next((text for text in posts if text), "")
    answer = next((text for text in reversed(posts) if text), "")
    text = "\n".join((round_.user_query, *posts))[:LONGEST]
    tools = tuple(dict.fromkeys(call.name for post in round_.post_list for call in post.tool_calls))
    numbers = tuple(dict.fromkeys(number for number in _NUMBER.findall(text) if len(number) > 1))
    return _Gist(_first(said, 14), _first(answer, 12), find_identifiers(text)[:4], numbers[:3], tools[:4])


def _first(text: str, words: int) -> str:
    sentence = next((found[0] for found in _SENTENCE.finditer(text) if len(found[0].split()) > 2), text)
    return _ended(re.sub(r"[<>{}\[\]\"`*#|]", " ", sentence).split()[:words])


def _telling(text: str, most: int) -> str:
    return _ended([word for word in text.split() if word.casefold().strip(".,!?") not in _SMALL][:most])


def _ended(words: list[str]) -> str:
    """Return *words* as a reader would end them: not with a preposition."""
    while len(words) > 1 and (words[-1].casefold() in _SMALL | {"because", "than", "without"} or _is_open(words[-1])):
        words.pop()
    return " ".join(words).rstrip(" ,;:-(")


def _is_open(word: str) -> bool:
    return word.count("(") > word.count(")")


def _stop(text: str) -> str:
    return text.rstrip(".,:;!?- ") + "."


def _bullets(gists: Sequence[_Gist]) -> str:
    return "\n".join(
        f"- Asked: {_telling(g.asked, 8)}" + (f" ({', '.join((*g.names, *g.numbers[:1]))})" if g.names else "")
        for g in gists
    )


def _named(gists: Sequence[_Gist]) -> list[str]:
    return list(dict.fromkeys(name for g in gists for name in (*g.names, *g.numbers)))


def _headings(gists: Sequence[_Gist]) -> str:
    done = "\n".join(f"- {', '.join(g.tools) or 'Answered'}: {_telling(g.answered, 9)}" for g in gists)
    names = ", ".join(_named(gists))
    goal, left = _stop(gists[0].asked), _stop(gists[-1].asked)
    return f"## Goal\n{goal}\n\n## Done\n{done}\n\n## Facts\n{names or 'none named'}\n\n## Open\n{left}"


def _narrative(gists: Sequence[_Gist]) -> str:
    told = (
        f"the user asked about {_telling(g.asked, 7)}"
        + (f", with {' and '.join(g.names[:2])}" if g.names else "")
        + f", and the answer was that {_telling(g.answered, 7)}"
        for g in gists
    )
    return " Then ".join(_stop(one) for one in told).capitalize()


def _spelled(gists: Sequence[_Gist]) -> str:
    def other(number: str) -> str:
        bare = number.strip("$").replace(",", "")
        return (
            f"{int(bare):,}" if bare.isdecimal() and "," not in number else f"{bare} dollars" if "$" in number else bare
        )

    return "\n".join(f"* {_telling(g.asked, 9)}: {', '.join(map(other, g.numbers)) or 'no figures'}" for g in gists)


#: Each makes an honest summary of what a reader noted.
STYLES: dict[str, Callable[[Sequence[_Gist]], str]] = {
    # What was asked at most length: thanks alone would be no summary of a long piece of conversation.
    "one sentence": lambda gs: _stop(
        f"The user wants {_telling(max((g.asked for g in gs), key=len), 9)}, and lately {_telling(gs[-1].asked, 6)}"
    ),
    "bullets": _bullets,
    "headings": _headings,
    "json": lambda gs: json.dumps(
        {"goal": gs[0].asked, "facts": [n for g in gs for n in g.names], "last": gs[-1].answered}, ensure_ascii=False
    ),
    "fenced json": lambda gs: (
        "```json\n" + json.dumps({"summary": _narrative(gs)}, ensure_ascii=False, indent=1) + "\n```"
    ),
    "narrative": _narrative,
    "telegram": lambda gs: "; ".join(filter(None, (_telling(g.asked, 5) for g in gs))),
    "quoted instructions": lambda gs: "The user said:\n" + "\n".join(f'- "{g.asked}"' for g in gs[::2]),
    "German": lambda gs: (
        "Zusammenfassung des Gesprächs: "
        + " ".join(
            f"Der Nutzer möchte wissen: {_telling(g.asked, 6)}. Ergebnis: {_telling(g.answered, 5)}." for g in gs
        )
    ),
    "other spelling": _spelled,
    "names only": lambda gs: ", ".join(names) if len(names := _named(gs)) > 1 else _bullets(gs),
    "topic": lambda gs: f"Topic: {_telling(max((g.asked for g in gs), key=len), 6)}",
    "tagged": lambda gs: f"<analysis>\nThe goal first.\n</analysis>\n\n<summary>\n{_headings(gs)}\n</summary>",
    "table": lambda gs: (
        "| asked | named |\n|---|---|\n"
        + "\n".join(f"| {_telling(g.asked, 7)} | {', '.join(g.names) or '-'} |" for g in gs)
    ),
}


def honest_answers(case: Case) -> Iterator[tuple[str, str]]:
    """Give honest summaries of *case*, each with its style."""
    gists = [_gist(round_) for round_ in case.rounds]
    kept = case.previous.splitlines()
    for name, make in STYLES.items():
        said = make(gists)
        if not case.previous:
            yield name, said
        elif name in ("bullets", "narrative", "telegram", "German", "other spelling", "table", "one sentence"):
            yield f"{name}, merged", f"{case.previous}\n\n{said}"
            yield f"{name}, abridged", "\n".join((*_abridged(kept), said))


def _abridged(lines: Sequence[str]) -> list[str]:
    """Return half of *lines*: those that name the most, in their order."""
    ranked = sorted(
        range(len(lines)), key=lambda at: -len(find_identifiers(lines[at])) - len(_NUMBER.findall(lines[at]))
    )
    return [lines[at] for at in sorted(ranked[: (len(lines) + 1) // 2])]


# -- what says nothing, copies, breaks off or forgets ----------------------------------------------------------------

HOLLOW = r"""Done|done.|DONE|Done!|null|None|none|undefined|NaN|true|OK.|Completed.|Task completed successfully.
All done!|Here is the summary:|Here's a summary of the conversation:
Here is a concise summary of the conversation so far:|Summary:|## Summary|Summary of the conversation
No summary available.|No summary could be generated.|N/A|TODO|[summary]|...and so on
The conversation has been summarized.|I have summarized the conversation above.|See above.
As discussed above.|As requested.|The conversation covered several topics.|Various topics were discussed.
The user asked questions and the assistant answered them.|The user and the assistant had a conversation.
The assistant helped the user with their requests.|Nothing to summarize.
The user asked several questions and the assistant provided helpful responses.
Everything was handled successfully.
This is a summary of the previous conversation between the user and the assistant.
There is nothing to add.|The summary is complete.|The conversation is ongoing.
The user requested assistance and the issue was resolved.|{}|[]|{"summary": ""}|{"summary": null}
{"status": "ok"}|{"result": "done"}|{"text": "Done"}|""|''|<summary>Done</summary>
<summary></summary>None|```\nDone\n```|```json\n{"summary": null}\n```|**Summary**\n\nNone.
# Summary\n\n- None|- N/A\n- N/A|Lorem ipsum dolor sit amet.|foo|test|placeholder|Zusammenfassung:
Fertig.|Aucun résumé disponible.|No hay resumen.|完了|总结完成。|Готово.|Résumé de la conversation :
Keine Zusammenfassung verfügbar.|Resumen completado.|要約|摘要如下：|Klaar.|Hotovo|Tamam.|تم.|완료"""

ERRORS = r"""Internal Server Error|500 Internal Server Error|502 Bad Gateway|503 Service Unavailable
504 Gateway Time-out|Error|Error: 429 Too Many Requests|Rate limit exceeded. Please try again in 20s.
Request timed out.|Connection error.|Bad Request
upstream connect error or disconnect/reset before headers. reset reason: connection failure
The model is overloaded.|Unauthorized|{"error": "rate limit exceeded"}
{"error": {"message": "Internal error", "type": "server_error", "code": 500}}|Access denied
{"detail": "Not Found"}|{"message": "Internal Server Error", "statusCode": 500}|{"error": null}
{"errors": [{"message": "bad"}]}|The server had an error while processing your request. Sorry about that!
Invalid API key provided.|Error code: 400
This model's maximum context length is 8192 tokens. However, your messages resulted in 9200 tokens.
context_length_exceeded
Rate limit reached for gpt-4o in organization org-x on tokens per min: Limit 30000, Used 29000.
<html><head><title>502 Bad Gateway</title></head><body><center><h1>502 Bad Gateway</h1></center><hr>nginx</body></html>
<!DOCTYPE html>\n<html><head><title>Service unavailable</title></head><body>Please try again later.</body></html>
<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>
openai.APIError: error
Traceback (most recent call last):\n  File "app.py", line 12, in call\nRuntimeError: timeout
java.lang.NullPointerException: null|Exception: model not loaded|HTTP 503
HTTP/1.1 500 Internal Server Error|Failed to generate."""


def _lines_of(case: Case) -> list[str]:
    return [line for line in case.text.splitlines() if line and not line.startswith("<")]


def bad_answers(case: Case, seed: int = 0) -> Iterator[tuple[str, str]]:
    """Give answers to *case* that must not be shown, each with its kind."""
    for kind, table in (("hollow", HOLLOW), ("error", ERRORS)):
        for answer in re.split(r"[|\n]", table):
            yield kind, answer.replace("\\n", "\n")
    yield from (("echo", text) for text in _echoes(case, random.Random(seed)))
    yield from (("forgets_previous", text) for text in _forget_previous(case))


def _echoes(case: Case, rng: random.Random) -> Iterator[str]:
    raw, lines = case.text, _lines_of(case)
    bare = "\n".join(lines)
    for text in (raw, bare, " ".join(bare.split())):
        size = len(text)
        yield from (text, text[: size * 45 // 100], text[size * 55 // 100 :], text[size // 4 : size * 3 // 4])
        yield from (f"Summary:\n{text[: size * 8 // 10]}", f"Here is the summary:\n\n{text[size // 10 :]}")
        words = text[: size * 85 // 100].split(" ")
        words[len(words) // 2] = "altered"
        yield " ".join(words)
    yield raw[:2_000]
    yield "\n".join(lines[::2])
    yield "\n".join(lines[1::2])
    yield "\n".join(f"- {line}" for line in lines[::2])
    yield "\n".join(f"> {line}" for line in lines[: len(lines) * 6 // 10])
    yield bare.upper()[: len(bare) * 7 // 10]
    yield "\n".join(rng.sample(lines, len(lines) * 7 // 10))
    yield "```\n" + bare[: len(bare) * 6 // 10] + "\n```"
    yield f"<summary>{bare[: len(bare) // 2]}</summary>"


def _forget_previous(case: Case) -> Iterator[str]:
    gists = [_gist(round_) for round_ in case.rounds]
    narrative, bullets = _narrative(gists), _bullets(gists)
    before = f"{case.previous}\n\n" if case.previous else ""
    for share in (30, 45, 60, 75, 90):
        yield before + _within_a_sentence(narrative[: len(narrative) * share // 100])
        told = json.dumps({"goal": gists[0].asked, "said": [g.answered for g in gists]}, ensure_ascii=False)
        yield told[: max(len(told) * share // 100, 12)].rstrip(']}" ')
        yield f"{before}```\n{bullets[: len(bullets) * share // 100]}"
    yield f"{before}{_stop(narrative)} The user also wants to"
    yield f"{before}## Done\n{bullets}\n\n## Open\n- The user asked for the"
    yield f"{before}## Done\n{bullets}\n-"
    if not case.previous:
        return
    lines = case.previous.splitlines()
    plain = [line for line in lines if not (find_identifiers(line) or _NUMBER.search(line))]
    forgetful = [case.previous[: len(case.previous) // 4] + "."]
    for make in ("bullets", "narrative", "telegram", "headings", "one sentence", "topic", "German"):
        said = STYLES[make](gists)
        forgetful += [said, "\n".join((*plain, said)), f"{case.previous[: len(case.previous) // 8]}.\n\n{said}"]
    yield from (said for said in forgetful if _forgets(said, case.previous))


def _forgets(said: str, previous: str) -> bool:
    """Return whether *said* has under a third of the ids and numbers in *previous*, which new rounds may name again."""
    named = {
        *map(str.casefold, find_identifiers(previous)),
        *(one.strip("$") for one in _NUMBER.findall(previous) if len(one) > 1),
    }
    text = said.casefold()
    return len(named) > 1 and 3 * sum(name in text for name in named) < len(named)


def _within_a_sentence(text: str) -> str:
    """Return *text* so far as that it does not happen to end where a sentence does."""
    words = text.rstrip(". ").split(" ")
    return " ".join(words[:-1]) + " and the"


# -- conversations ---------------------------------------------------------------------------------------------------


def cases_of(name: str, messages: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """Give the cases in a conversation: so many rounds each, and from the second on with a summary before."""
    whole = Memory.from_messages(messages).conversation.rounds[:]
    most = POSTS if len(whole) > 2 else FEW_POSTS
    rounds = [part for round_ in whole for part in _parts(round_, most)]
    previous = ""
    for start in range(0, len(rounds), ROUNDS):
        case = Case(f"{name}.{start}", rounds[start : start + ROUNDS], previous)
        if len(case.text) > LONGEST * 4 or len(case.rounds) < 3:
            continue
        yield case
        previous = _headings([_gist(round_) for round_ in case.rounds])


def _parts(round_: Round, most: int) -> Iterator[Round]:
    """Give a round of more than *most* posts in parts."""
    posts = round_.post_list
    for start in range(0, max(len(posts), 1), most):
        query = round_.user_query if start == 0 else ""
        yield round_.model_copy(update={"user_query": query, "post_list": posts[start : start + most]})


def talks(seed: int = 1) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Give conversations of our own, by rule: ordinary support, coding and travel."""
    for kind, (things, asks, answers) in _TALKS.items():
        rng = random.Random(f"{seed} {kind}")
        messages: list[dict[str, Any]] = []
        for _ in range(2 * ROUNDS):
            values = {"thing": rng.choice(things), "id": f"{rng.choice('KRTX')}{rng.randrange(10_000, 99_999)}"}
            values |= {"n": str(rng.randrange(11, 980)), "other": rng.choice(things), "day": rng.choice(_DAYS)}
            for role, said in (("user", asks), ("assistant", answers)):
                messages.append({"role": role, "content": " ".join(rng.sample(said, 2)).format(**values)})
        yield kind, messages


_DAYS = ("Monday", "Tuesday", "Friday", "the weekend")
_TALKS = {
    "support": (
        ("the espresso machine", "a ceramic grinder", "the blue kettle", "my subscription", "the milk frother"),
        (
            "I ordered {thing} under {id} and the parcel never arrived.",
            "Can you check whether {thing} can be swapped for {other} before {day}?",
            "The courier left {thing} with a neighbour who moved away, reference {id}.",
            "My card was charged {n} euros twice for {thing}; I would like one of the charges returned.",
            "Never call my office number about {thing}, only write to my private address.",
        ),
        (
            "The warehouse shows {thing} as shipped on {day} with tracking {id}.",
            "A refund of {n} euros was booked and will reach your bank by {day}.",
            "I opened ticket {id} with the carrier, who searches the depot for {thing}.",
            "Swapping {thing} for {other} costs {n} euros more, unless the box is unopened.",
        ),
    ),
    "coding": (
        ("the parser", "the cache layer", "the migration script", "src/auth/session.py", "the retry decorator"),
        (
            "Why does {thing} crash with KeyError on line {n} when the queue drains?",
            "Refactor {thing} so that it no longer imports {other}, commit {id}.",
            "Do not touch {other} while you change {thing}; the release branch is frozen until {day}.",
            "The nightly build {id} broke after I merged {thing} into the develop branch.",
        ),
        (
            "I patched {thing}: the loop now breaks once the buffer holds {n} rows.",
            "The regression stems from {other}, which swallowed the exception since revision {id}.",
            "{n} unit cases pass; the flaky one covers {thing} and gets rerun on {day}.",
            "Renaming the handle in {thing} sufficed, and the linter is quiet again.",
        ),
    ),
    "travel": (
        (
            "the night train to Vienna",
            "a cabin near the fjord",
            "the ferry to Palermo",
            "the walking tour",
            "the museum pass",
        ),
        (
            "Is {thing} still bookable for two adults and a toddler on {day}?",
            "We would rather take {thing} than {other}, because my mother gets seasick.",
            "Please hold {thing} under booking {id} until my sister confirms.",
            "How much luggage may we bring for {thing}, and does a stroller count?",
        ),
        (
            "{thing} has places left on {day}, at {n} euros for the three of you.",
            "Booking {id} holds {thing}; payment is due before {day}.",
            "With {other} you would arrive at dusk, with {thing} shortly after breakfast.",
            "Strollers travel free on {thing}, suitcases over {n} litres do not.",
        ),
    ),
}


def _data(folder: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for line in (folder / "airline.jsonl").open(encoding="utf-8"):
        read = json.loads(line)
        yield f"airline {read['id']}", [one for one in read["messages"] if one["role"] != "system"]
    for path in sorted((folder / "beam").glob("*.json")):
        yield f"beam {path.stem}", json.loads(path.read_text(encoding="utf-8"))["messages"]
    for line in (folder / "swe" / "ctf.jsonl").open(encoding="utf-8"):
        read = json.loads(line)
        yield f"swe {read['id']}", read["messages"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print both rates for each source of conversations."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.acceptance", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("COMPACTOR_DATA", "../shared/data")))
    parser.add_argument("--every", type=int, default=1, help="take every nth conversation of the data")
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args(arguments)
    found: dict[str, Counter[str]] = {}
    conversations = [("own " + name, messages) for seed in range(5) for name, messages in talks(seed)]
    if options.data.is_dir():
        conversations += [one for place, one in enumerate(_data(options.data)) if place % options.every == 0]
    for name, messages in conversations:
        counts = found.setdefault(name.split()[0], Counter())
        for case in cases_of(name, messages):
            source = case.source
            counts["cases"] += 1
            for style, answer in honest_answers(case):
                counts["honest"] += 1
                if check := check_of(answer, case, source):
                    counts["refused"] += 1
                    counts[f"refused as {check}"] += 1
                    if options.show:
                        print(f"REFUSED {check} {case.name} {style}: {answer[-300:]!r}")
            for kind, answer in bad_answers(case):
                counts["bad"] += 1
                if not check_of(answer, case, source):
                    counts["shown"] += 1
                    counts[f"shown {kind}"] += 1
                    if options.show:
                        print(f"SHOWN {kind} {case.name}: {answer[:100]!r} ... {answer[-100:]!r}")
    for name, counts in found.items():
        print(name, dict(counts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
