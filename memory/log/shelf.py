"""One role's live reductions by their rounds, each with the number of its entry in the log.

Where rounds are read from the store, so are the reductions of rounds that the role's compaction covers: no prompt
shows them, unless the compaction is reverted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..overlays import Reduction

if TYPE_CHECKING:
    from .archive import Archive

__all__ = ["Place", "Shelf"]


class Place(NamedTuple):
    """Where one round's reductions stand."""

    #: The round's number.
    round: int
    #: The numbers of the entries, in the order of the posts that the reductions are on.
    entries: tuple[int, ...]


class Shelf(Mapping[str, tuple[Reduction, ...]]):
    """What ``Reductions.by_round`` is in a Memory. It never changes."""

    __slots__ = ("_archive", "_held", "places")

    def __init__(
        self,
        archive: Archive,
        places: Mapping[str, Place] | None = None,
        held: Mapping[str, tuple[Reduction, ...]] | None = None,
    ) -> None:
        self._archive = archive
        #: By the round's id.
        self.places: Mapping[str, Place] = {} if places is None else places
        self._held: Mapping[str, tuple[Reduction, ...]] = {} if held is None else held

    def get(self, round_id: str, default: Any = None, /) -> Any:
        # Prompts ask for every round that they show: most have none, and those that have are held.
        held = self._held.get(round_id)
        if held is not None:
            return held
        return self._read(round_id) if round_id in self.places else default

    def __getitem__(self, round_id: str) -> tuple[Reduction, ...]:
        held = self._held.get(round_id)
        return self._read(round_id) if held is None else held

    @property
    def count(self) -> int:
        """How many reductions there are, for which none is read."""
        return sum(len(place.entries) for place in self.places.values())

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)

    def __contains__(self, round_id: object) -> bool:
        return round_id in self.places

    def __repr__(self) -> str:
        return f"Shelf({self._held!r})"

    def with_round(self, round_id: str, number: int, live: tuple[Reduction, ...], entry: int) -> Shelf:
        """Return it with *live* as the reductions of a round; one of them that is new was published by *entry*."""
        places, held = dict(self.places), dict(self._held)
        before = places.pop(round_id, Place(number, ()))
        known = dict(zip(map(_span, held.pop(round_id, None) or self.get(round_id, ())), before.entries, strict=True))
        if live:
            places[round_id] = Place(number, tuple(known.get(_span(one), entry) for one in live))
            held[round_id] = live
        return Shelf(self._archive, places, held)

    def reaching_back_to(self, covered: int) -> Shelf:
        """Return it with what is on the rounds after *covered* held in memory."""
        shown = {round_id: place.entries for round_id, place in self.places.items() if place.round > covered}
        missing = [entry for round_id, entries in shown.items() if round_id not in self._held for entry in entries]
        found = self._archive.reductions(missing) if missing else {}
        held = {
            round_id: self._held.get(round_id) or tuple(found[entry] for entry in entries)
            for round_id, entries in shown.items()
        }
        return Shelf(self._archive, self.places, held)

    def _read(self, round_id: str) -> tuple[Reduction, ...]:
        entries = self.places[round_id].entries
        found = self._archive.reductions(entries)
        return tuple(found[entry] for entry in entries)


def _span(one: Reduction) -> tuple[int, int]:
    """Return what tells a live reduction from the others of its round: no two overlap."""
    return one.first_number, one.last_number
