"""Which sentences are meant to stay in force."""

from __future__ import annotations

import time

import pytest

from compactor.summarizers.cues import is_prohibition, may_prohibit, rate_instruction


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


# -- ways to say it --------------------------------------------------------------------------------------------------


FORBIDDING = (
    'Sign letters with "Odile", never with my full name.',
    'Spell it "grey", not "gray", everywhere.',
    'Call my mother "Mrs Okoye", never "Ruth".',
    'Please avoid the word "robust" in whatever you write for me.',
    "Kindly keep to prose, no headings.",
    "Please explain things simply, no jargon.",
    "I want a quiet room, no street side.",
    "I'd like the vegetarian menu, nothing with mushrooms.",
    "I'm not buying anything made of leather: canvas only.",
    "We are not using any plastic in this garden.",
    "Plain text only, no markdown.",
    "Metric units only please, no inches.",
    "No peanuts in anything.",
    "No UK, leave it off.",
    "No meat.",
    "No progress bars in the output.",
    "No hint of garlic.",
    "No answers from memory.",
    "No trace of nuts.",
    "Never shred the contracts.",
    "Never put the keys under the mat.",
    "Never read my letters.",
    "No news tickers.",
    "No changes to the schema.",
    "No errors in the final text, please.",
    "No answer without a source.",
    "No traces of nuts anywhere.",
    "No duplicates in the output.",
    "No signs on the door.",
    "No wait times over an hour.",
    "No comments in the code.",
    "Never fried, never salted.",
    "Never proceed without a backup.",
    "Never feed the dog.",
    "Never embed fonts.",
    "Never share it.",
    "Never used parts, only new ones.",
    "The applicants must not see the scores.",
    "Keep it short, avoid acronyms.",
    "Never, ever call my office.",
    "Use ISO dates, not American ones.",
    "Answer in Danish, not English.",
    "Please, no emojis.",
    "And no speeches, please.",
    "No news to the press, please.",
    'Unterschreibe mit "Odile", nie mit meinem vollen Namen.',
    'Schreib "Straße", nicht "Strasse".',
    'Bitte vermeide das Wort "robust" in allem, was du mir schreibst.',
    "Vermeiden Sie Fachbegriffe.",
    "Bitte in einfachen Worten, keine Abkürzungen.",
    "Nur metrische Einheiten, keine Zoll.",
    "Kein Zucker, bitte.",
    "Keine Nachricht an Anna.",
    "Keine Musterdaten verwenden.",
    "Keine Änderungen am Schema.",
    'Firma con "Odile", nunca con mi nombre completo.',
    'Escribe "vosotros", no "ustedes".',
    'Por favor, evita la palabra "robusto".',
    "Evita las abreviaturas.",
    "Por favor en palabras sencillas, sin abreviaturas.",
    "Nada de tablas.",
    "Signe « Odile », jamais avec mon nom complet.",
    "Écris « courriel », pas « mail ».",
    "Évite le mot « robuste » dans tes textes.",
    "Merci d'éviter les abréviations.",
    "Pas de tableaux.",
    "Réponds en prose, pas de listes.",
    'Assine "Odile", nunca com o meu nome completo.',
    'Escreva "ecrã", não "tela".',
    'Evite a palavra "robusto".',
    "Nada de tabelas.",
    'Firma solo "Odile", mai con il mio nome completo.',
    'Scrivi "e-mail", non "posta".',
    'Evita la parola "robusto".',
    "Niente tabelle.",
)
RULING = (
    "Round to two decimals, always.",
    "When you quote prices, please add the tax.",
    "When I ask for a date, give me the weekday too.",
    "Whenever you draft a mail for me, keep it under six lines.",
    "I'm allergic to penicillin.",
    "My daughter is severely allergic to peanuts.",
    "I can't stand coriander.",
    "I don't eat pork.",
    "I don't like long introductions.",
    "I hate phone calls.",
    "I'm a vegetarian.",
    "The total must stay under 40.",
    "The number of students must stay under 30.",
    "From here on use the 24-hour clock.",
    "One more rule: prices in euros.",
    "In anything you write for me, leave out the surname.",
    "Wenn du mir Preise nennst, gib bitte die Steuer mit an.",
    "Ich bin allergisch gegen Penicillin.",
    "Ich esse kein Schweinefleisch.",
    "Ich kann keine langen Einleitungen ausstehen.",
    "Ich mag keine Listen.",
    "Nenne das Datum als Tag und Monat, immer.",
    "Cuando me des precios, incluye el IVA.",
    "Soy alérgica a la penicilina.",
    "No como carne de cerdo.",
    "No soporto las introducciones largas.",
    "Quand tu me donnes un prix, ajoute la TVA.",
    "Je suis allergique à la pénicilline.",
    "Je ne mange pas de porc.",
    "Je déteste les longues introductions.",
    "Quando me mandar preços, inclua o IVA.",
    "Sou alérgica à penicilina.",
    "Não como carne de porco.",
    "Quando mi dai dei prezzi, aggiungi l'IVA.",
    "Sono allergica alla penicillina.",
    "Non mangio carne di maiale.",
    "Non sopporto le introduzioni lunghe.",
)
TELLING = (
    "No duplicate rows.",
    "No pattern across the sites.",
    "So no change, basically.",
    "No change since Monday.",
    "No answer yet.",
    "No reply.",
    "No wait, Tuesday.",
    "No progress on the permit.",
    "No evidence either way.",
    "No luck with the plumber.",
    "No difference between the two.",
    "No sign of the parcel.",
    "No trouble at all.",
    "No news from the bank yet.",
    "No leaks so far.",
    "No delays, luckily.",
    "She moved out, never paid the rent and never said goodbye.",
    "He bought the boat in May and never used it.",
    "We ordered it twice, never got it.",
    "He called once, never came back.",
    "The applicants must show three references.",
    "Students must register by May.",
    'Column "id" must be present in the table.',
    "I called the office, no answer.",
    "Sent it, no reply.",
    "Call was short, no decision.",
    "Book came, no damage.",
    "I need the numbers by noon, no rush.",
    "Please call him, no hurry.",
    "I'd like a refund, no idea how.",
    "He is not allergic to anything.",
    "I don't like to complain.",
    "I hate to ask.",
    "I'm not seeing any errors.",
    "I'm not using any framework yet.",
    "When you are done, send the file.",
    "When I ask him, he shrugs.",
    "My name is Ines, not Inez.",
    "It was Tuesday, not Monday.",
    "It's always in the hall.",
    "The room is nice, not too big.",
    "Please check, not sure it works.",
    "I'd like to know, not that it matters.",
    "Keine Antwort bisher.",
    "Kein Muster erkennbar.",
    "Keine Veränderung seit Montag.",
    "Kein Unterschied zwischen beiden.",
    "Keine Nachricht von der Bank.",
    "Er ist nicht allergisch gegen Nüsse.",
    "Ich rief an, keine Antwort.",
    "Ich brauche die Zahlen bis Mittag, keine Eile.",
    "Das Zimmer ist schön, nicht zu groß.",
    "Er kaufte das Boot und benutzte es nie.",
    "Ruf mich an, wenn du da bist.",
    "Es war Dienstag, nicht Montag.",
    "La firma del contrato es mañana, no hoy.",
    "No soy alérgico a nada.",
    "Él compró el barco y nunca lo usó.",
    "Llamé, sin respuesta.",
    "Era martes, no lunes.",
    "Pas de nouvelles.",
    "Pas de réponse pour l'instant.",
    "Pas de problème.",
    "Il n'est pas allergique au lait.",
    "C'était mardi, pas lundi.",
    "La chambre est belle, pas trop grande.",
    "Il a acheté le bateau et ne l'a jamais utilisé.",
    "Era terça, não segunda.",
    "Ele não é alérgico a nada.",
    "Ele comprou o barco e nunca o usou.",
    "La firma del contratto è domani, non oggi.",
    "La usa mia sorella, non io.",
    "Era martedì, non lunedì.",
    "Non è allergico a niente.",
    "Niente di nuovo.",
    "Niente risposta ancora.",
    "Ha comprato la barca e non l'ha mai usata.",
)


@pytest.mark.parametrize("sentence", FORBIDDING)
def test_what_is_not_wanted_is_a_prohibition(sentence: str) -> None:
    """Beside a request, a contrast; alone, whatever nobody would tell so."""
    assert is_prohibition(sentence)
    assert may_prohibit(sentence)


@pytest.mark.parametrize("sentence", RULING)
def test_what_is_wanted_every_time_and_what_is_not_borne_are_instructions(sentence: str) -> None:
    """A request for every time that something is written, an allergy, a dislike."""
    assert rate_instruction(sentence) > 0


@pytest.mark.parametrize("sentence", TELLING)
def test_findings_narration_and_duties_of_others_are_none(sentence: str) -> None:
    """What was not found, what somebody never did, what others must do."""
    assert rate_instruction(sentence) == 0
    assert not is_prohibition(sentence)


@pytest.mark.slow
@pytest.mark.parametrize(
    "piece",
    [
        "use, ",
        "use a, never ",
        "please, no ",
        "sign x, ",
        "when you write ",
        "i want, no ",
        "never used ",
        "usa, no ",
        "schreib, kein ",
    ],
)
def test_phrases_over_several_clauses_are_looked_for_in_no_time(piece: str) -> None:
    """However many clauses there are."""
    text = piece * (300_000 // len(piece))
    began = time.thread_time()
    rate_instruction(text)
    is_prohibition(text)
    may_prohibit(text)
    assert time.thread_time() - began < 20
