"""What is said of quality is counted as it says: what stands in a summary, after how many compactions, made from what."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from benchmarks import quality
from benchmarks.comparison import command
from benchmarks.comparison.conversations import AIRLINE, Absent, airline, chat, tools
from benchmarks.imperfect_model import ImperfectModel
from benchmarks.plain_summaries import first_user_messages, last_tokens, ours
from benchmarks.planting import ALWAYS, NEVER, USER_FACTS, fact
from benchmarks.quality import FIRST_TOKENS, SIZE, Conversation, Run, by_model, conversation, measured, without_model
from benchmarks.surface_retention import Fact, content_words, kept, precision, share_kept
from compactor import SummaryRequest, View, compact_notes, compact_rounds, count_tokens
from memory import CompactedMessage, Note

#: Long enough for twenty compactions of a turn or two.
AFTER = (1, 5, 20)
LEASE = Fact("The lease ends on 2023-01-28.", ("lease", "2023-01-28"), question="When does the lease of the shop end?")


@pytest.fixture(scope="module")
def talk() -> Conversation:
    return conversation(chat(44), seed=1)


@pytest.fixture(scope="module")
def rewritten(talk: Conversation) -> Run:
    return by_model(talk, compact_rounds, 1, AFTER)


@pytest.fixture(scope="module")
def noted(talk: Conversation) -> Run:
    return by_model(talk, compact_notes, 1, AFTER)


# -- the scorer -------------------------------------------------------------------------------------------------------


def test_a_fact_is_kept_where_its_gold_words_stand_with_what_was_asked() -> None:
    """In whatever order, case and words between them."""
    assert kept(LEASE, "Nothing else. The lease ends on 2023-01-28. Nothing else.")
    assert kept(LEASE, "- 2023-01-28: end of the LEASE")
    assert kept(replace(LEASE, question=""), "lease: 2023-01-28")


@pytest.mark.parametrize(
    "summary",
    ["", "The lease ends soon.", "It ends on 2023-01-28.", "The lease ends on 2023-01-29.", "The leases: 2023-01-28."],
)
def test_a_fact_is_lost_where_one_of_its_gold_words_is(summary: str) -> None:
    """A word is a whole word."""
    assert not kept(LEASE, summary)


def test_gold_words_that_are_scattered_do_not_count() -> None:
    """All of them stand within 40 words of each other, the ends of long ones included."""
    fact = replace(LEASE, gold=("lease", "ends", "2023-01-28"))

    def apart(words: int) -> str:
        return f"The lease ends {'and ' * words} 2023-01-28."

    assert kept(fact, apart(35))
    assert not kept(fact, apart(36))
    assert kept(fact, f"{apart(36)} And again: the lease ends on 2023-01-28.")


def test_a_list_of_values_keeps_no_facts() -> None:
    """A third of what the question is about stands with them, within the same 40 words."""
    badge = Fact("", ("7731", "Rosa"), question="Which colleague does the blue badge of the depot belong to?")
    assert content_words(badge.question) == ("colleague", "blue", "badge", "depot", "belong")
    assert not kept(badge, "7731, Rosa, 2024, Oslo.")
    assert not kept(badge, "7731, Rosa: a badge.")
    assert kept(badge, "The blue badge 7731 is Rosa's.")
    assert kept(badge, f"Blue badge: {'x ' * 36} 7731 Rosa")
    assert not kept(badge, f"Blue badge: {'x ' * 37} 7731 Rosa")


def test_what_a_fact_replaces_must_be_gone() -> None:
    newer = Fact("The total is 80.", ("total", "80"), old="total: 75")
    assert kept(newer, "The total is 80.")
    assert not kept(newer, "total: 75. The total is 80.")


@pytest.mark.parametrize("wording", [*NEVER, *ALWAYS, *USER_FACTS["held-out"]], ids=lambda wording: wording[0][:20])
def test_each_planted_sentence_is_counted_as_it_was_said(wording: tuple[str, str, str]) -> None:
    """And not by a sentence with other values: nothing is lost, or found, by how it is worded."""
    first, *others = (fact(random.Random(seed), wording) for seed in range(5))
    other = next(one for one in others if one.text != first.text)
    assert [kept(first, f"{'so ' * 60}{one.text}{' so' * 60}") for one in (first, other)] == [True, False]


# -- precision --------------------------------------------------------------------------------------------------------


def test_precision_names_each_number_path_and_id_that_was_never_said() -> None:
    """Once each; the numbers of a list's items are none."""
    source = 'The order HAT-48213 is in {"path": "/srv/orders/7.json"}; 12 pieces for 1,250.50 at 14:30, 3/4 paid.'
    good = "1. 12 pieces, 1,250.50, 14:30, 3/4\n2. HAT-48213 (HAT-48213) in /srv/orders/7.json"
    assert precision(good, [source]) == (7, ())
    bad = good.replace("12 pieces", "13 pieces").replace("7.json", "8.json").replace("HAT-48213)", "HAT-48231)")
    named, unknown = precision(bad, [source])
    assert (named, set(unknown)) == (8, {"13", "/srv/orders/8.json", "HAT-48231"})
    assert precision("Nothing was said.", [source]) == (0, ())


@pytest.mark.slow
def test_the_source_is_all_that_a_summary_covers_and_nothing_later(talk: Conversation) -> None:
    """What is said after it is unknown to it."""
    batches = talk.batches(20)
    later = next(one for one in talk.along if one.text in talk.texts[-1] + talk.texts[-2] + talk.texts[-3])
    run = Run(talk, batches, {1: later.text}, [1])
    assert run.precision == (0, 2)
    assert replace(run, summaries={20: later.text}).precision == (2, 2)


# -- the model --------------------------------------------------------------------------------------------------------


def asked(text: str, **more: object) -> SummaryRequest:
    return SummaryRequest(messages=[{"role": "user", "content": f"{text}\nUse at most 60 tokens."}], **more)  # type: ignore[arg-type]


def facts_of(count: int) -> list[Fact]:
    return [Fact(f"Shelf {number} holds {number * 7} boxes.", (str(number * 7),)) for number in range(count)]


def test_the_model_loses_one_fact_in_twenty_each_time_that_it_writes_a_summary() -> None:
    """Of what it reads, and by chance: six summaries leave 74 in a hundred."""
    facts = facts_of(400)
    model = ImperfectModel(facts, seed=2)
    text = "\n".join(one.text for one in facts[:300])
    left = []
    for _ in range(6):
        text = model(asked(text))
        left.append(sum(one.text in text for one in facts))
    assert 0.92 * 300 < left[0] < 0.98 * 300
    assert 0.68 * 300 < left[5] < 0.80 * 300


def test_asked_for_changes_the_model_says_what_is_new() -> None:
    """A note that is there is not said again, nor lost."""
    first, second = facts_of(2)
    request = asked(f"1. {first.text}\n{second.text}", kind="changes", notes=(Note(text=first.text),))
    answer = ImperfectModel([first, second], 0, keeps=1.0)(request)
    assert [line.partition(":")[0] for line in answer.splitlines()] == ["add [Goal]", "add [Done]"]
    assert second.text in answer
    assert first.text not in answer


def test_the_model_writes_as_much_as_it_is_asked_for() -> None:
    """And no more than half of what it reads, where that is less."""
    long = "word " * 400
    assert 52 <= count_tokens(ImperfectModel([], 0)(asked(long))) <= 62
    assert count_tokens(ImperfectModel([], 0)(asked("word " * 60))) < 40


# -- compactions ------------------------------------------------------------------------------------------------------


def test_every_turn_is_compacted_once_and_what_is_followed_in_the_first(talk: Conversation) -> None:
    """In as many pieces as there are compactions, the first large enough to be summed up."""
    batches = talk.batches(20)
    assert [turn for batch in batches for turn in batch] == list(range(44))
    assert len(batches) == 20
    assert all(batches)
    sizes = [sum(talk.tokens[batch.start : batch.stop]) for batch in batches]
    assert sizes[0] >= FIRST_TOKENS
    assert max(sizes[1:]) < 3 * min(sizes[1:])
    followed = [one for kind in talk.planted.values() for one in kind]
    assert [len(kind) for kind in talk.planted.values()] == [12, 6, 6]
    told = "\n".join(talk.texts[: batches[0].stop])
    assert all(one.text in told for one in followed)
    assert not any(one.text in text for text in talk.texts[batches[0].stop :] for one in followed)
    assert len(talk.along) == 11
    assert all(one.text in "\n".join(talk.texts) for one in talk.along)
    with pytest.raises(ValueError, match="44 turns are not enough for 40 compactions; take fewer"):
        talk.batches(40)


def test_tools_stay_with_their_calls() -> None:
    """A turn has all from one message of the user to the next."""
    talk = conversation(tools(8), seed=0)
    assert {tuple(message["role"] for message in turn) for turn in talk.turns} == {
        ("user", "assistant", "tool", "assistant")
    }
    assert "look_up" in talk.texts[0]


@pytest.mark.skipif(not AIRLINE.exists(), reason=f"real dialogues are not here: {AIRLINE}")
def test_facts_are_told_all_along_in_real_dialogues_too() -> None:
    talk = conversation(airline(4), seed=0)
    assert all(turn[0]["role"] == "user" for turn in talk.turns)
    assert len(talk.along) == quality.ALONG
    assert share_kept(talk.along, "\n".join(talk.texts)) == (quality.ALONG, quality.ALONG)


@pytest.mark.slow
def test_so_many_compactions_happen_one_for_each_batch(rewritten: Run, noted: Run) -> None:
    """Summaries of one size, of which few are written anew where changes do."""
    # Notes that have passed through three summaries may grow to half more than their target first.
    for run, growth in ((rewritten, 1.25), (noted, 1.6)):
        assert len(run.tokens) == 20
        assert list(run.summaries) == [*AFTER]
        assert len(set(run.summaries.values())) == 3
        assert max(run.tokens) < growth * SIZE
    assert rewritten.majors == 0
    assert 0 < noted.majors < 5


def test_a_compaction_that_does_not_happen_is_no_compaction(talk: Conversation) -> None:
    """Nor are two for one batch: nothing is counted then."""

    def nothing(_view: View) -> Iterator[CompactedMessage]:
        return iter(())

    with pytest.raises(RuntimeError, match="compaction 1, of turns 1 to 10"):
        by_model(talk, nothing, 0, AFTER)
    with pytest.raises(RuntimeError, match="compaction 1, of turns 1 to 10"):
        by_model(talk, compact_rounds, 0, AFTER, longest=2_500)


def shares(run: Run, kinds: Iterable[str]) -> dict[int, float]:
    found = [run.kept(kind) for kind in kinds]
    return {after: sum(one[after][0] for one in found) / sum(one[after][1] for one in found) for after in AFTER}


@pytest.mark.slow
def test_notes_keep_what_rewriting_loses(rewritten: Run, noted: Run) -> None:
    """After twenty compactions with a model that loses one fact in twenty, most against few; what was told all along as
    well. What the user forbade is lost by neither: it is restored."""
    full, delta = (shares(run, ("facts", "always")) for run in (rewritten, noted))
    assert full[1] == delta[1] >= 0.8
    assert full[20] < 0.6
    assert delta[20] >= 0.85
    assert delta[20] > full[20] + 0.3
    assert noted.along[0] > rewritten.along[0]
    assert all(shares(run, ("never",))[20] == 1 for run in (rewritten, noted))


@pytest.mark.slow
def test_what_is_lost_is_lost_by_the_model(talk: Conversation) -> None:
    """One that keeps all it reads loses nothing in either way."""
    for strategy in (compact_rounds, compact_notes):
        run = by_model(talk, strategy, 0, (20,), keeps=1.0)
        assert share_kept(talk.facts, run.summaries[20]) == (35, 35)
        assert run.precision[0] == run.precision[1] > 35


@pytest.mark.slow
def test_without_a_model_ours_keeps_more_than_an_end_or_a_beginning(talk: Conversation) -> None:
    """Of all that was told, early and late, in summaries of the same size."""
    runs = {method: without_model(talk, method, AFTER) for method in (ours, last_tokens, first_user_messages)}
    assert all(max(run.tokens) <= SIZE for run in runs.values())
    hits = {method: run.all[0] for method, run in runs.items()}
    assert hits[ours] > 30
    assert hits[ours] > 1.5 * max(hits[last_tokens], hits[first_user_messages])
    assert runs[ours].precision[0] == runs[ours].precision[1] > 30


@pytest.mark.slow
def test_it_is_the_same_each_time(talk: Conversation, noted: Run) -> None:
    """And other with another seed: what is planted as well as what the model loses."""
    assert conversation(chat(44), seed=1) == talk
    assert by_model(talk, compact_notes, 1, AFTER) == noted
    other = conversation(chat(44), seed=2)
    assert not {one.text for one in other.planted["facts"]} & {one.text for one in talk.planted["facts"]}
    assert by_model(talk, compact_notes, 2, AFTER).summaries != noted.summaries


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_there_is_a_table_for_each_question(capsys: pytest.CaptureFixture[str]) -> None:
    """With a line for each way, and each number of compactions; what is not here is left out and named."""

    def absent() -> None:
        raise Absent("no dialogues")

    rows = list(measured(("chat", "airline"), 1, (1, 3), {"chat": lambda: chat(14), "airline": absent}))  # type: ignore[dict-item]
    assert "airline is left out: no dialogues" in capsys.readouterr().err
    assert [row["way"] for row in rows] == [*quality.STRATEGIES, *quality.PLAIN]
    parts = quality.tables(rows).split("### ")[1:]
    assert [part.partition("\n")[0].partition(":")[0] for part in parts] == [
        "Surface retention",
        "Surface retention",
        "Surface retention without a model",
        "Precision",
    ]
    lines = [[line for line in part.splitlines() if line.startswith("|")] for part in parts]
    assert [len(found) for found in lines] == [5, 5, 5, 8]
    assert all(len({line.count("|") for line in found}) == 1 for found in lines)
    assert lines[0][0].startswith("| conversation |  | facts after 1 | 3 | told all along")


@pytest.mark.slow
def test_a_request_that_is_too_short_for_the_first_rounds_is_no_row() -> None:
    """Each compaction has to be one summary."""
    (row, *others) = list(measured(("tools",), 1, (1,), {"tools": lambda: tools(6)}))
    assert [one["way"] for one in (row, *others)] == ["full rewrite", "notes and changes", *quality.PLAIN]


@pytest.mark.slow
def test_the_command_and_the_comparison_print_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = list(measured(("chat",), 1, (1, 2), {"chat": lambda: chat(12)}))
    monkeypatch.setattr(quality, "measured", lambda _names, _seeds: rows)
    assert quality.main(["--seeds", "1", "--conversations", "chat"]) == 0
    printed = capsys.readouterr().out
    assert printed.strip() == quality.tables(rows).strip()
    monkeypatch.setattr(command, "measured", lambda: rows)
    assert command.main(["--scenarios", "quality"]) == 0
    assert capsys.readouterr().out == printed
    monkeypatch.setattr(quality, "measured", lambda _names, _seeds: [])
    assert quality.main([]) == 0
    assert not capsys.readouterr().out
