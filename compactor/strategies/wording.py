"""What stands in a prompt instead of what was said: in nobody's voice, and always with the way back."""

from __future__ import annotations

from collections.abc import Sequence

from memory.rounds import Attachment

from ..messages.marks import FORBIDS
from ..messages.offloading import cut_beginning, kept_line, size_of

__all__ = ["attachments_line", "cut_beginning", "kept_line", "size_of", "summary_text", "with_sentences"]


def summary_text(summary: str, what: str, reference: str) -> str:
    """Return *summary* as it stands for *what*, which it must not be taken for: whoever said that did not say this."""
    return f"[Summary of {what}, kept in full; reload {reference}]\n{summary}"


def with_sentences(text: str, sentences: Sequence[str]) -> str:
    """Return *text* with what the user forbade, word for word, below it."""
    return "\n".join([text, FORBIDS, *(f"- {sentence}" for sentence in sentences)])


def attachments_line(attachments: Sequence[Attachment], reference: str) -> str:
    """Return the line that stands for *attachments* of one type, of which there is at least one."""
    characters = sum(len(attachment.content) for attachment in attachments)
    times = f"{len(attachments)} × " if len(attachments) > 1 else ""
    return kept_line(f"{times}{attachments[0].type}, {characters:,} characters", reference)
