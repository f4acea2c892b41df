"""Old rounds are made quick to search when there is time: one worker at a time, and what is due comes first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import pytest
from executors import ManualExecutor

from compactor.runner import Indexing


class Scene:
    """Steps that say in turn whether there is more to do, and whether a compactor is idle."""

    def __init__(self, steps: Iterable[bool] = (), executor: Executor | None = None) -> None:
        self.left = list(steps)
        self.taken = 0
        self.idle = True
        self.before: Callable[[], object] = lambda: None
        self.indexing = Indexing(threading.Condition(), self._step, lambda: self.idle, executor)
        self.indexing.due()

    def _step(self) -> bool:
        self.taken += 1
        self.before()
        return self.left.pop(0)


def test_all_that_is_due_is_done_and_no_more() -> None:
    """On the thread that begins, where there is no executor."""
    scene = Scene([True, True, False])
    scene.indexing.run()
    assert scene.taken == 3
    scene.indexing.run()
    assert scene.taken == 3


def test_what_is_published_meanwhile_is_done_as_well() -> None:
    """Though the step that was at work said that it was the last."""
    scene = Scene([False, False])
    scene.before = lambda: scene.indexing.due() if scene.taken == 1 else None
    scene.indexing.run()
    assert scene.taken == 2


def test_while_a_compactor_is_busy_it_waits() -> None:
    """Also between two steps; it goes on when the compactor has come to rest."""
    scene = Scene([True, False])
    scene.idle = False
    scene.indexing.run()
    assert scene.taken == 0
    scene.idle = True
    scene.before = lambda: setattr(scene, "idle", scene.taken > 1)
    scene.indexing.run()
    assert scene.taken == 1
    scene.idle = True
    scene.indexing.run()
    assert scene.taken == 2


def test_a_second_worker_leaves_it_to_the_first() -> None:
    """Nothing is done twice, and nothing is waited for."""
    scene = Scene([True, False])
    scene.before = scene.indexing.run
    scene.indexing.run()
    assert scene.taken == 2


def test_an_executor_has_its_slot_back_after_each_step() -> None:
    """The next is handed to it anew."""
    executor = ManualExecutor()
    scene = Scene([True, False], executor)
    scene.indexing.run()
    assert scene.taken == 1
    scene.indexing.run()
    assert scene.taken == 1, "a worker will be at it"
    executor.run_all()
    assert scene.taken == 2


def test_an_executor_that_takes_no_more_leaves_it_to_the_next_run() -> None:
    """It is shut down, or full."""

    class Full(ManualExecutor):
        def submit(self, *_what: object, **_how: object) -> object:  # type: ignore[override]
            raise RuntimeError("no")

    scene = Scene([True, False], Full())
    scene.indexing.run()
    assert scene.taken == 1
    scene.indexing.run()
    assert scene.taken == 2


def test_a_step_that_raises_can_be_tried_again() -> None:
    """When something is published next."""
    scene = Scene([False])

    def fail() -> None:
        raise OSError("no")

    scene.before = fail
    with pytest.raises(OSError, match="no"):
        scene.indexing.run()
    scene.before = lambda: None
    scene.indexing.run()
    assert scene.taken == 1
    scene.indexing.due()
    scene.indexing.run()
    assert (scene.taken, scene.left) == (2, [])
