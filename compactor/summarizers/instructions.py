"""Which of a user's sentences are meant to stay in force: rules, prohibitions, preferences, limits, deadlines."""

from __future__ import annotations

import re

__all__ = ["instruction_strength"]

# "I don't know" and "it must have rained" are no rules, "I don't want it" and "it must stay dry" are.
_RULES = (
    r"never(?! mind\b)|(?<!'ve )(?<!’ve )(?<!had )(?<!have )always|must(?! have\b)",
    r"(?<!\bi )(?<!\bwe )(?<!\byou )(?<!\bthey )(?<!\bit )(?<!\bstill )(?<!\balso )(?<!\breally )(?<!\bjust )"
    r"(?:do not|don['’]?t)",
    r"(?:i|we) (?:do not|don['’]?t|won['’]t|will not) (?:ever )?(?:want|like|eat|drink|accept|allow|use)"
    r" (?:you|it|any|anything|to be|the|my|our)",
    r"from now on|going forward|henceforth|at all times|no matter what|what(?:so)?ever happens",
    r"under no circumstances?|in no case|at any (?:cost|price)|without (?:my|asking|telling)",
    r"forbidden|prohibited|not allowed|may not|(?:is|are) off[- ]limits",
    r"(?<!['’]ll )make sure|be sure to|ensure|keep in mind|bear in mind",
    r"ask me (?:before|first)|ask (?:for )?(?:my )?permission",
    r"(?<!t )(?<!not )(?<!you )(?<!i )(?<!to )remember|(?<!i )(?<!t )forget",
)
_WISHES = (
    r"prefer\w{0,6}|(?:i|we)['’]d rather|insist|avoid|stick to|stay (?:under|below|within|away)|instead of|rather than",
    r"deadlines?|due (?:by|on|date)|no later than|budgets?|at most|(?<!you )at least|no more than|no less than",
    r"please (?:only |just )?(?:use|write|keep|format|answer|reply|respond|speak|call me|address me)",
    r"by default|unless|whenever|every time|as long as|exclusively|strictly|mandatory",
    r"requirements?|constraints?|rules?|should(?:n['’]t)? (?:not|only|never|always)|has to|have to be|needs? to be",
    r"(?:it is|it['’]s|is) important (?:that|to(?! me\b| us\b))",
)
# The same in other languages: a few words each, which nearly always give an instruction.
_RULES_ABROAD = (
    r"niemals|nie|immer|auf keinen fall|ab jetzt|ab sofort|darfst|dürfen nicht|verboten|merk dir|frist|bevorzug\w{0,4}",
    r"jamais|toujours|désormais|interdit|n['’]oublie|il faut|dois|doit|préfère|délai",
    r"nunca|siempre|jamás|a partir de ahora|prohibido|recuerda|prefiero|debes|plazo",
    r"sempre|de agora em diante|proibido|lembre|prefiro|prazo|mai più|d['’]ora in poi|vietato|ricorda|preferisco",
    r"nooit|altijd|voortaan|verboden|nigdy|zawsze|никогда|всегда|нельзя|отныне|запомни|обязательно|запрещено",
    r"절대|항상|반드시|앞으로|asla|her zaman",
)
_RULES_UNSPACED = (
    "不要|不得|不准|不许|禁止|必须|务必|永远|绝不|从现在起|以后都|请勿|记住|千万|截止|预算|总是|必須|不可",
    "必ず|絶対|しないで|今後|覚えて|常に|締め切り|予算|하지 ?마",
)


def _any(*patterns: str) -> str:
    return rf"\b(?:{'|'.join(patterns)})\b"


_RULE = re.compile("|".join([_any(*_RULES, *_RULES_ABROAD), r"^(?:please )?only\b", *_RULES_UNSPACED]), re.IGNORECASE)
_WISH = re.compile(_any(*_WISHES), re.IGNORECASE)
_POLITE = re.compile(r"(?:and |so |also )?(?:please|can|could|would|will) (?:you|we)\b", re.IGNORECASE)


def instruction_strength(sentence: str) -> float:
    """Return 1 for what reads as a rule or prohibition, 0.6 for a wish or a limit, 0 for anything else.

    By cue words, so it errs; a question is an instruction only where it is a polite one ("could you never ...").
    """
    if sentence.rstrip().endswith(("?", "？")) and not _POLITE.match(sentence):
        return 0.0
    if _RULE.search(sentence):
        return 1.0
    return 0.6 if _WISH.search(sentence) else 0.0
