"""Which of a user's sentences are meant to stay in force: rules, prohibitions, preferences, limits, deadlines."""

from __future__ import annotations

import re

from .filed import Filed

__all__ = ["PROHIBITIONS", "instruction_strength", "is_prohibition", "may_prohibit"]

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


# What forbids, or asks not to go on without the user. "I never got it", "you don't have to" and "don't worry" do not.
# Each pattern stands behind its cues, which are in small letters and have ``|`` between them: see ``PROHIBITIONS``.
_NO_ORDER = r"(?:worry|mind|know|think|see|get me wrong|hesitate|forget|remember|understand|have|need|believe|bother)\b"
_PROHIBITIONS = (
    (
        "never",
        r"(?<!\bi )(?<!\bwe )(?<!\bhe )(?<!\bshe )(?<!\bthey )(?<!\bit )(?<!\byou )(?<!['’]ve )(?<!['’]s )(?<!['’]d )"
        r"(?<!have )(?<!has )(?<!had )(?<!was )(?<!were )(?<!is )(?<!am )(?<!also )never(?! mind\b| been\b| had\b)",
    ),
    ("never", r"never (?:want|allow|accept|agree|ever)|(?:must|should|shall|may|is|are) never"),
    (
        "do not|don't|don’t|dont",
        r"(?<!\bi )(?<!\bwe )(?<!\byou )(?<!\bthey )(?<!\bit )(?<!\bstill )(?<!\balso )(?<!\breally )(?<!\bjust )"
        rf"(?<!\bthat )(?<!\bwhich )(?<!\bwho )(?<!\bwhy )(?<!s )(?:do not|don['’]?t)(?! {_NO_ORDER})",
    ),
    (
        "do not|don't|don’t|won't|won’t|will not",
        r"(?:i|we) (?:(?:really|also|just|still|absolutely|definitely) )?(?:do not|don['’]t|won['’]t|will not)"
        r" (?:ever )?(?:want|allow|accept|permit|authori[sz]e|agree|consent|approve)",
    ),
    (
        "would not|wouldn|rather not|s not",
        r"(?:i|we) (?:would not|wouldn['’]t) (?:want|like|accept)|(?:i|we)['’]d rather not|let['’]?s not",
    ),
    (
        "must not|mustn|not to",
        r"must(?: not|n['’]t)(?! have\b)|not to be (?!confused)\w+|(?:is|are) not to",
    ),
    ("not ", r"you (?:may|shall|can|should|are|will) ?not (?!sure|able|aware|going|have|wrong)"),
    ("you can|you should|you won", r"you (?:can|should|won)['’]?t"),
    (
        "should not|shouldn|shall not|shalln",
        r"(?<!\bi )(?<!\bwe )(?:should|shall)(?: not|n['’]t) (?:ever )?be"
        r" (?!needed|required|delayed|surprised|involved)"
        r"(?:\w+(?:ed|tten|ken|ven|len|den)|sent|made|done|put|run|read|cut|sold|paid|told|shown|seen|kept|bought)",
    ),
    (" only", r"you (?:may|must|should|shall) only|(?:must|may|should|shall) only (?:ever )?be"),
    ("nobody|no one|no-one", r"(?:nobody|no one|no-one) (?:may|must|should|shall|can|else)"),
    (
        "under no|in no|on no|at no|by no",
        r"(?:under|in) no circumstances?|in no case|on no account|at no (?:point|time)|by no means",
    ),
    (
        "without",
        r"without (?:first |ever )?"
        r"(?:asking|telling|checking|consulting|confirming|changing|touching|altering|deleting)",
    ),
    ("exceed", r"(?:not|n['’]t) exceed"),
    (
        "without",
        r"without (?:my|our|the user['’]?s|prior|explicit|express|written)(?: \w+){0,3}"
        r" (?:ok|okay|go-ahead|permission|approval|consent|confirmation|say-so|knowledge|authori[sz]ation|agreement)",
    ),
    ("forbid|prohibit", r"(?<!god )(?<!heaven )(?<!not )(?<!n['’]t )(?<!nothing )(?:forbid|prohibit)s?"),
    (
        "forbidden|prohibited|limits",
        r"(?<!was )(?<!were )(?:strictly |absolutely )?(?:forbidden|prohibited)|(?:is|are) (?:strictly )?off[- ]limits",
    ),
    (
        "refrain|steer clear|hands off|away from",
        r"refrain from|steer clear|hands off|stay away from|keep away from",
    ),
    (
        "me before|me first|us before|us first",
        r"(?:ask|check with|confirm with|consult|call|tell|warn) (?:me|us) (?:before|first)",
    ),
    ("unless i|until i", r"(?:unless|until) i (?:say|tell|ask|confirm|approve|agree|allow|give|explicitly)"),
)
# What one is told to do or not to do: "only two of us" limits nobody.
_DEED = (
    r"(?:use|book|call|contact|email|send|change|edit|modify|touch|write|read|run|deploy|pay|buy|charge|work|delete|remove"
    r"|reply|answer|respond|speak|talk|show|share|commit|push|merge|install|access|accept|cancel|refund|take|choose|pick"
    r"|consider|look|search|test|tell|ask|give|go|keep|make|do|create|connect|query|download|upload|open|move|add)"
)
# At the beginning of a sentence, or behind what is said to be polite. "No flights are left" forbids nothing, nor does
# the Spanish "No tengo ...".
_ORDERS = (
    (
        "only",
        rf"only (?:ever )?{_DEED}\b|{_DEED} (?:(?:to|on|with|in|from|at|it|them) )?only\b|only [^.!?,]{{1,40}} may\b",
    ),
    ("avoid|stop |not ", r"avoid\b|stop \w+ing\b|not (?:before|without|until)\b"),
    ("leave ", r"leave [^.!?]{1,60}\b(?:alone|untouched|as (?:it is|they are))\b"),
    (
        "no ",
        r"(?:absolutely |strictly |definitely )?no (?!one\b|problem|thank|worries|need\b|idea|wonder|doubt|matter"
        r"|longer\b|rush|hurry|way\b|not\b|i\b|it\b|that\b|this\b|you\b|we\b|they\b|they['’]|more than\b|please\b"
        r"|other questions?|(?:tengo|tiene|sé|puedo|puede|quiero|recuerdo|entiendo|creo|hay|es|está|estoy|he|ha"
        r"|funciona|importa|gracias|te preocupes|te olvides|olvides?|dudes?)\b"
        r"|(?:further|more|other) (?:question|help|assist))"
        r"[a-z][\w-]+(?![\w-])(?! (?:is|are|was|were|has|have|can|will)\b)",
    ),
)
# "Don't worry", "don't forget"; and words that only look like orders.
_NO_ORDER_RU = (
    r"(?!волну|беспоко|пережива|стесня|забуд|забыва|случай|чай\b|край\b|они\b|эти\b|мои\b|твои\b|свои\b|наши\b|почти\b"
    r"|пять\b|шесть\b|девять\b|десять\b|опять\b)"
)
_PROHIBITIONS_ABROAD = (
    (
        "niemals|nie |keinen|verboten|nicht|ohne ",
        r"niemals|nie (?:wieder|ohne|vor|nach|mehr)|auf keinen fall|unter keinen umständen|verboten"
        r"|(?<!ich )(?:darf|darfst|dürfen|soll|sollen|sollst) [^.!?]{0,60}nicht"
        r"|ohne (?:rückfrage|rücksprache|meine|mich)",
    ),
    ("bitte ", r"bitte [^.!?]{0,60}(?:nicht|keine?n?)"),
    (
        "jamais|aucun|interdit|sans ",
        r"(?<!n['’]ai )jamais|en aucun cas|sous aucun prétexte|interdit|sans (?:mon|ma|me)",
    ),
    (
        " pas| jamais| plus",
        r"(?<!je )(?<!il )(?<!ils )(?<!elle )(?<!elles )(?<!\bon )(?<!ça )(?<!qui )(?:ne |n['’])"
        r"(?:(?:le|la|les|me|nous|lui|leur|y|en) |[lm]['’])?(?!est|ai|a |as |sais|suis|sont|peux|y |avai|oubli|hésit)"
        r"\w+ (?:pas|jamais|plus)",
    ),
    (
        " pas| jamais| plus",
        r"(?:je|nous) ne (?:veux|voulons|souhaite|souhaitons) pas|(?:il ne faut|on ne doit) (?:pas|jamais)"
        r"|(?<!pour )ne (?:pas|jamais|plus) (?:l['’]|l[ae]s? )?\w+(?:er|ir|re)",
    ),
    (
        "nunca|jamás|prohibid|bajo ninguna|ningún|sin ",
        r"(?<!yo )nunca(?! he\b)|jamás|prohibid[oa]|bajo ninguna|en ningún caso|sin (?:mi|preguntar|permiso)",
    ),
    (
        "no ",
        r"no (?:(?:l[aeo]s?|me|nos|se l[aeo]s?) )?"
        r"(?:(?:borr|elimin|modifiqu|cambi|toqu|enví|compr|reserv|cancel|pagu|llam|publiqu|ejecut|instal|mand|gast"
        r"|contact|acept)(?:e|es|en)|us(?:es|en)"
        r"|(?:compart|escrib|sobrescrib|hag|dig|pong|vend|respond|abr)(?:a|as|an))",
    ),
    (
        "mai più|non |vietato|nessun|senza ",
        r"mai più|non [^.!?]{1,40} mai|vietato|in nessun caso|senza (?:il mio|la mia|chieder)",
    ),
    (
        "non ",
        r"(?<!per )(?<!di )non (?:(?:l[aeoi]|mi|ci|gli) )?(?!pare\b|mare\b|dimentic)"
        r"\w+(?:[aei]re|[aei]r(?:l[aeoi]|mi|ci|gli|ne))",
    ),
    ("proibid|hipótese|sem ", r"proibid[oa]|em hipótese alguma|sem (?:a minha|minha|o meu|perguntar)"),
    (
        "não ",
        r"não (?:(?:apagu|delet|alter|mud|envi|us|compr|reserv|cancel|pagu|ligu|toqu|compartilh)(?:e|es|em)"
        r"|(?:exclu|mex|escrev|faç|dig|ponh)(?:a|as|am))",
    ),
    (
        "nooit|onder geen|verboden|zonder |nigdy|nie wolno|pod żadnym|zabronion",
        r"nooit|onder geen|verboden|zonder (?:mijn|te vragen)|nigdy|nie wolno|pod żadnym|zabronion\w+",
    ),
    ("nie ", r"nie (?!tutaj|dzisiaj|wczoraj|przejmuj|zapominaj)\w+[auyi]j(?:cie)?"),
    (
        "никогда не|нельзя|запрещ|ни в коем|без моего|asla|kesinlikle",
        r"никогда не|нельзя|запрещено|запрещаю|ни в коем случае|без моего|asla|kesinlikle [^.!?]{0,60}m[ae]y?",
    ),
    ("не ", rf"не {_NO_ORDER_RU}\w+(?:[аяую]й|[аяуюе]йте)(?:ся|сь)?"),
)
_ORDERS_ABROAD = (
    (
        " nicht| nie| kein",
        r"(?:lösch|änder|buch|send|schick|ruf|benutz|verwend|nutz|fass|rühr|schreib|stornier|verschieb|veröffentlich"
        r"|teil|bezahl|zahl|kauf|speicher|überschreib|installier|start|kontaktier|erwähn|antwort|erstell|entfern|ersetz"
        r"|gib|nimm|tu|mach(?!\w* (?:dir|euch|sie sich) keine))"
        r"(?:e|en|n|t)?(?: sie)? (?:[^.!?]{0,60} )?(?:nichts?|nie|keine?[nmrs]?)\b",
    ),
    ("non ", r"non (?:(?:l[aeoi]|mi|ci|gli) )?(?!dimentic)\w{2,}(?:ate|ete|ite)\b"),
    (
        " niet| geen",
        r"(?:verwijder|wijzig|verander|stuur|boek|bel|gebruik|koop|betaal|annuleer|raak|deel|schrijf|doe)"
        r" (?:[^.!?]{0,60} )?(?:niet|niets|geen)\b",
    ),
    ("не ", rf"не {_NO_ORDER_RU}\w+(?:[^л\W]и(?:те)?|лите|[джтв]ь(?:те)?)(?:ся|сь)?\b"),
)
_PROHIBITIONS_UNSPACED = (
    (
        "不|禁止|勿|绝不|絕不|未经|未經|别",
        "不要|不得|不准|不许|禁止|绝不|絕不|请勿|請勿|切勿|未经|未經|不可以|别再|千万别|(?:^|[,，。;；、请請])别(?![的人名处说担客忘急])",
    ),
    (
        "ないで|してはいけ|てはならない|지|금지",
        "しないで|ないでください|してはいけ|てはならない|하지 ?마|지 ?마세요|지 ?말아|금지",
    ),
)


def _any(*patterns: str) -> str:
    return rf"\b(?:{'|'.join(patterns)})\b"


_RULE = re.compile("|".join([_any(*_RULES, *_RULES_ABROAD), r"^(?:please )?only\b", *_RULES_UNSPACED]), re.IGNORECASE)
_WISH = re.compile(_any(*_WISHES), re.IGNORECASE)
_BEGIN = (
    r"^(?:(?:but|and|so|also|again|remember|ok|okay|please|just"
    r"|bitte|und|aber|por favor|y|pero|s['’]il (?:vous|te) plaît|per favore|ma|e|alstublieft|пожалуйста|и|но|а)[,:]? )*"
)
#: What forbids: each pattern behind its cues, of which one stands in all that it matches.
PROHIBITIONS = (
    *((cues, _any(pattern)) for cues, pattern in (*_PROHIBITIONS, *_PROHIBITIONS_ABROAD)),
    *((cues, f"{_BEGIN}(?:{pattern})") for cues, pattern in (*_ORDERS, *_ORDERS_ABROAD)),
    *_PROHIBITIONS_UNSPACED,
)
_PROHIBITION = Filed(PROHIBITIONS)
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


def may_prohibit(text: str) -> bool:
    """Return whether a sentence of *text* may be a prohibition. One look at all of it, which mostly says no, takes half
    as long as to part it into sentences."""
    # Escapes in JSON, and words that are cut because they are too long, are other letters in a sentence.
    as_in_sentences = text.isascii() and "{" not in text and "[" not in text
    return not as_in_sentences or _PROHIBITION.has_cue(" ".join(text.split()))


def is_prohibition(sentence: str) -> bool:
    """Return whether *sentence* forbids something, or asks not to do it without the user. By cue words, so it errs: a
    refusal such as "I don't want any insurance" counts, and of questions only polite ones ("could you never ...")."""
    if sentence.rstrip().endswith(("?", "？")) and not _POLITE.match(sentence):
        return False
    return _PROHIBITION.matches(sentence)
