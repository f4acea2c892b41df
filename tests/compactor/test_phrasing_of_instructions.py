"""How people word what is to stay in force, and what only sounds like it."""

from __future__ import annotations

import time

import pytest

from compactor.summarizers.cues import is_prohibition, may_prohibit, rate_instruction

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
