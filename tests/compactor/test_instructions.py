"""Which sentences are meant to stay in force."""

from __future__ import annotations

import time

import pytest

from compactor.summarizers.cues import is_prohibition, rate_instruction


@pytest.mark.parametrize(
    "sentence",
    [
        "Never delete anything under /srv.",
        "Always run the tests first.",
        "do not push to main",
        "Don't email the client.",
        "Please don't touch prod.",
        "You must not share this with anyone.",
        "The total must stay under 500.",
        "From now on answer in French.",
        "Remember that I am vegetarian.",
        "Please remember my seat: 14C.",
        "I don't want you to call them.",
        "Ask me before you pay.",
        "Only use the internal mirror.",
        "Make sure the backups run.",
        "Could you please never book before 9am?",
        "Under no circumstances share the key.",
    ],
)
def test_rules_and_prohibitions_are_instructions(sentence: str) -> None:
    assert rate_instruction(sentence) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "I prefer aisle seats.",
        "The deadline is Friday.",
        "Our budget is 500 euros.",
        "At most three stops.",
        "Please use EUR.",
    ],
)
def test_wishes_and_limits_count_for_less(sentence: str) -> None:
    assert 0 < rate_instruction(sentence) < 1


@pytest.mark.parametrize(
    "sentence",
    [
        "I'm sorry, that must be hard.",
        "That's so meaningful, you must be proud.",
        "It must be lovely there in May.",
        "Don't tempt us.",
        "Don't be sad.",
        "Sure, I'll keep it short and natural.",
    ],
)
def test_what_is_felt_with_somebody_is_no_rule(sentence: str) -> None:
    assert rate_instruction(sentence) == 0


@pytest.mark.parametrize(
    "sentence",
    [
        "You must be careful with the database.",
        "It must be under 100 KB.",
        "Don't be late.",
        "Do not tempt fate by deploying on Fridays.",
    ],
)
def test_what_looks_like_it_and_rules_is_one(sentence: str) -> None:
    assert rate_instruction(sentence) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "永远不要删除这个文件。",
        "请务必使用欧元",
        "絶対に削除しないでください。",
        "Bitte niemals ohne Rückfrage buchen.",
        "Ne réserve jamais avant midi.",
        "Nunca borres los datos.",
        "Никогда не удаляй файлы.",
        "절대 삭제하지 마세요.",
    ],
)
def test_other_languages_give_instructions_too(sentence: str) -> None:
    assert rate_instruction(sentence) == 1


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't know the reservation number.",
        "I don't have it with me.",
        "If you don't mind, go on.",
        "I can't remember my password.",
        "Never mind.",
        "I've always liked it here.",
        "I must have left it at home.",
        "Do I always need a passport?",
        "Must it be red?",
        "I missed an important meeting.",
        "Book the flight to Oslo.",
        "",
    ],
)
def test_telling_and_asking_are_no_instructions(sentence: str) -> None:
    """False alarms take the space of true ones."""
    assert rate_instruction(sentence) == 0


@pytest.mark.parametrize(
    "sentence",
    [
        "Never delete anything under /srv.",
        "do not push to main",
        "Please don't touch prod, ever.",
        "It must never leave the building.",
        "You must not share this with anyone.",
        "You mustn't pay with my gift card.",
        "You can't use that card.",
        "Nobody may see the draft.",
        "The report is not to be sent before Friday.",
        "Under no circumstances share the key.",
        "Book nothing without asking me.",
        "No bookings without my explicit approval, please.",
        "Change it without changing the dates.",
        "The price must not exceed 300.",
        "Smoking in the car is strictly forbidden.",
        "The archive folder is off-limits.",
        "Ask me before you pay.",
        "Don't do anything until I confirm.",
        "I don't want you to call them.",
        "I really don’t want to be transferred.",
        "I do not want travel insurance.",
        "I'd rather not fly on Monday.",
        "Avoid the ring road.",
        "Please stop sending reminders.",
        "Leave the tests alone.",
        "No red-eye flights.",
        "But no meat, please.",
        "Could you please never book before 9am?",
        "永远不要删除这个文件。",
        "未经我同意请勿付款",
        "絶対に削除しないでください。",
        "절대 삭제하지 마세요.",
        "Bitte nicht ohne Rückfrage buchen.",
        "Das ist streng verboten.",
        "Ne réserve jamais avant midi.",
        "N'envoie pas ce mail.",
        "Nunca borres los datos.",
        "Non cancellare mai questo file.",
        "Não compre nada sem minha confirmação.",
        "Никогда не удаляй файлы.",
        "Boek nooit voor negen uur.",
        "I forbid you to email my boss.",
        "We strictly prohibit any calls.",
        "Only use the staging server.",
        "Please only ever deploy on Mondays.",
        "And use only the internal mirror.",
        "Only Anna may approve payments.",
        "You may only read the table.",
        "The backups must only be moved by hand.",
        "The archive shouldn't be deleted.",
        "It should not be sent to anyone.",
        "别删除这个文件",
        "Lösche die Datei nicht.",
        "Bitte buchen Sie keine Nachtflüge.",
        "Löschen Sie nichts!",
        "Die Tabelle darf nicht geändert werden.",
        "Ne supprimez pas ce fichier.",
        "Ne les supprime pas.",
        "N'y touchez pas !",
        "Merci de ne pas supprimer ces lignes.",
        "Il ne faut pas effacer la table.",
        "Je ne veux pas d'assurance.",
        "No borres los archivos.",
        "Por favor, no los borres.",
        "Los datos son míos: no me llames.",
        "Non cancellare i file.",
        "I file non cancellarli.",
        "Per favore, non cancellate nulla.",
        "Não apague os arquivos.",
        "Verwijder de bestanden niet.",
        "Nie usuwaj plików.",
        "Не удаляй файлы.",
        "Пожалуйста, не удаляйте файлы.",
        "Не пиши ему.",
        "Файлы не трогай!",
        "Ничего не отправляйте.",
        "Не удалять!",
    ],
)
def test_what_forbids_is_a_prohibition(sentence: str) -> None:
    """Prohibitions, refusals, and what may not be done without the user."""
    assert is_prohibition(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "I don't know the reservation number.",
        "I really don't have it with me.",
        "You don't have to hurry.",
        "They don't answer.",
        "Don't worry about it.",
        "Please don't hesitate to ask.",
        "Don't forget the milk.",
        "Never mind.",
        "I never got the mail.",
        "I've never been to Oslo.",
        "It was never delivered.",
        "I may not be able to come.",
        "I'm not sure.",
        "It must not have arrived.",
        "Why don't we take the train?",
        "Is smoking forbidden there?",
        "Do you never close?",
        "No, thank you.",
        "No problem!",
        "No worries.",
        "No more questions.",
        "No, that's all for now.",
        "No flights are left.",
        "Always run the tests first.",
        "Book the flight to Oslo.",
        "I need it without delay.",
        "God forbid I miss my flight.",
        "The rules do not forbid it.",
        "Only two of us are travelling.",
        "Only Monday works for me.",
        "I can only fly on Monday.",
        "It shouldn't be a problem.",
        "That should not be needed.",
        "I shouldn't be charged for this.",
        "区别不大",
        "我要别的航班",
        "Ich buche das nicht selbst.",
        "Ich darf nicht fliegen.",
        "Meine Karte funktioniert nicht.",
        "Je ne comprends pas.",
        "Il ne part pas avant midi.",
        "No tengo el número.",
        "No sé cuándo fue.",
        "La página no cambia.",
        "Ho scelto il treno per non guidare.",
        "Non posso cancellare il volo.",
        "Não tenho o número.",
        "Ik heb het niet.",
        "Nie mam numeru.",
        "Я не знаю номер.",
        "Не могу найти билет.",
        "Не волнуйтесь.",
        "Не нашли мой рейс.",
        "Не очень удобно.",
        "别担心",
        "Nie przejmuj się.",
        "Non mi pare.",
        "Non dimenticare il latte.",
        "Mach dir keine Sorgen.",
        "N'hésitez pas à demander.",
        "No te preocupes.",
        "",
    ],
)
def test_telling_refusing_and_asking_forbid_nothing(sentence: str) -> None:
    """Each false alarm stands in every later summary."""
    assert not is_prohibition(sentence)


@pytest.mark.parametrize(
    "text",
    [
        *("never " * 50_000, "no " * 100_000, "don't " * 50_000, "bitte " * 50_000, "leave x" * 40_000),
        *("lösche " * 20_000, "no me " * 20_000, "non " * 20_000, "не " * 30_000, "only " * 20_000, "ne le " * 20_000),
        *("soll " * 20_000, "и " * 30_000, "should not be " * 8_000, "не" + " абв" * 20_000, "je ne pas " * 10_000),
    ],
)
def test_long_lines_are_judged_in_no_time(text: str) -> None:
    """No pattern is tried again from every word to the end."""
    began = time.thread_time()
    is_prohibition(text)
    assert time.thread_time() - began < 5
