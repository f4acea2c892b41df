"""An offline summary is never over its target, the prohibitions that it had lost and that are put back included."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor import (
    USER,
    CompactorConfig,
    ContextCompactor,
    Event,
    ExtractiveSummarizer,
    Memory,
    Post,
    Prepared,
    Round,
    SummaryRequest,
    count_tokens,
)
from compactor.acceptance.checks import Source
from compactor.acceptance.prohibitions import HEADING, find_lost, find_prohibitions
from compactor.summarize import SummaryTask, Work
from compactor.transcript import quote

RULES = [
    "Never send invoice {n} to the office in Lyon before the auditors have signed every page of it.",
    "Do not touch the branch release-{n} without asking me first, whatever the build says.",
    "Under no circumstances may the price of article {n} be told to the two other bidders.",
]
TALK = [
    "Where is parcel {n} now, and who signed for it at the depot in Ghent?",
    "The report of hall {n} has 912 rows, of which 14 lack a date.",
    "Please compare offer {n} with the one of last week, and tell me which is cheaper.",
]


@st.composite
def chats(draw: st.DrawFn) -> list[Round]:
    rounds = []
    for number in range(draw(st.integers(4, 14))):
        said = [draw(st.sampled_from(TALK)), draw(st.sampled_from([*RULES, *TALK]))]
        answer = f"Hall {number} answers that {' '.join(draw(st.sampled_from(TALK)).format(n=number).split()[:8])}."
        post = Post(send_from="assistant", send_to=USER, message=answer)
        query = " ".join(one.format(n=10 * number + place) for place, one in enumerate(said))
        rounds.append(Round(user_query=query, number=number + 1, state="finished", post_list=(post,)))
    return rounds


@pytest.mark.slow
@given(chats(), st.integers(40, 500))
@settings(max_examples=30, deadline=None)
def test_an_extract_leaves_room_for_the_prohibitions_put_back(rounds: list[Round], target: int) -> None:
    """Where these alone fit."""
    prohibitions = tuple(find_prohibitions(rounds))
    text = "\n".join(map(quote, rounds))
    events: list[Event] = []
    summarizer = ExtractiveSummarizer()
    work = Work(summarizer=summarizer, count=count_tokens, emit=events.append)
    request = SummaryRequest(rounds=tuple(rounds), target_tokens=target, end_index=len(rounds))
    made = work.summarize(SummaryTask(request, Source(text, 10**6), prohibitions, reserve=10**6))
    alone = count_tokens("\n".join([HEADING, *(f"- {rule}" for rule in prohibitions)]))

    assert find_lost(prohibitions, (made.text,)) == ()
    (tokens,) = [event.tokens_after for event in events if isinstance(event, Prepared)]
    assert tokens == count_tokens(made.text)
    assert tokens <= max(target, alone + 40)


@pytest.mark.slow
def test_prohibitions_without_end_take_no_more_room_than_is_reserved_for_them() -> None:
    """The rest of the summary stays as long as it was."""
    words = ["street", "house", "red", "gate", "neighbour", "phone", "tuesday", "box", "heavy", "fragile"]
    memory, rng, lengths = Memory(), Random(1), []
    compactor = ContextCompactor.for_role(memory, "assistant", CompactorConfig(target_tokens=1_000, retain_recent=1))
    for number in range(60):
        place = " ".join(rng.choices(words, k=50))
        memory.append(
            {"role": "user", "content": f"Order QX-{number}: never call before noon on day {number}, {place}"}
        )
        told = f"Noted: QX-{number} goes to /srv/depot/{number}.csv. {' '.join(rng.choices(words, k=40))}."
        memory.append({"role": "assistant", "content": told})
        if number % 4 == 3:
            compactor.compact_now(timeout=60)
            compaction = compactor.get_compaction()
            assert compaction is not None
            lengths.append(count_tokens(compaction.summary))
    assert max(lengths) <= 1_000
    assert min(lengths[4:]) > 800
