"""Sentences to plant in a conversation, with random values: what users tell and ask for, and what tools answer.

There are two sets of wordings: ``ExtractiveSummarizer`` was tuned while looking at ``dev``; ``held-out`` was only
counted.
"""

from __future__ import annotations

import random
import string

from benchmarks.surface_retention import Fact

__all__ = [
    "ALWAYS",
    "CORRECTIONS",
    "NEVER",
    "REPORTS",
    "RESULTS",
    "RULES",
    "USER_FACTS",
    "Wording",
    "correction",
    "fact",
    "values",
]

#: Text, and gold words; and the question that it answers, where one is asked.
Wording = tuple[str, str] | tuple[str, str, str]


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
        (
            "{name} from accounting signs off on everything above {amount}.",
            "{name}|accounting|{amount}",
            "Who in accounting signs off, and above which amount?",
        ),
        (
            "For context, the pilot runs in {city} until the end of {month}.",
            "pilot|{city}|{month}",
            "Where does the pilot run, and until the end of which month?",
        ),
        (
            "Badge {code} belongs to my colleague {name}.",
            "{code}|{name}",
            "Which colleague does badge {code} belong to?",
        ),
        (
            "There's a spare laptop, serial {code}, in the {colour} cabinet.",
            "{code}|{colour}|cabinet",
            "What is the serial of the spare laptop, and in which cabinet is it?",
        ),
        (
            "I usually work from {city} on {day}s.",
            "{city}|{day}s",
            "Where does the user usually work from, and on which day?",
        ),
        (
            "The survey got {n} answers, mostly from {city}.",
            "survey|{n}|{city}",
            "How many answers did the survey get, and mostly from where?",
        ),
        (
            "Just so you know, {name} left the company in {month} {year}.",
            "{name}|left|{month}|{year}",
            "When has {name} left the company?",
        ),
        (
            "Our landlord keeps a deposit of {amount}.",
            "landlord|{amount}",
            "How large is the deposit that the landlord keeps?",
        ),
        ("My grandmother can't digest {food}.", "grandmother|{food}", "What can the user's grandmother not digest?"),
        (
            "The backup goes to {host} every night at {time}.",
            "backup|{host}|{time}",
            "Which host does the backup go to every night?",
        ),
        (
            "I paid {amount} for the {colour} bicycle.",
            "{amount}|{colour}|bicycle",
            "How much was paid for the {colour} bicycle?",
        ),
        (
            "If anything breaks, write to {email}, that's {name}.",
            "{email}|{name}",
            "Who is to be written to if anything breaks?",
        ),
        (
            "Somebody painted the meeting room {colour} and nobody knows why.",
            "meeting|room|{colour}",
            "In which colour is the meeting room painted?",
        ),
        ("The lease ends on {date}.", "lease|{date}", "When does the lease end?"),
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
#: Standing instructions. What is forbidden, and what is to be done each time.
NEVER: list[Wording] = [
    (
        "Never delete anything under {path}.",
        "never|delete|{path}",
        "What must never be deleted?",
    ),
    (
        "Never quote prices in {currency} to {name}.",
        "never|{currency}|{name}",
        "In which currency are prices never quoted?",
    ),
    (
        "Never restart the server {host} during the day.",
        "never|restart|{host}",
        "Which server do we never restart during the day?",
    ),
    (
        "Never mention the project {code} to customers.",
        "never|{code}|customers",
        "Which project do we never mention to customers?",
    ),
    (
        "Never change the table {ident} by hand.",
        "never|{ident}|hand",
        "Which table is never changed by hand?",
    ),
    (
        "Never send invoices to {email}.",
        "never|invoices|{email}",
        "Where do we never send invoices?",
    ),
    (
        "Never book a hotel in {city} above {amount}.",
        "never|{city}|{amount}",
        "Up to what amount may a hotel be booked in {city}?",
    ),
    (
        "Never share the file {path} with {name}.",
        "never|{path}|{name}",
        "Which file is never shared with {name}?",
    ),
]
ALWAYS: list[Wording] = [
    (
        "Always put {email} in copy.",
        "always|{email}|copy",
        "Who is always put in copy?",
    ),
    (
        "Always give amounts in {currency}, rounded to {dd} cents.",
        "always|{currency}|{dd}",
        "In which currency are amounts given, and how rounded?",
    ),
    (
        "Always read {path} before you answer a question about stock.",
        "always|{path}|stock",
        "What is always read before a question about stock?",
    ),
    (
        "Always use the cost centre {code} for travel.",
        "always|{code}|travel",
        "Which cost centre is used for travel?",
    ),
    (
        "Always ask {name} before you order for more than {amount}.",
        "always|{name}|{amount}",
        "Who is asked before we order, and from which amount on?",
    ),
    (
        "Always check {ident} first when an import fails.",
        "always|{ident}|import",
        "What is checked first when an import fails?",
    ),
    (
        "Always end reports with the reference {code}.",
        "always|reports|{code}",
        "Which reference do reports end with?",
    ),
    (
        "Always plan deliveries to {city} for {day}.",
        "always|{city}|{day}",
        "On which day are deliveries to {city} planned?",
    ),
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
    """Return what *wording* says with random values."""
    slots = values(rng)
    text, gold, *question = (part.format(**slots) for part in wording)
    return Fact(text, tuple(gold.split("|")), question="".join(question))


def correction(rng: random.Random, wording: tuple[str, str, str, str]) -> Fact:
    """Return a fact that replaces another."""
    slots = values(rng)
    _, old, new, gold = wording
    return Fact(new.format(**slots), tuple(g.format(**slots) for g in gold.split("|")), old.format(**slots))
