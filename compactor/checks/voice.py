"""Tell a text in the first person from one that says what was done: agents repeat "I called ..." to their users."""

from __future__ import annotations

import re

__all__ = ["in_own_voice"]

# Bounded, and no mark opens twice: one that is never closed must not be looked for to the end, from each one.
_OTHERS = re.compile(
    r'"[^"\n]{0,2000}"|“[^“”\n]{0,2000}”|„[^„“”\n]{0,2000}[“”]|«[^«»\n]{0,2000}»|「[^「」\n]{0,2000}」'
    r"|```.{0,20000}?```|`[^`\n]{0,2000}`|(?:→|->|=>)[^\n]{0,4000}",
    re.DOTALL,
)
_LEAD = (
    r"(?:(?:then|next|first|firstly|second|secondly|third|finally|lastly|after (?:that|this)|afterwards|subsequently|so"
    r"|and|but|also|now|here|earlier|previously|as (?:the|an) (?:assistant|agent)|in (?:total|summary|short)),? ){0,3}"
)
# "Having called f(a, b), I ...", "After reading out.csv, we ...".
_CLAUSE = (
    r"(?:(?:(?:after )?having \w+|(?:after|before|by|upon|on|when|while) \w+ing)\b"
    r"(?:[^.!?;:\n]|[.:](?=\S)){0,120}?, (?=(?:i|we)\b))?"
)
_BY_ME = r"\b(?:was|were|been|being|is|are) (?:\w{1,40} ){1,3}by (?:me|us)\b(?![/-])"


def _spaced(pattern: str) -> str:
    """Return *pattern* with its spaces kept in a pattern whose spaces do not count."""
    return pattern.replace(" ", r"\ ")


_OWN_VOICE = re.compile(
    rf"""(?:^|[.!?;…]\s|[。！？；]) [\s>*_#()\d.•–-]{{0,20}}+
      (?: {_spaced(_LEAD + _CLAUSE)}
          (?: (?:i|we) (?: ['’](?:ve|d|ll|m|re)\b | \ (?!/|-)[a-z] )
            | my\ (?:next|first|last|search|query|call|tool) )
        | ich\ (?:habe|werde|rief) | j['’](?:ai|appelle) | je\ (?:vais|suis) | he\ (?:llamado|buscado|ejecutado|usado)
        | ho\ (?:chiamato|cercato|eseguito|usato) | (?:eu\ )?(?:chamei|executei|pesquisei) | я\ \w | ik\ heb
        | 我(?:已|们|調用|调用|搜索|查询|使用|执行|運行|运行|先|將|会|會) | 私は | 제가 | 저는 )
    | {_spaced(_BY_ME)}""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


def in_own_voice(text: str) -> bool:
    """Return whether a sentence of *text* tells in the first person what its speaker did or will do. What stands in
    quotation marks, in code, or behind the arrow of a result is somebody else's. A guess, in time linear in *text*."""
    return _OWN_VOICE.search(_OTHERS.sub(" … ", text)) is not None
