"""What says nothing of the conversation, from the summarizer to what is shown: the good summary stays."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from chats import answer, calls, memory_of, result, user
from executors import ManualExecutor
from scene import of_kind
from tool_runs import memory_of as closed_memory_of
from tool_runs import pair, work_of
from views import reduced, view_of

from benchmarks.acceptance import talks
from compactor import (
    CompactorConfig,
    ContextCompactor,
    Rejected,
    SummaryRejected,
    SummaryRequest,
    compact_notes,
    compress_tool_runs,
    offload_large,
)
from compactor.presets import CompressionFailed, MemoryWithCompress, offload_context
from compactor.testing import FakeClock, ScriptedSummarizer
from memory import Memory

PAGE = "<html><head><title>502 Bad Gateway</title></head><body><h1>The refund of the parcel failed</h1></body></html>"
HOLLOW = ("Done", "No summary available.", "Resumen completado.", PAGE, '{"error": "the parcel was not found"}')
#: What no conversation was read for. The last two are no refusal; nobody said a word of them.
ABROAD = (
    "Es tut mir leid, aber dabei kann ich Ihnen nicht helfen.",
    "Désolé, je ne peux pas accéder à cette demande. Veuillez reformuler votre question.",
    "Lo siento, no puedo ayudar con eso. Si tienes otra pregunta, estaré encantado de responderla.",
    "Desculpe, mas não posso atender a esse pedido no momento.",
    "Mi dispiace, non posso fornire un riassunto di questa conversazione.",
    "Przykro mi, ale nie mogę pomóc w tej sprawie. Czy mogę zrobić coś innego?",
    "Het spijt me, maar ik kan niet aan dit verzoek voldoen.",
    "Извините, я не могу помочь с этим запросом. Попробуйте переформулировать вопрос.",
    "क्षमा करें, मैं इस अनुरोध में सहायता नहीं कर सकता।",
    "عذرًا، لا يمكنني المساعدة في هذا الطلب.",
    "很抱歉，我无法协助处理该请求。请换一个话题。",
    "申し訳ありませんが、そのご要望にはお応えできません。",
    "죄송하지만 해당 요청은 도와드릴 수 없습니다.",
    "As a large language model trained to be harmless, I must decline to write about private individuals.",
    "Verstanden, ich fasse das Gespräch zusammen.",
    "要約が完了しました。",
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore.",
    "2026-11-29T08:00:00Z",
    # Longer than a short summary.
    "".join(random.Random(5).choices("abcdefghij %$#\n", k=600)),
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore. "
    * 5,
)
#: German shares its small words with a refusal in German; it names numbers, but no identifiers.
GERMAN = [
    {"role": role, "content": said.format(at=at, n=1_100 + 37 * at)}
    for at in range(24)
    for role, said in (
        ("user", "Kann ich Ihnen für die Parzelle {at} aber bitte nicht mehr als {n} Euro im Jahr zahlen?"),
        ("assistant", "Leider darf ich das nicht ändern, denn für diesen Garten sind {n} Euro beschlossen."),
    )
]
CONFIG = CompactorConfig(threshold=5, retain_recent=3, summary_attempts=1)
SUPPORT = next(said for kind, said in talks(7) if kind == "support")
TEXT = "\n".join(message["content"] for message in SUPPORT)


def piece_of(request: SummaryRequest) -> str:
    """Answer as a function that only cuts: with the first 2,000 characters of what it is asked."""
    return str(request.messages[-1]["content"])[:2_000]


def talk_of(*said: str) -> list[dict[str, Any]]:
    """Return what a user and an assistant said in turns."""
    return [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(said)]


#: Names no number and no identifier, as most talk of people does.
LETTER = talk_of(
    "My sister and I have not spoken since the funeral. I would like to write her a letter.",
    "A letter is a gentle way to begin. What would you like her to know when she has read it?",
    "That I was wrong about the piano. I sold it without asking her, and she had learned to play on it.",
    "That is an honest beginning. Say so in the first lines, and tell her later why you were in such a hurry.",
    "Her name is Rosalind, she paints and lives by the harbour. She hates flattery.",
    "Then keep it plain. A small image from childhood says more than praise.",
    "We used to hide under the piano with the cat while our father played Schumann, badly.",
    "Lovely. She will recognise that sentence at once, and forgive you the rest.",
    "I kept the stool and the metronome. The buyer of the piano moved abroad.",
    "Offer her the stool. It is concrete, and it does not ask for anything.",
    "How do I sign? She used to call me Button.",
    "Then sign as Button. It says what the two of you never said.",
)


def instructions_of(request: SummaryRequest) -> str:
    """Answer as a model that goes on with what it read last."""
    return str(request.messages[-1]["content"])[-600:]


def same_again(request: SummaryRequest) -> str:
    return request.previous.summary if request.previous else "Parzelle 0 und 1 zahlen 1100 und 1137 Euro im Jahr."


def compactor_of(
    memory: Memory, summarizer: ScriptedSummarizer, config: CompactorConfig = CONFIG, **more: Any
) -> tuple[ContextCompactor, ManualExecutor, FakeClock]:
    """Return one that has been asked once, and does nothing more unless it is told to."""
    executor, clock = ManualExecutor(), FakeClock()
    options = {"executor": executor, "clock": clock, "rng": lambda: 1.0} | more
    compactor = ContextCompactor.for_role(memory, "assistant", config, summarizer, **options)
    compactor.start()
    executor.run_all()
    return compactor, executor, clock


def checks_of(compactor: ContextCompactor) -> list[str]:
    return [event.check for event in of_kind(compactor.events, Rejected)]


@pytest.mark.parametrize(
    ("said", "check"), [("Done", "hollow"), (PAGE, "hollow"), (piece_of, "echo"), ("No summary available.", "hollow")]
)
def test_of_sixteen_ordinary_rounds_nothing_is_published_that_says_nothing_of_them(said: Any, check: str) -> None:
    """Nor what is a piece of them; which check refused it is told."""
    memory = Memory.from_messages(SUPPORT)
    assert len(memory.conversation.rounds) == 16
    compactor, _, _ = compactor_of(memory, ScriptedSummarizer(default=said))
    assert compactor.get_compaction() is None
    assert checks_of(compactor) == [check]


NOTHING = (
    "要約が完了しました。",
    "This summary captures the key points, decisions and next steps from the dialogue above, preserving all names.",
    "The user asked several questions and the assistant answered them helpfully. They agreed on the next steps.",
)


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        *product([SUPPORT, GERMAN], [*ABROAD, instructions_of]),
        *product([LETTER], [*ABROAD[:13], *NOTHING]),
    ],
)
def test_a_refusal_in_any_language_and_the_instructions_are_no_summary(talk: list[dict[str, Any]], said: Any) -> None:
    """Nor a text about nothing: a source full of names and numbers is quoted by its summary."""
    compactor, _, _ = compactor_of(Memory.from_messages(talk), ScriptedSummarizer(default=said))
    assert compactor.get_compaction() is None
    assert checks_of(compactor)[0] in ("hollow", "greeting")


@pytest.mark.parametrize(
    "said",
    [
        "The user writes to a sister about a piano that was sold, and offers the stool.",
        "Der Nutzer schreibt seiner Schwester Rosalind, dass er das Klavier verkauft hat; er behielt den Hocker.",
        "Die Nutzerin will ihrer Schwester Rosalind schreiben. Sie bereut den Verkauf, und der Hocker soll ein Zeichen sein.",
    ],
)
def test_a_short_summary_of_a_talk_without_numbers_is_shown(said: str) -> None:
    """In another language too, if it names anything."""
    compactor, _, _ = compactor_of(Memory.from_messages(LETTER), ScriptedSummarizer(default=said))
    assert checks_of(compactor) == []
    assert compactor.get_compaction() is not None


#: In small letters, so that it names nothing: about slugs, hedgehogs and strawberries.
SLUGS = talk_of(
    "die schnecken fressen mir jede nacht den salat weg, obwohl ich ein hochbeet gebaut habe.",
    "sie klettern am holz hoch. ein streifen aus kupferband rundherum hilft, solange keine blätter darüberhängen.",
    "kupferband habe ich, aber die erdbeeren hängen über den rand. soll ich sie abschneiden?",
    "nur die ranken, die den boden berühren. die früchte kannst du auf stroh legen, dann faulen sie auch nicht.",
    "stroh bekomme ich vom pferdestall nebenan. giftkörner will ich nicht, wegen der igel unter dem schuppen.",
    "richtig, die igel sind deine besten helfer. stell ihnen wasser hin, aber niemals milch.",
    "gestern abend habe ich mit der taschenlampe einen ganzen eimer voll gesammelt. wohin damit?",
    "bring sie weit weg auf eine feuchte wiese, sonst kommen sie zurück. laufenten wären auch eine lösung.",
    "enten erlaubt der verein nicht. meine nachbarin schwört auf kaffeesatz.",
    "kaffeesatz stört sie ein wenig, aber nach dem regen ist er weg. gieße lieber morgens statt abends.",
    "das habe ich falsch gemacht, ich gieße immer abends nach der arbeit.",
    "dann ändere zuerst das. trockene erde in der nacht hält mehr schnecken ab als jedes mittel.",
)


@pytest.mark.parametrize(
    ("said", "is_shown"),
    [
        ("Gegen die Schnecken im Hochbeet helfen Kupferband und Gießen am Morgen; Gift soll es der Igel wegen nicht sein.", True),
        ("Salat, Hochbeet, Schnecken; Kupferband, Erdbeeren auf Stroh; Igel, Wasser; Enten verboten; morgens gießen.", True),
        ("The gardener fights slugs with copper tape and straw, wants no poison for the sake of hedgehogs.", True),
        ("Diese Übersicht enthält alle wichtigen Einzelheiten, damit die Arbeit ohne Unterbrechung weitergehen kann.", False),
        ("Schreibe eine Zusammenfassung, mit der ein Nachfolger auskommt: Ziel, Erledigtes, Gescheitertes, Offenes.", False),
        ("Se abordaron distintas cuestiones planteadas por la persona y se ofrecieron orientaciones para resolverlas.", False),
        ("Пользователь рассказал о своей ситуации, получил подробные рекомендации и решил, как поступать дальше.", False),
        ("用户提出了自己的情况和困难，助手逐一给出了实用的建议，最后用户表示满意并决定按照建议去做。", False),
        ("兄は来月から北海道の牧場で働き、馬の世話と雪かきを担当することになった。", False),
    ],
)  # fmt: skip
def test_of_a_talk_that_names_nothing_a_summary_says_something(said: str, is_shown: bool) -> None:
    """A third language was not asked for."""
    compactor, _, _ = compactor_of(Memory.from_messages(SLUGS), ScriptedSummarizer(default=said))
    assert checks_of(compactor) == ([] if is_shown else ["hollow"])
    assert (compactor.get_compaction() is not None) is is_shown


@pytest.mark.parametrize(
    ("wish", "is_shown"),
    [("auf Japanisch", True), ("in Japanese", True), ("in the language of the conversation", False)],
)
def test_a_prompt_may_ask_for_a_language(tmp_path: Path, wish: str, is_shown: bool) -> None:
    """A third language is refused only where the conversation's was asked for."""
    path = tmp_path / "own.yaml"
    path.write_text(f"content: |-\n  {{content}}\n\n  Write a summary of all that, {wish}.\n", encoding="utf-8")
    said = "ユーザーは妹に、ピアノを売ったことを謝る手紙を書いている。椅子は返すつもりだ。"
    config = CompactorConfig(threshold=5, retain_recent=3, summary_attempts=1, prompt_template_path=path)
    summarizer = ScriptedSummarizer(default=said)
    compactor, _, _ = compactor_of(Memory.from_messages(LETTER), summarizer, config=config)
    assert checks_of(compactor) == ([] if is_shown else ["hollow"])
    assert (compactor.get_compaction() is not None) is is_shown


#: In English, and full of names, which are the same in any language.
TRIP = [
    {"role": role, "content": said.format(at=at, price=311 + 17 * at)}
    for at in range(14)
    for role, said in (
        ("user", "Please move Ivan Smith on day {at} from Newark to Chicago, in Economy, for {price} dollars."),
        ("assistant", "Done: Newark to Chicago in Economy, seat {at}. Ivan Smith pays {price} dollars by card."),
    )
]


@pytest.mark.parametrize(
    "said",
    [
        "Der Kunde bucht für seinen Freund mehrere Reisen von Newark nach Chicago: Economy statt Business und ohne Koffer.",
        "Le client a réservé un vol de Newark pour son ami Ivan Smith, sans assurance ; le total de 311 a été payé.",
        "Клиент несколько раз перенёс поездку друга Ivan Smith из Newark и каждый раз платил картой, билеты у него.",
        "用户为朋友Ivan Smith多次改签了从纽瓦克到芝加哥的航班，选择经济舱，每次都用银行卡付款，第一次三百一十一美元。",
    ],
)
def test_a_summary_in_another_language_that_names_what_was_spoken_of_is_shown(said: str) -> None:
    """To share names is not to share a language, in which more would have to be said of the source."""
    compactor, _, _ = compactor_of(Memory.from_messages(TRIP), ScriptedSummarizer(default=said))
    assert checks_of(compactor) == []
    assert compactor.get_compaction() is not None


@pytest.mark.parametrize(
    "said",
    [
        "کاربر خواست دوستش از نیوآرک به شیکاگو برود؛ بار اول ۳۱۱ دلار و بار دوم ۳۲۸ دلار با کارت پرداخت شد. ",
        "طلب المستخدم نقل صديقه من نيوآرك إلى شيكاغو، ودفع في المرة الأولى ٣١١ دولارا وفي الثانية ٣٢٨ دولارا. ",
        "利用者は友人をニューアークからシカゴへ移すよう頼み、一回目は３１１ドル、二回目は３２８ドルをカードで支払った。",
    ],
)
def test_a_long_summary_with_the_digits_of_its_language_is_shown(said: str) -> None:
    """They are the conversation's numbers."""
    compactor, _, _ = compactor_of(Memory.from_messages(TRIP), ScriptedSummarizer(default=said * 8))
    assert checks_of(compactor) == []
    assert compactor.get_compaction() is not None


def test_an_answer_about_nothing_is_refused_in_capitals_too() -> None:
    """In a talk in capitals, they tell no names from other words."""
    talk = (
        "THE DISK OF THE SERVER IS FULL AND THE OLD FILES OF THE LOG HAVE TO BE DELETED; WE TOOK A BACKUP OF THE BASE."
    )
    said = "THE CONVERSATION COVERED SEVERAL TOPICS IN DETAIL AND EVERYTHING WAS COMPLETED AS REQUESTED BY THE USER."
    messages = [{"role": role, "content": talk} for _ in range(14) for role in ("user", "assistant")]
    compactor, _, _ = compactor_of(Memory.from_messages(messages), ScriptedSummarizer(default=said))
    assert checks_of(compactor) == ["hollow"]
    assert compactor.get_compaction() is None


@pytest.mark.parametrize(
    ("more", "is_shown"),
    [
        ("", False),
        ("\nThe conversation continued on other matters.", False),
        ("\n\n## Next steps\n- To be determined.", False),
        (" Then a few more things were agreed upon.", False),
        (" She paints.", True),
        ("\n- The stool is offered to her, without flattery.", True),
    ],
)
def test_after_a_long_piece_of_conversation_a_summary_adds_something_of_it(more: str, is_shown: bool) -> None:
    """Whether it names anything or not."""
    first = "A letter to Rosalind, about the piano."

    def again(request: SummaryRequest) -> str:
        return f"{request.previous.summary}{more}" if request.previous else first

    memory = Memory.from_messages(LETTER)
    compactor, executor, _ = compactor_of(memory, ScriptedSummarizer(default=again))
    good = compactor.get_compaction()
    assert good is not None
    for message in LETTER * 8:
        memory.append(message)
    executor.run_all()
    assert (compactor.get_compaction() != good) is is_shown
    assert set(checks_of(compactor)) == (set() if is_shown else {"hollow"})


SMALL_TALK = [
    {"role": role, "content": said}
    for role, said in (
        ("user", "Morning! It was 24 degrees here, and I slept until 11:40. Lovely, is it not?"),
        ("assistant", "Good morning! A long sleep does good. I am glad that the sun came out for you."),
        ("user", "My aunt turned 70, we ate cake until 22:15. Well, nothing else, I was only bored."),
        ("assistant", "Congratulations to her! It is a pleasure to keep you company. Have a nice day!"),
    )
]


def test_rounds_that_repeat_what_is_known_may_be_told_in_known_words() -> None:
    """They name ids, but hardly a new word that a summary could share with them."""
    first = "Every hour the queue of the payment service is checked: it was healthy. Never purge the queue."
    again = "The queue of the payment service is checked every hour and stayed healthy throughout. Never purge it."

    def poll(start: int, end: int) -> list[dict[str, Any]]:
        messages = (
            [user("Check the queue of the payment service every hour, and never purge it.")] if start == 0 else []
        )
        for at in range(start, end):
            state = result(f"c{at}", f'{{"job": "job-{7_000 + 13 * at}", "state": "healthy"}}')
            messages += [
                user("Check the queue of the payment service."),
                calls(f"c{at}"),
                state,
                answer("It is healthy."),
            ]
        return messages

    memory = Memory.from_messages(poll(0, 12))
    compactor, executor, _ = compactor_of(
        memory, ScriptedSummarizer(default=lambda request: again if request.previous else first)
    )
    for message in poll(12, 60):
        memory.append(message)
    executor.run_all()
    assert checks_of(compactor) == []
    compaction = compactor.get_compaction()
    assert compaction is not None
    assert compaction.summary.startswith(again)


@pytest.mark.parametrize(
    ("new", "more", "is_shown"),
    [
        (SUPPORT * 2, "", False),
        (SUPPORT * 2, " The parcel with the grinder never arrived.", True),
        (SMALL_TALK * 12, "", True),
    ],
    ids=["names and nothing of them", "names and something of them", "small talk"],
)
def test_the_same_summary_in_other_words_says_nothing_of_what_is_new(new: Any, more: str, is_shown: bool) -> None:
    """One word, "private", stands in the new rounds by chance. Of small talk there is nothing to say."""
    first = "The user writes a letter to Rosalind about the old piano. She shall hear nothing of its price."

    def reword(request: SummaryRequest) -> str:
        reworded = "In a letter, Rosalind gets to know of the piano, an old one. Its price stays private."
        return f"{reworded}{more}" if request.previous else first

    memory = Memory.from_messages(LETTER)
    compactor, executor, _ = compactor_of(memory, ScriptedSummarizer(default=reword))
    good = compactor.get_compaction()
    assert good is not None
    for message in new:
        memory.append(message)
    executor.run_all()
    assert (compactor.get_compaction() != good) is is_shown
    assert set(checks_of(compactor)) == (set() if is_shown else {"hollow"})


def test_one_sentence_may_tell_old_and_new_things_together() -> None:
    """It is longer each time, and only its end is about the new rounds."""
    seats = range(101, 121)

    def messages_about(seat: int) -> list[dict[str, Any]]:
        return [
            {"role": role, "content": said}
            for role, said in (
                ("user", f"May {seat} stay beside the window? The hall is cold; draughts come from every other door."),
                ("assistant", "Certainly; then nobody else can be placed there, so consider who would mind."),
            )
        ]

    def list_all(request: SummaryRequest) -> str:
        before = request.previous.summary.removesuffix(".") if request.previous else "By the window, they put seats"
        told = " ".join(str(round_.user_query) for round_ in request.rounds)
        return ", ".join([before, *(str(seat) for seat in seats if str(seat) in told)]) + "."

    memory = Memory.from_messages([one for seat in seats[:-1] for one in messages_about(seat) * 2])
    compactor, executor, _ = compactor_of(memory, ScriptedSummarizer(default=list_all))
    good = compactor.get_compaction()
    assert good is not None
    for message in messages_about(seats[-1]) * 20:
        memory.append(message)
    executor.run_all()
    assert checks_of(compactor) == []
    assert compactor.get_compaction() != good


def test_the_same_summary_again_says_nothing_of_new_numbers() -> None:
    """Of a conversation whose new rounds name no identifier, only numbers."""
    memory = Memory.from_messages(GERMAN[:12])
    compactor, executor, _ = compactor_of(memory, ScriptedSummarizer(default=same_again))
    good = compactor.get_compaction()
    assert good is not None
    for message in GERMAN[12:]:
        memory.append(message)
    executor.run_all()
    assert compactor.get_compaction() == good
    assert set(checks_of(compactor)) == {"hollow"}


@pytest.mark.parametrize("said", HOLLOW)
def test_the_good_summary_stays_where_the_next_one_says_nothing(said: str) -> None:
    """It is asked for again, and the next good one takes its place."""
    memory = Memory.from_messages(SUPPORT[:22])
    summarizer = ScriptedSummarizer([None, said])
    compactor, executor, clock = compactor_of(memory, summarizer)
    good = compactor.get_compaction()
    assert good is not None
    for message in SUPPORT[22:]:
        memory.append(message)
    executor.run_all()
    assert compactor.get_compaction() == good
    assert checks_of(compactor) == ["hollow"]
    clock.advance(1)
    executor.run_all()
    assert compactor.get_compaction() != good


@pytest.mark.parametrize("said", [*HOLLOW, piece_of])
def test_a_run_of_calls_is_not_replaced_by_what_says_nothing(said: Any) -> None:
    """Its results stay as they are."""
    run = [message for at in range(4) for message in pair(f"c{at}", text=TEXT)]
    memory = closed_memory_of(user("Where is the kettle?"), *run, answer("At the depot."))
    found = compress_tool_runs()(view_of(memory, work=work_of(ScriptedSummarizer(default=said))))
    with pytest.raises(SummaryRejected) as caught:
        list(found)
    assert caught.value.check in ("hollow", "echo", "markup")


@pytest.mark.parametrize("said", HOLLOW)
def test_a_large_result_keeps_its_beginning_where_its_summary_says_nothing(said: str) -> None:
    """As where it fails."""
    memory = memory_of(user("Where?"), calls("a"), result("a", TEXT), answer("At the depot."))
    work = work_of(ScriptedSummarizer(default=said))
    (reduction,) = reduced(memory, offload_large(1_000, summarize=True), work=work)
    assert reduction.text.startswith(TEXT[:150])
    assert said not in reduction.text


@pytest.mark.parametrize("said", HOLLOW)
def test_changes_of_notes_say_something(said: str) -> None:
    """In the form that was asked for, and where all notes are asked for then: those before stay."""
    answers = ["- The parcel with the kettle never arrived.", json.dumps({"add": [said]})]
    summarizer = ScriptedSummarizer(answers, default=said)
    memory = Memory.from_messages(SUPPORT[:16])
    compactor, executor, _ = compactor_of(memory, summarizer, strategies=(compact_notes,))
    good = compactor.get_compaction()
    assert good is not None
    for message in SUPPORT[16:]:
        memory.append(message)
    executor.run_all()
    assert [request.kind for request in summarizer.requests][:2] == ["rounds", "changes"]
    assert compactor.get_compaction() == good


@pytest.mark.parametrize("said", [*HOLLOW, piece_of])
def test_offload_context_leaves_the_messages_where_the_summary_says_nothing(said: Any) -> None:
    """The result says why."""
    summarizer = ScriptedSummarizer(default=said)
    made = offload_context(
        SUPPORT, context_manage_mode="compress", max_total_tokens=400, keep_recent_count=4, summarizer=summarizer
    )
    assert made.messages == SUPPORT
    assert isinstance(made.failure, SummaryRejected)


@pytest.mark.parametrize("said", HOLLOW)
def test_a_memory_with_compress_keeps_its_messages_where_the_summary_says_nothing(said: str) -> None:
    """None of them is hidden."""
    model = ScriptedSummarizer(default=json.dumps({"compressed_text": said}))
    memory = MemoryWithCompress(400, summarizer=model)
    asyncio.run(memory.add(SUPPORT))
    with pytest.raises(CompressionFailed) as raised:
        asyncio.run(memory.get_memory())
    assert isinstance(raised.value.__cause__, SummaryRejected)
    memory.compression_on_get = False
    assert asyncio.run(memory.get_memory()) == SUPPORT
