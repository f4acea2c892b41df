"""Of answers made by rule, which are refused and which are shown: in our own conversations, and in real ones."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks.acceptance import STYLES, Case, bad_answers, cases_of, check_of, honest_answers, talks
from compactor import CompactedMessage, ExtractiveSummarizer, SummaryRejected, SummaryRequest, count_tokens
from compactor.acceptance.checks import Source, check_summary
from compactor.summarize import FAULTS, with_feedback
from compactor.summarizers.content import find_identifiers, read_content
from memory import Memory

pytestmark = pytest.mark.timeout(300)


def own_cases(*seeds: int) -> list[Case]:
    return [case for seed in seeds for name, said in talks(seed) for case in cases_of(name, said)]


def counted(cases: list[Case]) -> tuple[int, list[str]]:
    """Return how many honest summaries there are, and those refused."""
    told = [(case, case.source, style, said) for case in cases for style, said in honest_answers(case)]
    checked = [(check_of(said, case, source), case.name, style) for case, source, style, said in told]
    return len(told), [str(one) for one in checked if one[0]]


@pytest.mark.slow
def test_of_hollow_copied_broken_off_and_error_answers_none_is_shown() -> None:
    """Over 300, made by rule."""
    cases = own_cases(2)
    answers = [(case, kind, said) for case in cases for kind, said in bad_answers(case)]
    kinds = Counter(kind for _, kind, _ in answers)
    assert len({said for _, _, said in answers}) >= 300
    assert min(kinds.values()) >= 50
    assert set(kinds) == {"hollow", "error", "echo", "forgets_previous"}
    sources = {case.name: case.source for case in cases}
    assert [(kind, said[-200:]) for case, kind, said in answers if not check_of(said, case, sources[case.name])] == []


@pytest.mark.slow
def test_of_honest_summaries_hardly_any_is_refused() -> None:
    """In fourteen styles and lengths, with a summary before them and without: at most one in a hundred."""
    total, refused = counted(own_cases(0, 2, 3))
    assert len(STYLES) >= 12
    assert total >= 200
    assert len(refused) <= total / 100, refused


@pytest.mark.slow
def test_of_honest_summaries_of_real_dialogues_hardly_any_is_refused(data: list[dict[str, Any]]) -> None:
    """Of the airline's, one in twelve; ``python -m benchmarks.acceptance`` looks at all."""
    cases = [
        case
        for place, one in enumerate(data[::12])
        for case in cases_of(str(place), [said for said in one["messages"] if said["role"] != "system"])
    ]
    total, refused = counted(cases)
    assert total >= 100
    assert len(refused) <= max(1, total / 100), refused


@pytest.mark.parametrize(
    ("said", "summary"),
    [
        (("Hi!", "How are you today?", "Fine, thanks.", "Lovely weather."), "They greeted and spoke of the weather."),
        (("你好，我想预订去上海的火车票。", "好的，什么时候出发？", "明天早上八点，靠窗的座位。"), "用户想预订明早八点去上海的火车票，要靠窗座位。"),
        (("ฉันอยากจองตั๋วรถไฟไปเชียงใหม่พรุ่งนี้เช้า ขอที่นั่งริมหน้าต่าง",), "ผู้ใช้ต้องการจองตั๋วรถไฟไปเชียงใหม่"),
        (("Хочу заказать билет на поезд до Казани на завтра, место у окна.",), "Пользователь заказывает билет до Казани."),
        (("मुझे कल सुबह दिल्ली जाने वाली ट्रेन का टिकट चाहिए, खिड़की वाली सीट।",), "यात्री को दिल्ली की ट्रेन का टिकट चाहिए।"),
        (("أريد حجز تذكرة قطار إلى القاهرة غدا صباحا بجانب النافذة.",), "يريد المستخدم حجز تذكرة قطار إلى القاهرة."),
        (("明日の朝、京都行きの新幹線を予約したいです。窓側の席でお願いします。",), "利用者は京都行きの新幹線の窓側を予約したい。"),
    ],
)  # fmt: skip
def test_languages_and_small_talk_pass(said: tuple[str, ...], summary: str) -> None:
    """Whatever letters they are written in, and where nothing is named."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said * 4)]
    case = Case("talk", Memory.from_messages(messages).conversation.rounds[:])
    assert check_of(summary, case) == ""


def test_a_summary_in_another_language_cannot_be_compared() -> None:
    """It passes if it names anything; a page of an error does not, nor what could be said of any conversation."""
    case = own_cases(2)[0]
    said = "Покупатель ждёт посылку, курьер отдал её соседу; он просит вернуть списание и писать только на почту"
    assert check_of(f"{said}, {find_identifiers(case.text)[0]}.", case) == ""
    assert check_of(f"{said}.", case) == "hollow"
    assert check_of("Внутренняя ошибка.", case) == "hollow"


def test_newer_values_are_not_missing() -> None:
    """What the new rounds have superseded need not stand there again."""
    before = "\n".join(f"- The price of the {thing} in stock is {n} euros" for n, thing in enumerate(_THINGS, 40))
    rounds = Memory.from_messages(
        [{"role": "user", "content": f"From now on {n} euros are asked for each {thing}."} for n, thing in enumerate(_THINGS, 70)]
    ).conversation.rounds[:]  # fmt: skip
    after = before
    for n in range(len(_THINGS)):
        after = after.replace(f" {40 + n} ", f" {70 + n} ")
    case = Case("prices", rounds, before)
    assert check_of(after, case) == ""
    assert check_of("- The price of the lamp in stock is 70 euros", case) == "forgets_previous"


_THINGS = ("brass lamp", "oak table", "wool carpet", "glass vase", "leather chair", "bamboo shelf")


def test_what_is_missing_is_told_when_it_is_asked_for_again() -> None:
    """By name, and in what the model is told; not in the error, which ends up in logs."""
    case = own_cases(2)[1]
    with pytest.raises(SummaryRejected) as caught:
        check_summary(
            dict(honest_answers(own_cases(3)[0]))["bullets"], case.source, target_tokens=None, count=count_tokens
        )
    assert caught.value.check in ("forgets_previous", "invented", "hollow")
    said = dict(honest_answers(Case("alone", case.rounds)))["bullets"]
    with pytest.raises(SummaryRejected) as caught:
        check_summary(said, case.source, target_tokens=None, count=count_tokens)
    rejected = caught.value
    assert rejected.check == "forgets_previous"
    assert len(rejected.identifiers) > 3
    assert rejected.identifiers[0] not in str(rejected)
    asked = with_feedback(SummaryRequest(messages=[{"role": "user", "content": "Sum up."}]), rejected)
    assert FAULTS["forgets_previous"] in asked.messages[0]["content"]
    assert f'"{rejected.identifiers[0]}"' in asked.messages[0]["content"]


def test_of_a_short_target_less_must_be_kept() -> None:
    """Who asks for a summary of a tenth cannot have a third of all names."""
    case = own_cases(2)[1]
    before = "\n".join(f"- Parcel Q{number} was sent to depot W{number + 300}." for number in range(1_000, 1_200))
    source = Source(case.text, 20_000, count_tokens(before), previous=before)
    kept = "\n".join([*before.splitlines()[:14], dict(honest_answers(Case("", case.rounds)))["narrative"]])
    assert check_summary(kept, source, target_tokens=count_tokens(kept), count=count_tokens)
    with pytest.raises(SummaryRejected) as caught:
        check_summary(kept, source, target_tokens=None, count=count_tokens)
    assert caught.value.check == "forgets_previous"


@pytest.mark.parametrize("target", [100, 400, 2_000])
def test_the_offline_summarizer_is_never_refused_for_what_it_copies(target: int) -> None:
    """It chooses from the source, however much of it, and again from its own summary."""
    for case in own_cases(2, 3):
        before = CompactedMessage(start_index=1, end_index=1, summary=case.previous) if case.previous else None
        made = ExtractiveSummarizer()(SummaryRequest(rounds=case.rounds, previous=before, target_tokens=target))
        with_room = Source(case.text, 100_000, previous=case.previous)
        assert check_summary(made, with_room, target_tokens=None, count=count_tokens)


def test_the_transcripts_tags_are_refused_and_others_are_not() -> None:
    """Only what heads rounds and posts in ours: chats are about markup, too."""
    case = own_cases(2)[0]
    said = dict(honest_answers(case))["narrative"]
    assert check_of(f"<round 3 User>\n{said}", case) == "markup"
    assert check_of(f"<conversation>\n{said}\n</conversation>", case) == "markup"
    assert check_of(f"{said} The template lacks <message> and <conversation>.", case) == ""


@pytest.mark.parametrize(
    ("said", "check"),
    [
        ("Resumen completado.", "hollow"),
        ("Podsumowanie gotowe.", "hollow"),
        ('```json\n{"summary": null}\n```', "hollow"),
        ("<!DOCTYPE html>\n<html><head><title>The kettle</title></head><body>The courier left it.</body></html>", "hollow"),
        ('<?xml version="1.0"?>\n<ErrorResponse>The courier left the parcel with a neighbour</ErrorResponse>', "hollow"),
        ('{"error": {"message": "the parcel with the kettle never arrived", "code": 500}}', "hollow"),
        ('{"message": "The courier left the kettle with a neighbour", "statusCode": 500}', "hollow"),
        ("Traceback (most recent call last):\n  the courier left the parcel with a neighbour", "hollow"),
        ("503 Courier Warehouse Parcel", "hollow"),
        ("Kettle parcel neighbour", "hollow"),
        ("The courier left the parcel with a neighbour who moved away.", ""),
        ("503 parcels are in the warehouse, where the courier left the kettle for a neighbour.", ""),
        ('{"status": "the parcel with the kettle never arrived", "open": "a refund of the second charge"}', ""),
    ],
)  # fmt: skip
def test_pages_errors_and_handfuls_of_words_are_known_by_their_form(said: str, check: str) -> None:
    """Though the conversation has the same words."""
    case = own_cases(2)[0]
    assert check_of(said, case) == check


def test_what_the_new_rounds_name_again_is_not_kept_from_the_summary_before() -> None:
    """A third of what only that names has to stay."""
    case = own_cases(2)[0]
    again = "\n".join(f"- Named: {name}" for name in find_identifiers(case.text)[:6])
    only = "\n".join(f"- Parcel Q{number} is in depot W{number + 300}." for number in range(1_000, 1_004))
    said = dict(honest_answers(case))["bullets"]
    after = Case("after", case.rounds, f"{again}\n{only}")
    assert check_of(f"{again}\n{said}", after) == "forgets_previous"
    assert check_of(f"{again}\n{only}\n{said}", after) == ""


@pytest.mark.slow
def test_of_a_long_source_a_piece_is_an_echo_however_small_a_share_it_is() -> None:
    """And every second of its lines; not a few quotations."""
    said = [message for seed in range(20, 44) for _, messages in talks(seed) for message in messages]
    case = Case("long", Memory.from_messages(said).conversation.rounds[:])
    lines = [line for line in case.text.splitlines() if line and not line.startswith("<")]
    source = case.source
    assert source.tokens > 30_000
    assert check_of("\n".join(lines[:40]), case, source) == "echo"
    assert check_of("\n".join(f"- {line}" for line in lines[::20]), case, source) == "echo"
    quoted = "\n".join(f'- The user said: "{line}"' for line in lines[::400])
    assert check_of(f"Support, coding and travel were spoken of.\n{quoted}", case, source) == ""


def test_a_source_of_a_hundred_thousand_tokens_is_read_but_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the answer says is looked up in it; it is not taken apart itself."""
    taken_apart: list[int] = []

    def counting(text: str) -> Any:
        taken_apart.append(len(text))
        return read_content(text)

    monkeypatch.setattr("compactor.summarizers.content.read_content", counting)
    case = own_cases(2)[1]
    said = "\n".join((case.previous, dict(honest_answers(Case("", case.rounds)))["narrative"]))
    text = case.text * 40
    source = Source(text, count_tokens(text), previous=case.previous)
    assert check_summary(said, source, target_tokens=None, count=count_tokens)
    assert max(taken_apart) < len(case.text)


ASIDE = (
    "The user likes quiet rooms, cats, old maps and long walks by the sea, paints boats, and has a sister in Lisbon."
)


@pytest.mark.parametrize(
    ("named", "check"),
    [
        ("Their account is mia_li_3668, and the voucher is QX-4471-B.", "forgets_previous"),
        ("Their account is mia_li_3668, and they are 34 years old.", "forgets_previous"),
        ("Their account is mia_li_3668.", ""),
        ("They are 34 years old.", ""),
        ("Never call the office in Porto.", ""),
    ],
)
def test_of_few_things_named_one_at_least_is_kept(named: str, check: str) -> None:
    """Where an id is among them, however much else is said again; one thing is no measure."""
    case = own_cases(2)[0]
    said = dict(honest_answers(case))["bullets"]
    after = Case("after", case.rounds, f"{ASIDE}\n{named}")
    assert check_of(f"{ASIDE}\n{said}", after) == check
    assert check_of(f"{ASIDE}\n{named}\n{said}", after) == ""


def test_a_summary_that_says_none_of_what_only_the_one_before_said_is_partial() -> None:
    """Though it names all that the new rounds name again."""
    case = own_cases(2)[0]
    again = ", ".join(find_identifiers(case.text)[:6])
    said = dict(honest_answers(case))["headings"]
    after = Case("after", case.rounds, f"{ASIDE}\nNamed were {again}.")
    assert check_of(f"{said}\nNamed were {again}.", after) == "forgets_previous"
    assert check_of(f"The user likes quiet rooms and has a sister.\n{said}\nNamed were {again}.", after) == ""
    numbered = Case("numbered", case.rounds, f"{ASIDE}\nNamed were {again}, and 51, 53 and 59.")
    assert check_of(f"{said}\nNamed were {again}, and 51, 53 and 59.", numbered) == ""


def test_a_list_of_names_is_not_superseded_by_another() -> None:
    """A line is where it says the same of another value: the words in names say nothing of them."""
    case = own_cases(2)[0]
    names = [f"get_flight_{word}_details" for word in ("origin", "status", "seats", "price", "times", "meals")]
    other = [f"get_flight_{word}_details" for word in ("code", "crew", "gate", "route", "class", "miles")]
    new = Memory.from_messages([{"role": "user", "content": f"Now use {', '.join(other)}."}]).conversation.rounds[:]
    after = Case("after", [*case.rounds, *new], f"## Facts\n{', '.join(names)}")
    said = dict(honest_answers(case))["bullets"]
    assert check_of(f"{said}\n\n## Facts\n{', '.join(other)}", after) == "forgets_previous"
    assert check_of(f"{said}\n\n## Facts\n{', '.join((*names[:3], *other))}", after) == ""


def test_empty_words_of_the_source_are_no_summary_of_it() -> None:
    """Quoting is naming where what is quoted tells anything."""
    text = "Put lorem ipsum dolor sit amet where the heading of the kettle page stands, and the courier below it."
    messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at in range(8)]
    own = own_cases(2)[0].rounds
    case = Case("page", [*Memory.from_messages(messages).conversation.rounds[:], *own])
    assert check_of("Lorem ipsum dolor sit amet.", case) == "hollow"
