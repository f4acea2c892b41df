"""Tell a reply to the conversation from a summary of it: models asked for the one sometimes write the other."""

from __future__ import annotations

import re

__all__ = ["is_greeting", "is_remark", "is_reply"]

#: A reply is short; a long text that begins with "Hello" is something else.
_LONGEST = 400
#: Shorter still is one that shows only at its end: "It is done. Is there anything else I can help you with?"
_LONGEST_CLOSING = 200

# What replies begin with, said for itself or before an offer, a promise or a refusal.
_GREETING = re.compile(
    r"""(?: (?: hello | hi | hey | greetings | welcome | good\ (?:morning|afternoon|evening) | sure(?:\ thing)?
      | certainly | of\ course | absolutely | great | thanks? | thank\ you | you['’]re\ welcome | no\ problem
      | i\ understand | understood | got\ it | okay | ok | noted | alright )
      \b (?:\ (?:there|again|back|so\ much|everyone|all))? [^\w<]* )+""",
    re.IGNORECASE | re.VERBOSE,
)
# Each names the one who offers or the one to whom: standing instructions, quoted word for word, say "please" as well.
_OFFER = re.compile(
    r"""how\ (?:can|may|could|should)\ i\ (?:help|assist|be\ of)\b
      | how\ would\ you\ like\ to\ (?:proceed|continue)\b
      | what\ (?:can|may|could|should)\ i\ (?:do|help)\b [^.!?\n]{0,60}? \b you\b
      | what\ (?:would|do)\ you\ (?:like|want|need)\ (?:me|to)\b
      | (?:is\ there|do\ you\ need)\ (?:any|some)thing\b [^.!?\n]{0,60}? \b(?:i|you|me)\b
      | anything\ else\ (?:that\ )?(?:i|you|we)\b | let\ me\ know\ (?:[^.!?\n]{0,80}? \b(?:you|i)\b | \W*\Z)
      | feel\ free\ to\ (?:ask|reach|share|let|tell|contact)\b
      | have\ a\ (?:great|nice|good|lovely)\ (?:day|time|trip|flight|evening|night|weekend|one)\b
      | please\ (?:(?:tell|let)\ me\b
          | (?:provide|share|send|paste|upload)\ (?:me\b|your\b|more\b|it\ here\b|the\ (?:conversation|text
            |transcript|messages?|content|details|files?|documents?|information)\b))
      | i(?:['’]m|\ am)\ (?:here|happy|glad|ready)\ to\ (?:help|assist|answer)\b
      | i(?:['’]d|\ would)\ be\ (?:happy|glad)\ to\b""",
    re.IGNORECASE | re.VERBOSE,
)
_REFUSAL = re.compile(
    r"""as\ an\ ai\b
      | (?:i(?:['’]m|\ am)\ (?:very\ |so\ )?sorry|sorry|apologies) [\s,.]* (?:but\ )? i\b
      | (?:unfortunately,?\ )? i\ (?: can['’]t | can\ ?not | am\ (?:not\ able|unable)\ to | won['’]t )
        \ (?:help|assist|comply|fulfill?|provide|summari[sz]e|do\ th(?:at|is)|continue|engage
          |access\ (?:the|this|any)\ con)""",
    re.IGNORECASE | re.VERBOSE,
)
# What a reply says only after it has greeted. A summary in the first person may say it too, but then it names things.
_PROMISE = re.compile(r"i(?:['’]ll|['’]ve| will| have| understand)\b[^:\n\d]{0,80}\Z", re.IGNORECASE)
# Greetings and offers in other languages, one soon after the other.
_ABROAD = re.compile(
    r"""(?: bonjour | salut | hola | hallo | guten | ciao | ol[áa] | привет | здравствуйте | 你好 | 您好 | こんにちは
      | 안녕 ) .{0,80}? (?: (?:comment|que)\ puis-je | en\ qu[ée]\ puedo | c[óo]mo\ puedo | wie\ (?:kann|darf)\ ich
      | (?:come|cosa)\ posso | como\ posso | чем\ (?:я\ )?могу | 可以帮 | 能帮 | 帮助您 | お手伝い | 도와 )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LEADING = re.compile(r"\A\W+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


def is_greeting(text: str) -> bool:
    """Return whether *text* greets or thanks and says nothing else. A guess, of English alone."""
    return len(text) <= _LONGEST and _GREETING.fullmatch(text.strip()) is not None


def is_reply(text: str) -> bool:
    """Return whether *text* greets, offers help or refuses, rather than summarise. A guess, on the safe side: a good
    summary that is taken for a reply would be refused at every attempt."""
    if len(text) > _LONGEST:
        return False
    text = _LEADING.sub("", text).rstrip()
    greeting = _GREETING.match(text)
    rest = text[greeting.end() :] if greeting else text
    if not rest or _OFFER.match(rest) or _REFUSAL.match(rest) or _ABROAD.match(text):
        return True
    if greeting and _PROMISE.match(rest):
        return True
    return len(text) <= _LONGEST_CLOSING and bool(_OFFER.match(_SENTENCE.split(text)[-1]))


# What models say to their reader below a summary; no fact of a conversation begins so.
_REMARK = re.compile(
    r"""\W{0,10} (?:
        (?:i\ (?:really\ |do\ )?)?hope\ (?:this|that|it|the\ summary)\b
      | i(?:['’]ve|\ have)?\ (?:also\ )?(?:tried|included|summari[sz]ed|covered|preserved|omitted|condensed|left\ out)\b
      | (?:this|the)(?:\ above)?\ summary\ (?:above\ )?(?:covers|captures|includes|preserves|reflects|contains|keeps|is
          |was|should|has)\b
      | (?:this|that|the\ above)\ (?:should\ (?:cover|give|help|capture|be)|covers|captures|concludes|completes
          |is\ (?:all|it|the\ end))\b
      | (?:that['’]s|that\ is)\ (?:all|it|the\ (?:end|summary))\b
      | (?:end|conclusion)\ of\ (?:the\ )?summary\b | (?:summary|output)\ (?:ends|complete)
      | note:?\ (?:that\ )?(?:i|this\ summary|the\ (?:above|summary))\b
      | if\ you(?:['’]d)?\ (?:need|want|would|like|have)\b | (?:would|do)\ you\ (?:like|want|need)\b | shall\ i\b
      | (?:please\ )?(?:let\ me\ know|feel\ free)\b | is\ there\ anything\b | happy\ to\b | good\ luck\b
      | (?:many\ )?thank(?:s|\ you)\b | (?:word|token|character)\ count\b
      | (?:approx(?:imately|\.)?|about|~|≈)?\ ?\d{1,5}\ (?:words|tokens|characters)\W{0,5}\Z
      | ich\ hoffe\b | hoffentlich\b | j['’]esp[èe]re\b | espero\ que\b | spero\ che\b | ik\ hoop\b | надеюсь\b
      | 希望(?:这|這|以上|对|對) | 如(?:需|果您|有) | お役に立 | 以上です | 도움이
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_LONGEST_REMARKS = 400


def is_remark(text: str) -> bool:
    """Return whether *text* holds nothing but what models say to their reader below a summary: hopes, offers, what they
    did. A guess, on the safe side: a sentence more in a summary does no harm, and one less may."""
    said = text.strip(" \t\r\n*_`~-=#>")
    if not said:
        return True
    if len(said) > _LONGEST_REMARKS:
        return False
    return is_reply(said) or all(_REMARK.match(one) or is_reply(one) for one in _SENTENCE.split(said) if one.strip())
