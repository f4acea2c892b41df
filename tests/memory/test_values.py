"""Records compare, hash and print as any frozen dataclass does."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor import Prices, Usage
from memory.values import ValueObject


@dataclass(frozen=True)
class Plain:
    first: int
    second: str = ""
    hidden: int = field(default=0, repr=False)
    ignored: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Ours(ValueObject):
    first: int
    second: str = ""
    hidden: int = field(default=0, repr=False)
    ignored: int = field(default=0, compare=False)


FIELDS = st.tuples(st.integers(0, 1), st.sampled_from(["", "a"]), st.integers(0, 1), st.integers(0, 1))


@given(FIELDS, FIELDS)
def test_a_value_object_is_like_a_frozen_dataclass(one: tuple[int, str, int, int], other: tuple[int, str, int, int]):
    """Equal, hashed and printed by the same fields; never equal to another class."""
    assert (Ours(*one) == Ours(*other)) is (Plain(*one) == Plain(*other))
    assert len({Ours(*one), Ours(*other)}) == len({Plain(*one), Plain(*other)})
    assert repr(Ours(*one)) == repr(Plain(*one)).replace("Plain", "Ours")
    assert Ours(*one) != Plain(*one)


def test_a_public_record_copies_pickles_and_refuses_changes() -> None:
    """What hosts do with a record of the library works, and two with the same fields are the same."""
    prices = Prices(cached_input=0.25)

    again = pickle.loads(pickle.dumps(prices))  # noqa: S301 - our own bytes
    assert prices == again == replace(Prices(), cached_input=0.25) == copy.deepcopy(prices)
    assert hash(prices) == hash(Prices(cached_input=0.25))
    assert repr(prices).startswith("Prices(cached_input=0.25")
    assert Usage(1) != Usage(2)
    with pytest.raises(FrozenInstanceError):
        prices.cached_input = 0.5  # type: ignore[misc]
