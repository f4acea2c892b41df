"""Lists of messages in entries of the log: places there, in short, and ids of texts that stand for others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Place", "checked_runs", "covers", "items_in", "runs_of"]

#: Number of a round, 0 for the header; number of its post, 0 for the user's query.
Place = tuple[int, int]

#: What an id begins with; a place begins with a digit.
_ID = "="
#: No round has more posts, and no session more rounds.
_MOST = 1 << 31


def runs_of(items: Iterable[Place | str]) -> tuple[str, ...]:
    """Return *items* as short texts: posts of a round that follow each other in one, and ids."""
    runs: list[str] = []
    first: Place = (-1, -1)
    last: Place = (-1, -1)
    for item in items:
        if isinstance(item, str):
            runs.append(f"{_ID}{item}")
            last = (-1, -1)
        elif item == (last[0], last[1] + 1):
            last = item
            runs[-1] = f"{first[0]}.{first[1]}-{last[1]}"
        else:
            first = last = item
            runs.append(f"{item[0]}.{item[1]}")
    return tuple(runs)


def items_in(runs: Iterable[str]) -> Iterator[Place | str]:
    """Give the items of which ``runs_of`` made *runs*."""
    for run in runs:
        if run.startswith(_ID):
            yield run[len(_ID) :]
        else:
            number, first, last = _parsed(run)
            yield from ((number, post) for post in range(first, last + 1))


def covers(runs: Iterable[str], sources: Mapping[str, Iterable[str]], erased: Mapping[int, frozenset[int]]) -> bool:
    """Return whether *runs* have one of the posts in *erased*, by their rounds' numbers, or an id that stands for one;
    *sources* says what ids stand for."""
    seen: set[str] = set()
    todo = list(runs)
    while todo:
        run = todo.pop()
        if run.startswith(_ID):
            if run not in seen:
                seen.add(run)
                todo.extend(sources.get(run[len(_ID) :], ()))
            continue
        number, first, last = _parsed(run)
        if any(first <= post <= last for post in erased.get(number, ())):
            return True
    return False


def checked_runs(runs: tuple[str, ...]) -> tuple[str, ...]:
    """Return *runs*. Raises ``ValueError`` where ``runs_of`` cannot have made them."""
    for run in runs:
        if not run.startswith(_ID):
            number, first, last = _parsed(run)
            if not 0 <= number < _MOST or not 0 <= first <= last < _MOST:
                raise ValueError("a run of posts ends before it begins")
    return runs


def _parsed(run: str) -> tuple[int, int, int]:
    number, _, posts = run.partition(".")
    first, _, last = posts.partition("-")
    return int(number), int(first), int(last or first)
