"""The checks that a summary must pass before it may be shown."""

from __future__ import annotations

import re

from prompts import TAGS

from .errors import SummaryRejected
from .summarizers.base import Summary, strip_tags
from .tokens import TokenCounter

__all__ = ["LEAST_SAVING", "MOST_OVER_TARGET", "accept"]

#: A summary must be at most this share of what it replaces.
LEAST_SAVING = 0.9
#: A summary may be this many times as long as it was asked to be: models count badly.
MOST_OVER_TARGET = 2.0
#: A reply to the conversation is short; a long text that begins with "Hello" is something else.
_LONGEST_REPLY = 400
#: Shorter still is a reply that shows only at its end: "It is done. Is there anything else I can help you with?"
_LONGEST_CLOSING = 200

# What replies begin with, said for itself or before an offer, a promise or a refusal.
_GREETING = re.compile(
    r"""(?: (?: hello | hi | hey | greetings | welcome | good\ (?:morning|afternoon|evening) | sure(?:\ thing)?
      | certainly | of\ course | absolutely | great | thanks? | thank\ you | you['’]re\ welcome | no\ problem
      | i\ understand | understood | got\ it | okay | ok | noted | alright )
      \b (?:\ (?:there|again|back|so\ much|everyone|all))? [^\w<]* )+""",
    re.IGNORECASE | re.VERBOSE,
)
_OFFER = re.compile(
    r"""how\ (?:can|may|could|should|would)\ (?:i|you|we)\b
      | what\ (?:can|may|should|would)\ (?:i|you|we)\ (?:do|like|help|need)
      | (?:is\ there|do\ you\ need)\ (?:any|some)thing\b | anything\ else\b
      | let\ me\ know\b | feel\ free\ to\b | have\ a\ (?:great|nice|good|lovely)\b
      | please\ (?:provide|share|send|paste|upload|tell\ me|let\ me)\b
      | i(?:['’]m|\ am)\ (?:here|happy|glad|ready)\ to\b | i(?:['’]d|\ would)\ be\ (?:happy|glad)\ to\b""",
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
# What a reply says only after it has greeted: a summary in the first person may say it too.
_PROMISE = re.compile(r"i(?:['’]ll|['’]ve| will| have| understand)\b[^:\n]{0,80}\Z", re.IGNORECASE)
# Greetings and offers in other languages, one soon after the other.
_ABROAD = re.compile(
    r"""(?: bonjour | salut | hola | hallo | guten | ciao | ol[áa] | привет | здравствуйте | 你好 | 您好 | こんにちは
      | 안녕 ) .{0,80}? (?: (?:comment|que)\ puis-je | en\ qu[ée]\ puedo | c[óo]mo\ puedo | wie\ (?:kann|darf)\ ich
      | (?:come|cosa)\ posso | como\ posso | чем\ (?:я\ )?могу | 可以帮 | 能帮 | 帮助您 | お手伝い | 도와 )""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_LEADING = re.compile(r"\A\W+")
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_TAG = re.compile(rf"</?(?:{'|'.join(TAGS)})\b[^<>]*>", re.IGNORECASE)


def accept(
    answer: object, *, source: str, source_tokens: int, target_tokens: int | None, count: TokenCounter
) -> tuple[Summary, int]:
    """Return the summarizer's *answer* without the tags around it, and its tokens.

    *source* is the previous summary and the conversation as the summarizer read them. Raises ``SummaryRejected`` naming
    the first check that the answer fails.
    """
    summary = Summary(answer) if isinstance(answer, str) else answer
    if not isinstance(summary, Summary) or not isinstance(summary.text, str):
        raise SummaryRejected(
            "not_text", f"the summarizer returned {type(answer).__name__}; it must return a str or a Summary"
        )
    text = strip_tags(summary.text)
    if not any(character.isalnum() for character in text):
        raise SummaryRejected("empty", "the summarizer's answer holds no text; look at its prompt and its token limit")
    if is_greeting(text):
        raise SummaryRejected(
            "greeting", "the summarizer replied to the conversation instead of summarising it; look at its prompt"
        )
    if repeats(text, source):
        raise SummaryRejected("echo", "the summarizer repeated the conversation instead of summarising it")
    tokens = count(text)
    if tokens > source_tokens * LEAST_SAVING:
        raise SummaryRejected(
            "no_progress", f"the summary has {tokens} tokens, and what it replaces only {source_tokens}"
        )
    if target_tokens is not None and tokens > MOST_OVER_TARGET * target_tokens:
        raise SummaryRejected(
            "oversized",
            f"the summary has {tokens} tokens, over {MOST_OVER_TARGET:g} times the {target_tokens} it was asked for;"
            " raise target_tokens, or state the length in the prompt",
        )
    return Summary(text, summary.usage, summary.model), tokens


def is_greeting(text: str) -> bool:
    """Return whether *text* is a reply that greets, offers help or refuses, rather than a summary."""
    if len(text) > _LONGEST_REPLY:
        return False
    text = _LEADING.sub("", text).rstrip()
    greeting = _GREETING.match(text)
    rest = text[greeting.end() :] if greeting else text
    if not rest or _OFFER.match(rest) or _REFUSAL.match(rest) or _ABROAD.match(text):
        return True
    if greeting and _PROMISE.match(rest):
        return True
    return len(text) <= _LONGEST_CLOSING and bool(_OFFER.match(_SENTENCE.split(text)[-1]))


def repeats(text: str, source: str) -> bool:
    """Return whether *text* is a verbatim stretch of at least half of *source*, white space and tags aside."""
    said, read = _bare(text), _bare(source)
    return 2 * len(said) >= len(read) and said in read


def _bare(text: str) -> str:
    return " ".join(_TAG.sub(" ", text.replace("&lt;", "<")).split())
