"""The promises of a store, as pytest classes: subclass them in the test suite of your own store.

Every store has ``StoreContract``; each ability has a class of its own, and an ability without its class fails.
``compactor.testing`` shows an example. Nothing here imports pytest.
"""

from __future__ import annotations

from .erasing import ErasingStoreContract
from .leases import LeasingStoreContract
from .limiting import LimitingStoreContract
from .logs import DurableStoreContract, StoreContract
from .marks import MarkingStoreContract
from .measures import MeasuredStoreContract
from .notices import NotifyingStoreContract
from .parts import IndexedStoreContract
from .texts import SearchableStoreContract

__all__ = [
    "DurableStoreContract",
    "ErasingStoreContract",
    "IndexedStoreContract",
    "LeasingStoreContract",
    "LimitingStoreContract",
    "MarkingStoreContract",
    "MeasuredStoreContract",
    "NotifyingStoreContract",
    "SearchableStoreContract",
    "StoreContract",
]
