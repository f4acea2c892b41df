"""Back to a role's summary before, in a stored session."""

from __future__ import annotations

from typing import Any

from memory import Memory, StaleCompaction

from .sessions import confirm
from .terminal import CannotRun, one_line


def revert(memory: Memory, role: str, *, yes: bool) -> dict[str, Any]:
    """Make *role*'s compaction before the present one current again, and return what is current then.

    Raises ``CannotRun`` where there is none, where nobody says yes, and where another was published meanwhile.
    """
    journal = memory.journal(role)
    shown = journal.read()
    compaction = shown.current
    of = f"of '{one_line(role, 80)}' in session '{one_line(memory.session_id, 80)}'"
    if compaction is None:
        raise CannotRun(f"there is no summary {of} to go back from; `compactor show` lists the roles that have one")
    confirm(
        f"the summary {of} covers rounds 1-{compaction.last_round}. Go back to the one before, or to none?",
        "nothing was reverted",
        yes=yes,
    )
    try:
        current = journal.revert(base=shown.generation)  # what was said yes to, and no other
    except StaleCompaction as stale:
        raise CannotRun(str(stale)) from stale
    return {
        "generation": journal.read().generation,
        "summary_generation": current.generation if current is not None else None,
        "last_covered_round": current.last_round if current is not None else None,
    }
