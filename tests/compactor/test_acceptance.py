"""What a summarizer answers, in the wordings that models use: which may be shown, and which never."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from chats import words
from hypothesis import given
from hypothesis import strategies as st

from compactor import Summary, SummaryRejected, count_tokens
from compactor.acceptance import checks as acceptance
from compactor.acceptance.checks import (
    CHECKS,
    MAX_OVER_TARGET,
    MIN_SAVING,
    AnswerParser,
    Source,
    check_summary,
    is_copied,
    is_cut_off,
    is_in_first_person,
    is_too_little,
)
from compactor.summarizers.answers import is_reply
from compactor.transcript import quote
from memory import Note, Post, Round

SOURCE = words(1_000)


def accepted(answer: object, source: str = SOURCE, target: int | None = None, **more: Any) -> tuple[Summary, int]:
    made = check_summary(answer, Source(source, count_tokens(source)), target_tokens=target, count=count_tokens, **more)
    return made.summary, made.tokens


def refused(answer: object, source: str = SOURCE, target: int | None = None) -> str:
    """Return the name of the check that *answer* fails."""
    with pytest.raises(SummaryRejected) as rejected:
        accepted(answer, source, target)
    return rejected.value.check


# -- replies ----------------------------------------------------------------------------------------------------------

REPLIES = (
    "Hello! How can I help you today?",
    "Hi there! 👋 How can I assist you?",
    "**Hello!** How can I help?",
    "Hello there!",
    "Hello! I'm here to help. What would you like to do?",
    "Good morning! How may I assist you?",
    "Welcome back! What can I do for you?",
    "How can I help you today?",
    "What would you like me to do next?",
    "Okay.",
    "OK",
    "Understood. How would you like to proceed?",
    "Understood, I will follow these instructions.",
    "Got it! I'll keep that in mind.",
    "Sure! I'd be happy to help. Please provide the conversation you'd like me to summarize.",
    "I would be happy to help you with that.",
    "I understand. Please provide the conversation.",
    "Certainly! Please share the transcript.",
    "Of course! Let me know what you need.",
    "No problem! Let me know if you need anything else.",
    "You're welcome! Have a great day!",
    "Thanks for sharing! Is there anything else I can help you with?",
    "Your reservation has been cancelled. Is there anything else I can help you with?",
    "It looks like you haven't provided any conversation. Please paste it here.",
    "I'm sorry, but I can't help with that.",
    "I’m sorry, but I can’t assist with that request.",
    "Sorry, I cannot do that.",
    "I cannot summarize this conversation.",
    "Unfortunately, I am unable to access the conversation.",
    "As an AI language model, I do not have access to the conversation.",
    "Bonjour ! Comment puis-je vous aider aujourd'hui ?",
    "¡Hola! ¿En qué puedo ayudarte hoy?",
    "Hallo! Wie kann ich Ihnen helfen?",
    "你好!有什么可以帮您的吗?",
    "こんにちは!何かお手伝いできることはありますか?",
    "As a large language model, I have no opinion on flights.",
    "No changes since the last summary.",
    "很遗憾，我无法总结这段对话。",
    "متأسفانه نمی‌توانم در این مورد کمک کنم.",
)

SUMMARIES = (
    "The user said hello and the assistant asked how it can help.",
    "The user greeted the agent and asked: how can I help? No task yet.",
    "Greetings were exchanged. The user wants to fly from SEA to JFK on May 20.",
    "User booked HAT001.",
    "OK: tests pass (412), build 7.2 uploaded.",
    "Hello World program: the user asked for it in Rust; main.rs was written.",
    "Hi-fi amplifier order #4412 was refunded.",
    "Great Wall trip: the agent asked the user to please provide dates.",
    "Sure-footed hiking boots: exchanged for size 43.",
    "Thanks to the refund the balance is 300 USD.",
    "Noted constraints: no red-eye flights; budget 300.",
    "Good evening flights only: the user will not fly before 18:00.",
    "Welcome email template was changed by the user.",
    "Okayama hotel booked for 3 nights.",
    "Let the user know about gates: pending.",
    "Please-and-thanks tone is wanted by the user; name: Li.",
    "I booked flight HAT001 and I will send the receipt tomorrow.",
    "I cannot change basic economy flights (policy). mia_li_3668 wants 20 May.",
    "Goal: refund of order 17. The agent said it is sorry, but it can't refund gift cards.",
    "Agent closed with: Is there anything else I can help you with?",
    "Sure, I'll summarize: the user wants a refund of order 17 by Friday; receipts were sent.",
    "Der Nutzer hat gegrüßt und nach Flügen gefragt; wie kann ich helfen, fragte der Agent.",
    "Hola fue el saludo; el usuario pidió un vuelo.",
    "用户想取消订单 4412,客服已确认退款。",
    "ユーザーは5月20日の航空券を予約しました。",
    "了解しましたと担当者が答え、注文 4412 は返金された。",
    "Instructions:\nPlease provide all answers in French.",
    "The user wants weekly reports. Please send them to Anna.",
    "Please share nothing with third parties (user's standing instruction).",
    "Let me know if the price exceeds $500: the user's instruction, verbatim.",
    "Anything else must be approved by Eva; budget 300.",
    "Order 77 refunded; open question:\nIs there anything left in the budget?",
    "How would you like the chart? was asked; the user chose a bar chart.",
    "What should I do with out.csv is the open question; data.csv loaded.",
    "I am happy to report that steps 1-4 are done, file out.csv written.",
    "Noted: I have loaded data.csv with 120 rows",
    "Great, I will report order 77 refunded on 3 May",
    "Have a good backup before each migration: user's rule. Done: steps 1-4.",
    "As a language model benchmark the user runs 3 suites; 2 fail.",
    "No changes since the last update to deploy.yaml: the user wants 4 replicas.",
    "遗憾的是用户的订单 4412 无法取消，已改为退款。",
    "متأسفانه سفارش ۴۴۱۲ به دست کاربر نمی‌رسد؛ او بازپرداخت می‌خواهد.",
)


@pytest.mark.parametrize("answer", REPLIES)
def test_a_reply_to_the_conversation_is_no_summary(answer: str) -> None:
    """Models given a transcript greet, offer help, refuse or carry on; none of that is ever shown."""
    assert refused(answer) == "greeting"


@pytest.mark.parametrize("answer", SUMMARIES)
def test_a_short_summary_may_speak_of_greetings_offers_and_refusals(answer: str) -> None:
    """What the conversation was about is no reply to it."""
    assert accepted(answer)[0].text == answer


def test_a_long_answer_is_no_greeting() -> None:
    """A summary of many lines may begin or end politely; what it says in between would be lost."""
    said = "Hello! Here is what happened.\n" + "\n".join(f"- order {number}: refunded" for number in range(40))

    assert not is_reply(said + "\nLet me know if you need anything else.")


def test_tags_do_not_hide_a_greeting() -> None:
    """Thoughts and tags are taken off before anything is judged."""
    assert (
        refused("<think>The user wants a summary.</think><summary>Hello! How can I help you?</summary>") == "greeting"
    )


# -- the other checks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", ["", " \n\t", "…", "---", "<summary></summary>", "<think>so much to think", Summary("\ufeff")]
)
def test_an_answer_without_a_word_is_empty(answer: object) -> None:
    """Nothing takes the place of something, thoughts that were cut off included."""
    assert refused(answer) == "empty"


@pytest.mark.parametrize(
    "answer", [None, 17, b"bytes", ["text"], {"text": "t"}, SimpleNamespace(text="t"), Summary(None)]
)  # type: ignore[arg-type]
def test_what_is_no_text_is_refused_by_its_type(answer: object) -> None:
    """The error names the type that came, and what should have."""
    with pytest.raises(SummaryRejected, match="must return a str or a Summary") as rejected:
        accepted(answer)
    assert rejected.value.check == "not_text"


def test_usage_and_model_are_kept_beside_the_bare_text() -> None:
    """Stripping an answer loses nothing of what it cost."""
    answer = Summary("<summary>The user booked HAT001.</summary>", {"input_tokens": 9}, "gpt-x")

    summary, tokens = accepted(answer)

    assert summary == Summary("The user booked HAT001.", {"input_tokens": 9}, "gpt-x")
    assert tokens == count_tokens("The user booked HAT001.")


def conversation() -> str:
    posts = (
        Post(send_from="User", send_to="Planner", message="Load sales.csv & tell me the < 5 best days."),
        Post(send_from="Planner", send_to="User", message="The best day is May 4. <summary> of it: 912 sold."),
    )
    rounds = [Round(user_query=f"question {number}", post_list=posts, number=number) for number in range(1, 4)]
    return "<conversation>\n" + "\n".join(map(quote, rounds)) + "\n</conversation>"


def test_an_answer_that_repeats_its_source_is_an_echo() -> None:
    """With its tags or without, whole or the larger half of it, however the lines are broken."""
    source = conversation()
    without = "\n".join(line for line in source.splitlines() if not line.startswith("<")).replace("&lt;", "<")

    for answer in (source, without, " ".join(without.split()), without[: len(without) * 3 // 4], "\n\n" + source):
        assert refused(answer, source) == "echo"


def test_a_quotation_is_no_echo() -> None:
    """A short verbatim stretch is what good summaries are made of."""
    assert accepted("The best day is May 4.", conversation())


def test_repeating_needs_the_very_words() -> None:
    """The same words in another order are not the source."""
    assert is_copied("a b c d", "a b  c\nd e")
    assert not is_copied("d c b a", "a b c d e")


@given(st.data())
def test_what_repeats_is_found_however_it_is_written(data: st.DataObject) -> None:
    """A source between tags, in other white space and with escaped brackets is the same source, whole or from its first
    half on; and nothing else is found."""
    pieces = st.sampled_from(["a", "b<c", "&lt;d", "</message>", "<message>", "e"])
    parts = data.draw(st.lists(pieces, min_size=1, max_size=24))  # so short a source may be quoted in runs of words
    source = " ".join(parts)
    text = "\n".join(part.replace("&lt;", "<") for part in parts[: data.draw(st.integers(0, len(parts)))])

    def bare(text: str) -> str:
        return " ".join(re.sub(r"</?message>", " ", text.replace("&lt;", "<")).split())

    assert is_copied(text, source) == (2 * len(bare(text)) >= len(bare(source)) and bare(text) in bare(source))
    assert is_copied(source, source)


@pytest.mark.parametrize("tokens", [900, 901])
def test_a_summary_must_save_a_tenth(tokens: int) -> None:
    """As long as what it replaces, it is no progress; the very limit is allowed."""
    answer, source = words(tokens).replace("word", "term"), words(1_000)

    if tokens <= 1_000 * MIN_SAVING:
        assert accepted(answer, source)[1] == tokens
    else:
        assert refused(answer, source) == "no_progress"


@pytest.mark.parametrize("tokens", [590, 591])
def test_with_a_summary_before_it_only_what_it_grows_by_counts(tokens: int) -> None:
    """A long summary that takes in one short round cannot save a tenth of itself each time, and need not."""
    answer, source = words(tokens).replace("word", "term"), Source(words(100), 100, previous_tokens=500)

    if tokens <= 500 + 100 * MIN_SAVING:
        assert check_summary(answer, source, target_tokens=None, count=count_tokens).tokens == tokens
    else:
        with pytest.raises(SummaryRejected, match="591 tokens") as rejected:
            check_summary(answer, source, target_tokens=None, count=count_tokens)
        assert rejected.value.check == "no_progress"


@pytest.mark.parametrize("tokens", [200, 201])
def test_a_summary_may_be_twice_as_long_as_asked_for(tokens: int) -> None:
    """Models count badly; more than that is another thing than was asked for."""
    answer = words(tokens).replace("word", "term")

    if tokens <= MAX_OVER_TARGET * 100:
        assert accepted(answer, target=100)
    else:
        assert refused(answer, target=100) == "oversized"


def test_without_a_target_any_length_that_saves_will_do() -> None:
    """No wish, no limit but the source."""
    assert accepted(words(800).replace("word", "term"))


def test_longer_than_all_it_replaces_has_a_name_of_its_own() -> None:
    """``larger``; what only saves too little is ``no_progress``."""
    source = Source(words(100), 100, previous_tokens=50)

    for tokens, check in ((141, "no_progress"), (150, "no_progress"), (151, "larger")):
        with pytest.raises(SummaryRejected) as rejected:
            check_summary(words(tokens).replace("word", "term"), source, target_tokens=None, count=count_tokens)
        assert rejected.value.check == check


# -- what was made up -------------------------------------------------------------------------------------------------

BOOKED = "Flights HAT101, HAT102, HAT103, HAT104, HAT105, HAT106, HAT107, HAT108 for mia_li_3668, order 48213. "


@pytest.mark.parametrize(
    ("answer", "invented"),
    [
        ("HAT101 and HAT102 are booked.", 0),
        ("HAT901, HAT902 and HAT903 are booked.", 3),
        (
            "HAT101, HAT102, HAT103, HAT104, HAT105, HAT106, HAT107, HAT108, 48213; mia_li_3668: HAT901, HAT902, HAT903",
            3,
        ),
        ("HAT101-HAT108: all booked, 48213 too. HAT901, HAT902, HAT903, HAT904.", None),
        ("HAT901, HAT902, HAT903, HAT904 are booked.", None),
        (
            "HAT101, HAT102, HAT103, HAT104, HAT105, HAT106, HAT107, HAT108, 48213, mia_li_3668, hat_101, hat_102;"
            " HAT901, HAT902, HAT903, HAT904",
            4,
        ),
    ],
)
def test_a_summary_of_many_made_up_identifiers_is_refused(answer: str, invented: int | None) -> None:
    """Over three, and over a quarter of all: up to that they are told."""
    source = BOOKED + SOURCE
    if invented is None:
        with pytest.raises(SummaryRejected, match="identifiers in the summary are absent") as rejected:
            accepted(answer, source)
        assert rejected.value.check == "invented"
        assert rejected.value.identifiers == ("HAT901", "HAT902", "HAT903", "HAT904")
        assert "HAT901" not in str(rejected.value)
    else:
        made = check_summary(answer, Source(source, 1_000), target_tokens=None, count=count_tokens)
        assert len(made.unknown) == invented


def test_arguments_in_the_first_person_are_not_the_offline_summarizer_s_voice() -> None:
    """It tells of each call with its arguments, those of a tool to think with as well."""
    answer = "What was done:\n- think(The cabin is economy. I need to look for HAT101 next.) → (empty)"
    with pytest.raises(SummaryRejected) as rejected:
        accepted(answer, BOOKED + SOURCE, kind="tool_run")
    assert rejected.value.check == "first_person"
    assert accepted(Summary(answer, extracted=True), BOOKED + SOURCE, kind="tool_run")[0].text == answer


def test_beginnings_of_names_that_were_cut_offline_are_not_made_up() -> None:
    """What was chosen from the source cannot be invented, and would be chosen again at each attempt."""
    names = [f"/srv/data{place}_1b1b04eb/{'deep_' * 20}{place}" for place in range(6)]
    source = SOURCE + " ".join(names)
    answer = "Folders: " + ", ".join(f"{name[:16]}…" for name in names)
    with pytest.raises(SummaryRejected, match="identifiers in the summary are absent"):
        accepted(Summary(answer), source)
    assert accepted(Summary(answer, extracted=True), source)[0].text == answer


def test_what_stands_beside_the_conversation_is_not_made_up() -> None:
    """The previous summary and the plan."""
    source = Source(SOURCE, 1_000, beside=("HAT901 and HAT902", "", "HAT903; HAT904"))
    assert check_summary("HAT901, HAT902, HAT903, HAT904", source, target_tokens=None, count=count_tokens).unknown == ()


# -- voice ------------------------------------------------------------------------------------------------------------

OWN_VOICE = (
    "I called search twice and found three flights.",
    "- I have searched for flights.\n- Three were found.",
    "The calls were made. Then I booked HAT103.",
    "After that, I've sent the mail.",
    "**I ran the tests.**",
    "First, we queried the table.",
    "1. I will call get_user next.",
    "As the assistant, I looked up the order.",
    "Ich habe die Datei gelesen.",
    "J'ai appelé l'outil.",
    "我已调用搜索工具。",
    "Having called f, I found it.",
    "Done.\n- Having run f(a, b) on api.get, I saw 3 rows.",
    "After reading out.csv, we dropped it.",
    "f was called by me and I saw nothing.",
    "The file had then been opened by us.",
)
OTHER_VOICE = (
    "search was called twice; three flights were found.",
    'The user said: "I want a refund." get_order was called.',
    "The page says “I called them”; nothing else.",
    "search(flights) → I found 3 matches. I am sorry.",
    "The agent called I/O tests; part I is done.",
    "get_user was run. `I have` is a string in it.",
    "User: I want my money back.",
    "i) search was called\nii) book was called",
    "Inventory: I-95 and J-12 were checked.",
    "Having called f, the assistant found it. After that, I/O was tested.",
    "Before paying, “I want to see it,” was said.",
    "User: Having lost my card, I need a new one.",
    "get_order was called by the agent; by mean, 3 rows.",
    'get_note gave "this was written by me".',
)


@pytest.mark.parametrize("answer", OWN_VOICE)
def test_tool_calls_told_in_the_assistants_voice_are_refused(answer: str) -> None:
    """Agents repeat "I called ..." to their users."""
    with pytest.raises(SummaryRejected) as rejected:
        accepted(answer, kind="tool_run")
    assert rejected.value.check == "first_person"
    assert accepted(answer), "a summary of rounds may be told as its prompt wants it"


@pytest.mark.parametrize("answer", OTHER_VOICE)
def test_what_others_said_is_not_the_assistants_voice(answer: str) -> None:
    """Quotations, code and results."""
    assert not is_in_first_person(answer)
    assert accepted(answer, kind="tool_run")


def test_a_voice_is_listened_for_only_in_what_has_the_right_size() -> None:
    """The cheap checks come first; a summary that is too long says so in whatever voice."""
    answer = "I called search. " + words(1_200).replace("word", "term")

    for source, target, check in ((words(100), None, "larger"), (words(1_250), None, "no_progress")):
        with pytest.raises(SummaryRejected) as rejected:
            accepted(answer, source, target, kind="tool_run")
        assert rejected.value.check == check
    with pytest.raises(SummaryRejected) as rejected:
        accepted(answer, words(9_000), 100, kind="tool_run")
    assert rejected.value.check == "oversized"


def test_every_check_is_documented() -> None:
    """By its name, where the checks are."""
    assert all(f"``{name}``" in str(acceptance.__doc__) for name in CHECKS)


def test_errors_show_nothing_of_what_was_said() -> None:
    """A rejection ends up in logs: it names the check and numbers."""
    for answer in ("Hello hunter2! How can I help?", "hunter2 " * 2_000, f"{SOURCE} hunter2", "", 17):
        with pytest.raises(SummaryRejected) as rejected:
            accepted(answer, f"{SOURCE} hunter2", target=100)
        assert "hunter2" not in str(rejected.value)


# Changes of notes


def reading(*notes: Note) -> AnswerParser:
    """Return a reading that takes every answer for these notes."""
    return lambda _answer: Summary("\n".join(f"- {note.text}" for note in notes), notes=notes)


def unreadable(_answer: str) -> Summary:
    raise SummaryRejected("malformed", "the answer is not the changes that were asked for: it is none")


def test_what_is_read_is_what_becomes_the_summary() -> None:
    """With its notes; and the answer is kept as it was said, without the tags around it."""
    answer = Summary("<think>Hm.</think><summary>add: HAT103</summary>", {"input_tokens": 7}, "gpt-x")
    made = check_summary(
        answer, Source(SOURCE, 900), target_tokens=None, count=count_tokens, kind="changes", parse=reading(Note(text="HAT103"))
    )  # fmt: skip
    assert made.summary == Summary("- HAT103", {"input_tokens": 7}, "gpt-x", (Note(text="HAT103"),))
    assert (made.said, made.tokens) == ("add: HAT103", count_tokens("- HAT103"))


def test_what_cannot_be_read_is_malformed() -> None:
    """Told in the words of whoever could not; before all that looks at what was read."""
    with pytest.raises(SummaryRejected, match="it is none") as caught:
        accepted("Hello!", kind="changes", parse=unreadable)
    assert caught.value.check == "malformed"


@pytest.mark.parametrize("answer", ["[]", "{}", "..."])
def test_changes_need_no_word(answer: str) -> None:
    """No changes, as JSON; but an answer of nothing is none."""
    source = Source(SOURCE, 900, notes=frozenset({"a"}))
    read = reading(Note(text="a"))
    assert check_summary(answer, source, target_tokens=None, count=count_tokens, kind="changes", parse=read)
    with pytest.raises(SummaryRejected) as caught:
        accepted(" ", kind="changes", parse=reading(Note(text="a")))
    assert caught.value.check == "empty"


@pytest.mark.parametrize(
    ("known", "check"), [((), "invented"), (("HAT901, HAT902, HAT903, HAT904",), ""), (("HAT901",), "invented")]
)
def test_of_notes_only_new_ones_can_be_invented(known: tuple[str, ...], check: str) -> None:
    """What stood before was judged then, beside what it was made from."""
    source = Source(SOURCE, 900, notes=frozenset(known))
    read = reading(Note(text="HAT901, HAT902, HAT903, HAT904"))
    if not check:
        assert (
            check_summary("x", source, target_tokens=None, count=count_tokens, kind="changes", parse=read).unknown == ()
        )
        return
    with pytest.raises(SummaryRejected) as caught:
        check_summary("x", source, target_tokens=None, count=count_tokens, kind="changes", parse=read)
    assert caught.value.check == check


@pytest.mark.parametrize(("known", "check"), [((), "echo"), ((SOURCE,), "")])
def test_of_notes_only_new_ones_can_be_an_echo(known: tuple[str, ...], check: str) -> None:
    """A user may say again what a note says already."""
    source = Source(SOURCE, 10_000, notes=frozenset(known))
    read = reading(Note(text=SOURCE))
    if not check:
        assert check_summary("x", source, target_tokens=None, count=count_tokens, kind="changes", parse=read)
        return
    with pytest.raises(SummaryRejected) as caught:
        check_summary("x", source, target_tokens=None, count=count_tokens, kind="changes", parse=read)
    assert caught.value.check == check


@pytest.mark.parametrize(
    ("tokens", "before", "target", "check"),
    [(101, 0, None, "larger"), (91, 0, None, "no_progress"), (90, 0, 44, "oversized"), (190, 100, 95, ""), (192, 100, 300, "no_progress")],
)  # fmt: skip
def test_all_notes_together_are_measured(tokens: int, before: int, target: int | None, check: str) -> None:
    """Whatever the answer takes: they are what prompts show. Beside the notes before, 100 new tokens are taken in."""
    note = Note(text=words(tokens - 1).replace("word", "term"))
    assert count_tokens(f"- {note.text}") == tokens
    source = Source(words(500), 100, before)
    if not check:
        check_summary("x", source, target_tokens=target, count=count_tokens, kind="changes", parse=reading(note))
        return
    with pytest.raises(SummaryRejected) as caught:
        check_summary("x", source, target_tokens=target, count=count_tokens, kind="changes", parse=reading(note))
    assert caught.value.check == check


def test_what_ends_as_its_source_does_is_not_cut_off() -> None:
    """Questions end in words that no other sentence ends with."""
    source = "<message User>\nTell me where parcel 7 is\n<message User>\nWho is it for?"
    assert not is_cut_off("The user asked:\n- Tell me where parcel 7 is", source)
    assert not is_cut_off("The user asked who is it for", source)
    assert is_cut_off("The user asked where the", source)
    assert is_cut_off("The clerk of hall 3 is", source)


# Limits: one answer just inside of each, and one just outside


def term(place: int) -> str:
    """Return one of 12,800 words that no table of words contains; their first five letters differ."""
    letters = ""
    for choices in ("zxqjvkwg", "aeiou", "zxqjvkwg", "aeiou", "zxqjvkwg"):
        place, at = divmod(place, len(choices))
        letters += choices[at]
    return letters


def said(start: int, count: int, ending: str = "") -> str:
    return " ".join(term(place) + ending for place in range(start, start + count))


def unsaid(count: int) -> str:
    """Return words that no source below contains."""
    return said(10_000, count)


def copy_of(total: int, *pieces: int) -> str:
    """Return *total* words: *pieces* of the source, ten words apart there, each before another word."""
    starts = [sum(pieces[:at]) + 10 * at for at in range(len(pieces))]
    parts = [f"{said(start, piece)} {term(9_000 + start)}" for start, piece in zip(starts, pieces, strict=True)]
    return f"{' '.join(parts)} {unsaid(total - sum(pieces) - len(pieces))}."


def runs_of(words_in_run: int) -> str:
    return " ".join(f"{said(3 * at, words_in_run)} {term(9_000 + at)}" for at in range(61)) + "."


def posts(count: int, each: int) -> str:
    return "".join(f"<message>{said(start, each)}" for start in range(0, count * each, each))


def numbers(count: int, start: int = 4_101, step: int = 7) -> str:
    return ", ".join(str(start + step * at) for at in range(count)) + "."


def cycle(total: int) -> str:
    """Return *total* words, 17 of them from a source that repeats 12 words."""
    return f"{said(0, 17 - 5)} {said(0, 5)} {unsaid(total - 17)}."


CYCLE = 5 * posts(3, 4)
LAST = f"{' '.join(term(2 * at) for at in range(20))}.\n"
LINES = f"{said(0, 6)}.\n{said(6, 6)}.\n"
CHINESE = "".join(chr(0x4E01 + 7 * at) for at in range(60))
RULES = [f"Never {said(100 * at, 20)}." for at in range(41)]
LOST_RULES = "\n".join(f"{said(100 * at, 8)}." for at in range(4))
NEW_VALUES = "71, 72, 73, 74, 75, 76, 77."


def lines(*texts: str) -> str:
    return "\n".join(texts)


def prices(first: int, *, count: int = 4, words_each: int = 4, width: int = 0) -> str:
    return lines(*(f"- {said(10 * at, words_each)} {first + at}".rjust(width) for at in range(count)))


#: The limit, the check that the answer fails if any, the source, the previous summary, and the answer.
LIMITS = [
    ("50 words of source", "echo", said(0, 50), "", f"{said(0, 25)} {unsaid(1)} {said(25, 25)}."),
    ("50 words of source", "", said(0, 49), "", f"{said(0, 25)} {unsaid(1)} {said(25, 24)}."),
    ("runs of 6 words", "echo", said(0, 205), "", runs_of(6)),
    ("runs of 6 words", "", said(0, 205), "", runs_of(5)),
    ("0.3 of the source", "echo", said(0, 205), "", copy_of(80, 66)),
    ("0.3 of the source", "", said(0, 205), "", copy_of(80, 65)),
    ("0.75 copied", "echo", said(0, 205), "", copy_of(100, 76)),
    ("0.75 copied", "", said(0, 205), "", copy_of(100, 75)),
    ("0.18 of the source", "echo", said(0, 205), "", copy_of(45, 42)),
    ("0.18 of the source", "", said(0, 205), "", copy_of(44, 41)),
    ("0.9 copied", "echo", said(0, 205), "", copy_of(51, 46)),
    ("0.9 copied", "", said(0, 205), "", copy_of(50, 45)),
    ("0.7 copied", "echo", said(0, 1_000), "", copy_of(200, 141)),
    ("0.7 copied", "", said(0, 1_000), "", copy_of(200, 140)),
    ("80 runs", "echo", said(0, 500), "", copy_of(118, 86)),
    ("80 runs", "", said(0, 500), "", copy_of(117, 85)),
    ("0.08 of the source", "echo", said(0, 1_505), "", copy_of(172, 126)),
    ("0.08 of the source", "", said(0, 1_505), "", copy_of(172, 125)),
    ("400 runs", "echo", said(0, 5_400), "", copy_of(570, 139, 139, 138)),
    ("400 runs", "", said(0, 5_400), "", copy_of(570, 139, 138, 138)),
    ("0.6 copied", "echo", CYCLE, "", cycle(28)),
    ("0.6 copied", "", CYCLE, "", cycle(29)),
    ("0.6 in one stretch", "echo", posts(400, 10), "", copy_of(100, 61, 9)),
    ("0.6 in one stretch", "", posts(400, 10), "", copy_of(100, 60, 9)),
    ("4 posts", "echo", posts(400, 10), "", copy_of(60, 40)),
    ("4 posts", "", posts(400, 10), "", copy_of(45, 30)),
    ("200 words in one stretch", "echo", said(0, 4_000), "", copy_of(300, 201)),
    ("200 words in one stretch", "", said(0, 4_000), "", copy_of(300, 200)),
    ("a line of 4,000 characters", "cut_off", said(0, 90), "", f"{LAST}{'vox ' * 998}roam the"),
    ("a line of 4,000 characters", "", said(0, 90), "", f"{LAST}{'vox ' * 998}roams the"),
    ("3 words before a cut", "cut_off", said(0, 90), "", f"{LAST}{said(20, 2)} the"),
    ("3 words before a cut", "", said(0, 90), "", f"{LAST}{said(20, 1)} the"),
    ("6 words without a stop", "cut_off", said(0, 90), "", LINES + said(20, 6)),
    ("6 words without a stop", "", said(0, 90), "", LINES + said(20, 5)),
    ("2 sentences with stops", "", said(0, 90), "", LAST + said(20, 6)),
    ("6 words of a sentence", "", said(0, 90), "", f"{LAST}{said(20, 5)}.\n{said(30, 6)}"),
    ("2 letters of a word", "cut_off", f"{said(0, 90)} furniture", "", f"{LAST}{said(20, 2)} fu"),
    ("2 letters of a word", "", f"{said(0, 90)} furniture", "", f"{LAST}{said(20, 2)} f"),
    ("3 letters fewer", "cut_off", f"{said(0, 90)} repaired", "", f"{LAST}{said(20, 2)} repa"),
    ("3 letters fewer", "", f"{said(0, 90)} repaired", "", f"{LAST}{said(20, 2)} repai"),
    ("0.25 of the identifiers", "invented", f"{LAST}{numbers(11)}", "", f"{LAST}{numbers(11)} {numbers(4, 9_001)}"),
    ("0.25 of the identifiers", "", f"{LAST}{numbers(12)}", "", f"{LAST}{numbers(12)} {numbers(4, 9_001)}"),
    ("500 identifiers", "invented", f"{LAST}{numbers(374, 6_712, -7)}", "", f"{LAST}{numbers(374)} {numbers(126, 9_001)}"),
    ("500 identifiers", "", f"{LAST}{numbers(375, 6_719, -7)}", "", f"{LAST}{numbers(375)} {numbers(126, 9_001)}"),
    ("500 identifiers", "", f"{LAST}{numbers(375, 6_719, -7)}", "", f"{LAST}{numbers(125, 9_001)} {numbers(375)}"),
    *(
        (f"identifiers: {limit}", check, said(0, 90), "", f"{LAST}{', '.join(names.split())}.")
        for limit, inside, outside in [
            ("4 digits", "741 742 743 745", "7411 7412 7413 7415"),
            ("7 digits of a telephone", "55-0101 55-0102 55-0103 55-0104", "555-0101 555-0102 555-0103 555-0104"),
            ("3 dots", "210.0.11 210.0.12 210.0.13 210.0.14", "10.0.0.11 10.0.0.12 10.0.0.13 10.0.0.14"),
            ("6 capitals", "QWRTZ QWRTP QWRTS QWRTD", "QWRTZB QWRTPB QWRTSB QWRTDB"),
            ("8 capitals", "QWRTZBCDF QWRTPBCDF QWRTSBCDF QWRTDBCDF", "QWRTZBCD QWRTPBCD QWRTSBCD QWRTDBCD"),
            ("2 vowels", "QWARTE QWAPTE QWASTE QWADTE", "QWARTZ QWAPTZ QWASTZ QWADTZ"),
            ("3 digits of a code", "AB-41 AB-42 AB-43 AB-44", "AB-411 AB-412 AB-413 AB-414"),
            ("4 digits of a unit", "411A 412A 413A 414A", "4111A 4112A 4113A 4114A"),
            ("2 digits", "ab1cd ab2cd ab3cd ab4cd", "ab1c2 ab2c2 ab3c2 ab4c2"),
            ("2 parts", "^_abcd ^_bcde ^_cdef ^_defg", "a_bcd b_cde c_def d_efg"),
            ("200 characters", *(" ".join(f"{'x' * size}{at}" for at in range(4_101, 4_105)) for size in (197, 196))),
        ]
        for check, names in (("", inside), ("invented", outside))
    ),
    ("5 common words", "hollow", said(0, 40), "", f"{said(0, 4)} {unsaid(30)}."),
    ("5 common words", "", said(0, 40), "", f"{said(0, 5)} {unsaid(30)}."),
    ("5 common things", "hollow", f"the {said(0, 40)}, 48213, 59127.", "", f"The {unsaid(9)}: 48213 and 59127."),
    ("5 common things", "", f"the {said(0, 40)}, 48213, 59127.", "", f"The {unsaid(9)} {term(5)}ed: 48213 and 59127."),
    ("5 equal letters", "", f"the {said(0, 40)}, 48213, 59127.", "", f"The {unsaid(9)} {term(5)}: 48213 and 59127."),
    ("5 equal letters", "hollow", f"the {said(0, 40)}, 48213, 59127.", "", f"The {unsaid(9)} {term(5)[:4]}: 48213 and 59127."),
    ("8 words of source", "hollow", said(0, 8), "", f"{unsaid(5)}."),
    ("8 words of source", "", said(0, 7), "", f"{unsaid(5)}."),
    ("30 words of source", "hollow", said(0, 30), "", f"{term(3)} {unsaid(2)}."),
    ("30 words of source", "", said(0, 29), "", f"{term(3)} {unsaid(2)}."),
    ("a handful of 4 words", "hollow", said(0, 40), "", f"{term(3)} {unsaid(2)} {term(7)}."),
    ("a handful of 4 words", "", said(0, 40), "", f"{term(3)} {unsaid(3)} {term(7)}."),
    ("2 common words of many", "hollow", said(0, 40), "", f"{term(3)} {term(3)} {term(3)} {unsaid(2)}."),
    ("1 common word of few", "", said(0, 29), "", f"{term(3)} {unsaid(3)}."),
    ("1 common word of few", "hollow", said(0, 29), "", "The summary of the conversation."),
    ("0.25 of its words", "hollow", said(0, 29), "", f"{term(3)} {unsaid(4)}."),
    ("3 letters of a word", "", f"{said(0, 28)} vox", "", f"Vox {unsaid(3)}."),
    ("3 letters of a word", "hollow", f"{said(0, 27)} qv_{term(28)}", "", f"qv_{term(9_500)} {unsaid(2)}."),
    ("0.6 of an error", "hollow", said(0, 40), "", f"Rate limit: {said(0, 5)} {unsaid(4)}."),
    ("0.6 of an error", "", said(0, 40), "", f"Rate limit: {said(0, 6)} {unsaid(4)}."),
    ("5 words of an error", "hollow", said(0, 40), "", f"Rate limit: {said(0, 4)}."),
    ("5 words of an error", "", said(0, 40), "", f"Rate limit: {said(0, 5)}."),
    ("0.06 of a language", "hollow", f"the the {said(0, 40)}", "", f"{'the ' * 6}{unsaid(94)}."),
    ("0.06 of a language", "", f"the the {said(0, 40)}", "", f"{'the ' * 6}{unsaid(95)}."),
    ("40 frequent words", "hollow", said(0, 50), "", f"{unsaid(4)} {term(39)} {said(10_010, 4)}."),
    ("40 frequent words", "", said(0, 50), "", f"{unsaid(4)} {term(40)} {said(10_010, 4)}."),
    ("8 words in no known language", "hollow", said(0, 40), "", f"{unsaid(7)}."),
    ("8 words in no known language", "", said(0, 40), "", f"{unsaid(8)}."),
    ("3 words in a row", "hollow", said(0, 40), "", f"{said(0, 2)} {unsaid(1)} {term(9)}."),
    ("3 words in a row", "", said(0, 40), "", f"{said(0, 3)} {unsaid(1)}."),
    ("4 characters in a row", "hollow", CHINESE, "", f"{CHINESE[:3]}。"),
    ("4 characters in a row", "", CHINESE, "", f"{CHINESE[:4]}。"),
    ("a handful of 6 characters", "hollow", CHINESE, "", f"{CHINESE[:2]}龜{CHINESE[8:10]}龍。"),
    ("a handful of 6 characters", "", CHINESE, "", f"{CHINESE[:2]}龜{CHINESE[8:10]}龍鳳。"),
    ("a handful without characters", "hollow", f"{CHINESE} {said(0, 3)}", "", f"{said(0, 2)}."),
    ("a handful without characters", "", f"{CHINESE} {said(0, 3)}", "", f"{said(0, 2)} 龜。"),
    ("20 new values", "hollow", f"the the {numbers(20)}", f"the {said(0, 9)}", f"The {said(0, 9)}."),
    ("20 new values", "", f"the the {numbers(19)}", f"the {said(0, 9)}", f"The {said(0, 9)}."),
    ("a third of the names", "forgets_previous", said(0, 90), numbers(31), f"{LAST}{numbers(10)}"),
    ("a third of the names", "", said(0, 90), numbers(30), f"{LAST}{numbers(10)}"),
    ("4 numbers", "forgets_previous", said(0, 90), "41, 42, 43, 44", LAST),
    ("4 numbers", "", said(0, 90), "41, 42, 43", LAST),
    ("2 digits of a number", "", said(0, 90), "4, 5, 6, 7", LAST),
    ("2 identifiers", "forgets_previous", said(0, 90), "4101, 4108", LAST),
    ("2 identifiers", "", said(0, 90), "4101", LAST),
    ("8 words found only before", "forgets_previous", f"the {said(0, 90)}", f"the the {said(200, 8)}", f"The the {LAST}"),
    ("8 words found only before", "", f"the {said(0, 90)}", f"the the {said(200, 7)}", f"The the {LAST}"),
    ("0.1 of the words", "forgets_previous", f"the {said(0, 90)}", f"the the {said(200, 11)}", f"The the {term(200)} {LAST}"),
    ("0.1 of the words", "", f"the {said(0, 90)}", f"the the {said(200, 10)}", f"The the {term(200)} {LAST}"),
    ("0.6 of a prohibition", "forgets_previous", said(9_000, 90), lines(*RULES[:4]), lines(RULES[0], said(100, 11), LAST)),
    ("0.6 of a prohibition", "", said(9_000, 90), lines(*RULES[:4]), lines(RULES[0], said(100, 12), LAST)),
    ("40 prohibitions", "forgets_previous", said(9_000, 90), lines(*RULES), lines(*RULES[:13], RULES[40], LAST)),
    ("40 prohibitions", "forgets_previous", said(9_000, 90), lines(*RULES[:40]), lines(*RULES[:13], LAST)),
    ("40 prohibitions", "", said(9_000, 90), lines(*RULES[:40]), lines(*RULES[:14], LAST)),
    ("10,000 characters", "forgets_previous", said(9_000, 90), lines("the " * 2_370, *RULES[:4]), lines(LOST_RULES, LAST)),
    ("10,000 characters", "", said(9_000, 90), lines("the " * 2_500, *RULES[:4]), lines(LOST_RULES, LAST)),
    ("4 words of a line", "", NEW_VALUES, prices(41), prices(71)),
    ("4 words of a line", "forgets_previous", NEW_VALUES, prices(41, words_each=3), prices(71, words_each=3)),
    ("2,000 characters of a line", "", NEW_VALUES, prices(41, width=2_000), prices(71)),
    ("2,000 characters of a line", "forgets_previous", NEW_VALUES, prices(41, width=2_001), prices(71)),
    ("200 lines", "", NEW_VALUES, "\n" * 196 + prices(41, count=7), prices(71, count=7)),
    ("200 lines", "forgets_previous", NEW_VALUES, "\n" * 197 + prices(41, count=7), prices(71, count=7)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "source", "previous", "answer"),
    [case[1:] for case in LIMITS],
    ids=[f"{limit}: {check or 'passes'}" for limit, check, *_ in LIMITS],
)
def test_each_limit_is_where_it_is(check: str, source: str, previous: str, answer: str) -> None:
    """Next to each limit, one answer passes and one does not."""
    read = Source(source, 100_000, count_tokens(previous), previous=previous)
    failed = ""
    try:
        check_summary(answer, read, target_tokens=None, count=count_tokens)
    except SummaryRejected as rejected:
        failed = rejected.check
    assert failed == check


@pytest.mark.parametrize(
    ("source", "tokens", "answer", "check", "little"),
    [
        (said(0, 90), 31, unsaid(32), "larger", True),
        (said(0, 90), 32, unsaid(32), "larger", False),
        (said(0, 3), 90, "Done.", "hollow", True),
        (said(0, 4), 90, "Done.", "hollow", False),
    ],
)
def test_too_little_to_sum_up_is_no_fault_of_the_answer(
    source: str, tokens: int, answer: str, check: str, *, little: bool
) -> None:
    """Fewer than 32 tokens, or at most three words and no value."""
    with pytest.raises(SummaryRejected) as rejected:
        check_summary(answer, Source(source, tokens), target_tokens=None, count=count_tokens)
    assert rejected.value.check == check
    assert is_too_little(rejected.value, deterministic=False) == little


@pytest.mark.parametrize(("target", "check"), [(240, ""), (270, "forgets_previous")])
def test_a_short_target_lowers_the_share_of_words_to_keep(target: int, check: str) -> None:
    """Of 8 in 100 words, to 0.08: a third of the share of the target in the length before."""
    read = Source(f"the {said(0, 90)}", 100_000, 1_000, previous=f"the the {said(200, 100)}")
    failed = ""
    try:
        check_summary(f"The the {said(200, 8)} {LAST}", read, target_tokens=target, count=count_tokens)
    except SummaryRejected as rejected:
        failed = rejected.check
    assert failed == check
