"""A model host changes its history in any way; after each ``sync`` the log shows what the model knows to be right."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from compactor import InMemoryStore, Memory, Synced

Message = dict[str, Any]
#: Short words that users and agents say again and again; the first characters of all other texts are unique.
WORDS = ("ok", "yes", "continue", "done")


@dataclass(eq=False)
class Item:
    """A message of the host's list. A summary of the host's own is not to be in the log."""

    message: Message
    is_own: bool = False


class Host:
    """A host that holds *body*, and knows what the log is to show: *shown*."""

    def __init__(self, *, words: int, makes_copies: bool) -> None:
        self.store, self.words, self.makes_copies = InMemoryStore(), words, makes_copies
        self.memory = Memory("s", store=self.store)
        self.system: list[Message] = []
        self.body: list[Item] = []
        self.shown: list[Item] = []
        #: What the log shows, and the neighbours in the list, since the last call; whether ``sync`` remembers that call.
        self.logged: list[Item] = []
        self.neighbours: set[tuple[Item | None, Item | None]] = set()
        self.is_remembered, self.has_objects, self.is_doubtful = False, False, False
        self._numbers = count()

    # -- what a host does ----------------------------------------------------------------------------------------------

    def say(self, at: int) -> None:
        """A turn: a question, perhaps calls with their results, an answer that may still be missing."""
        new: list[Message] = [{"role": "user", "content": self.make_text(at)}]
        if at % 4 == 0:
            ids = [f"c{next(self._numbers)}" for _ in range(1 + at % 3)]
            function = {"name": "look", "arguments": '{"a": 1}' if self.words else f'{{"a": {next(self._numbers)}}}'}
            new.append(
                {"role": "assistant", "content": None, "tool_calls": [{"id": one, "function": function} for one in ids]}
            )
            new += [{"role": "tool", "tool_call_id": one, "content": self.make_text(at)} for one in ids]
        if at % 5:
            new.append({"role": "assistant", "content": self.make_text(at // 2)})
        self.add(new)

    def make_text(self, at: int) -> str:
        return WORDS[at % self.words] if self.words and at % 7 < 4 else f"text {next(self._numbers)}"

    def add(self, messages: list[Message]) -> None:
        items = [Item(one) for one in messages]
        self.body += items
        self.shown += items

    def go_back(self, at: int) -> None:
        """Cut the list; what the host held behind that place is not to be shown any more."""
        place = self.skip_results(at % (len(self.body) + 1))
        if 0 < place < len(self.body) and (undone := [one for one in self.body[place:] if not one.is_own]):
            first = self.shown.index(undone[0])
            if self.body[place].is_own:  # what it had summarized is undone, too
                first = max((self.shown.index(one) + 1 for one in self.body[:place] if not one.is_own), default=first)
            del self.shown[first:]
            del self.body[place:]
            self.is_doubtful |= self.words > 0  # it may say the same again

    def fork(self, at: int) -> None:
        self.go_back(max(len(self.body) - 1 - at % 7, 0))
        self.say(at // 3)

    def edit_last(self, at: int) -> None:
        if self.body and self.body[-1].message["role"] != "tool":
            role = self.body[-1].message["role"]
            self.go_back(len(self.body) - 1)
            self.add([{"role": role, "content": self.make_text(at)}])

    def drop_oldest(self, at: int) -> None:
        self.replace(0, at % (len(self.body) + 1), [])

    def drop_middle(self, at: int) -> None:
        self.replace(1 + at % 3, 1 + at % 3 + at // 3, [])

    def summarize(self, at: int) -> None:
        """Put a summary in the place of messages: in front, or behind the first ones."""
        self.replace(at % 3, at % 3 + 2 + at // 4, [{"role": "user", "content": f"summary {next(self._numbers)}"}])

    def summarize_as_system(self, at: int) -> None:
        """Put a summary in front, as a system message: it stands in the header."""
        self.replace(0, 2 + at // 4, [])
        self.system = [{"role": "system", "content": f"summary {next(self._numbers)}"}]

    def replace(self, first: int, last: int, own: list[Message]) -> None:
        last = self.skip_results(last)
        if first < last < len(self.body) and not (first and self.body[first].message["role"] == "tool"):
            if own and last - first <= len(own) and not all(one.is_own for one in self.body[first:last]):
                self.is_doubtful = True  # as many messages as before: an edit
            self.body[first:last] = [Item(one, is_own=True) for one in own]

    def skip_results(self, place: int) -> int:
        """No host keeps a result without its call."""
        while place < len(self.body) and self.body[place].message["role"] == "tool":
            place += 1
        return place

    def replay(self, _at: int) -> None:
        """Make every object anew."""
        for item in self.body:
            item.message = copy.deepcopy(item.message)
        self.has_objects = False

    def restart(self, _at: int) -> None:
        self.is_remembered = self.has_objects = False
        self.memory = Memory("s", store=self.store)

    def append(self, at: int) -> None:
        """An adapter hands over the final answer at once; the history has it too."""
        self.sync()
        self.add([{"role": "assistant", "content": self.make_text(at)}])
        self.memory.append(self.body[-1].message)

    # -- and what is to be so then -------------------------------------------------------------------------------------

    def sync(self) -> None:
        if self.makes_copies:
            self.replay(0)
        history = [*self.system, *(one.message for one in self.body)]
        synced = self.memory.sync(history)
        self.check(synced)
        again = self.memory.sync(history)
        assert (again.appended, again.undone, again.skipped) == (0, 0, synced.skipped)
        assert again.references == synced.references
        self.logged, self.is_remembered, self.has_objects, self.is_doubtful = [*self.shown], True, True, False
        self.neighbours = {(one, other) for one, _, other in self.list_neighbours()}

    def check(self, synced: Synced) -> None:
        references = synced.references[len(self.system) :]
        assert synced.appended + synced.kept + synced.skipped == len(self.system) + len(self.body)
        skipped = [one for one, ref in zip(self.body, references, strict=True) if ref is None]
        assert all(one.is_own for one in skipped)  # nothing that the host says is missing
        shown = self.show()
        if shown == [say(one.message) for one in self.shown] and len(skipped) == sum(one.is_own for one in self.body):
            assert synced.undone <= sum(one not in self.shown for one in self.logged)
            return
        assert not self.body or not self.is_certain()
        # In doubt, the host's version: its list ends the log, behind nothing but what it dropped.
        dropped = [say(one.message) for one in self.shown if one not in self.body]
        left = [one for one in self.body if one not in skipped]
        items = list[Item]()
        for one in reversed(shown):
            if left and one == say(left[-1].message):
                items.append(left.pop())
            elif one in dropped:
                items.append(next(item for item in self.shown if item not in self.body and say(item.message) == one))
            else:  # what the host edited away is not shown, unless it says again what followed
                assert self.words
                items.append(Item({"role": one[0], "content": one[1]}))
        assert not left
        for one in self.body:
            one.is_own = one in skipped
        self.shown = items[::-1]

    def is_certain(self) -> bool:
        """Return whether the call can know what the host did."""
        if self.is_doubtful or (self.words and not self.has_objects):
            return False
        holes = self.list_neighbours()
        for place, (one, own, other) in enumerate(holes):
            if (one, other) in self.neighbours and self.is_remembered:
                continue
            end = holes[place + 1][2] if holes[place + 1 :] else None
            behind = self.body[self.find(other) : self.find(end)]
            known = [item for item in behind if item in self.logged]
            if own and (len(known) < 4 or all(item.message["role"] != "user" for item in known)):
                return False
            if not own and len(known) < (1 if self.has_objects else 4):
                return False
        return True

    def find(self, item: Item | None) -> int:
        return len(self.body) if item is None else self.body.index(item)

    def list_neighbours(self) -> list[tuple[Item | None, int, Item | None]]:
        """Return both neighbours of each hole in the list, and how many messages of the host's own are there."""
        holes, last, own = list[tuple[Item | None, int, Item | None]](), None, 0
        for item in [*self.body, None]:
            if item is not None and item.is_own:
                own += 1
                continue
            places = [
                self.shown.index(one) if one is not None else end for one, end in ((last, -1), (item, len(self.shown)))
            ]
            is_next = places[1] == places[0] + 1
            if own or not is_next:
                holes.append((last, own, item))
            last, own = item, 0
        return holes

    def show(self) -> list[Any]:
        return [say(one) for one in self.memory.messages()[len(self.memory.header) :]]


def say(message: Message) -> Any:
    """Return what *message* says, without ids."""
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    return message["role"], message["content"], calls


ACTIONS: list[Callable[[Host, int], None]] = [
    Host.say,
    Host.say,
    Host.say,
    Host.go_back,
    Host.fork,
    Host.edit_last,
    Host.drop_oldest,
    Host.drop_middle,
    Host.summarize,
    Host.summarize_as_system,
    Host.replay,
    Host.restart,
    Host.append,
]
STEPS = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 60)), max_size=25)


@given(STEPS, st.integers(0, 4), st.booleans())
def test_the_log_shows_what_the_host_said(
    steps: list[tuple[Callable[[Host, int], None], int]], words: int, makes_copies: bool
) -> None:
    """A list that begins with what repeats, has holes and summaries, or consists of the objects of the last call."""
    host = Host(words=words, makes_copies=makes_copies)
    for act, at in steps:
        act(host, at)
        host.sync()
