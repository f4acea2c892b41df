"""What a store promises, as tests for pytest: whoever writes a store subclasses these classes in his own test suite.

``StoreContract`` is the least. The others are for what a store can do beside; what it can do and no class covers fails.
``compactor.testing`` shows how they are used. Nothing here needs pytest before pytest runs it.
"""

from __future__ import annotations

from .erasing import ErasingStoreContract
from .leases import LeasingStoreContract
from .logs import DurableStoreContract, StoreContract
from .measures import MeasuredStoreContract
from .parts import IndexedStoreContract
from .texts import SearchableStoreContract

__all__ = [
    "DurableStoreContract",
    "ErasingStoreContract",
    "IndexedStoreContract",
    "LeasingStoreContract",
    "MeasuredStoreContract",
    "SearchableStoreContract",
    "StoreContract",
]
