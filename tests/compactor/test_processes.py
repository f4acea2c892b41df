"""Processes that end, and processes that fork: neither waits for a model, and neither breaks."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

#: A compactor whose summarizer waits for ``gate``; ``inside`` is set once it does.
SCENE = """
import atexit, os, sys, threading
gate, inside = threading.Event(), threading.Event()
{before_import}
from scene import *
from compactor import *
from compactor.background import State
from compactor.timers import SYSTEM_CLOCK
from compactor.events import *
from compactor.testing import *

def hanging(request):
    inside.set()
    gate.wait()
    return PRICES

memory, heard = memory_of(10), Heard()
compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, hanging, on_event=heard)
"""


def run(code: str, *, before_import: str = "") -> list[str]:
    """Run *code* in a process of its own that must end well, soon and in silence; return what it printed."""
    source = SCENE.format(before_import=textwrap.dedent(before_import)) + textwrap.dedent(code)
    path = os.pathsep.join([str(ROOT), str(Path(__file__).parent), str(ROOT / "tests")])
    # Nothing is left open either: no client of a dependency's is in these processes.
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore,error::ResourceWarning"}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, env=environment, check=False)
    assert done.stderr == ""
    assert done.returncode == 0
    return done.stdout.splitlines()


# The end of the interpreter


def test_the_interpreter_exits_while_a_call_hangs() -> None:
    """Without a word, within seconds, and without waiting for an answer that never comes."""
    (left,) = run(
        """
        import time
        compactor.start()
        assert inside.wait(SOON)
        print(time.monotonic())
        """
    )
    assert time.monotonic() - float(left) < 20


def test_it_exits_with_many_compactors_in_all_states() -> None:
    """Idle, calling, given up, backing off, stopping."""
    code = """
        def failing(request):
            raise OSError
        quick = CONFIG.copy_with(call_timeout=0.01)
        for summarizer, config in [(hanging, CONFIG), (failing, CONFIG), (hanging, quick), (None, CONFIG)] * 5:
            ContextCompactor.for_role(memory_of(10), ROLE, config, summarizer, on_event=heard).start()
        heard.until(Failed, 10)
        heard.until(Published, 5)
        compactor.on_event(own := Heard())
        compactor.start()
        own.until(Started)
        assert compactor.stop(0) is False
        print("leaving")
    """
    # Held, or they would be collected.
    assert run(code.replace("ContextCompactor.for_role(", "heard.keep = ContextCompactor.for_role(")) == ["leaving"]


def test_an_answer_that_comes_while_the_interpreter_exits_is_not_published() -> None:
    """Exit handlers run, modules are about to go: the log is left alone."""
    assert run(
        """
        compactor.start()
        assert inside.wait(SOON)
        """,
        before_import="""
        def late():  # registered first, so run last, when the compactor knows of the exit
            gate.set()
            print(heard.until(Discarded).reason, compactor.get_compaction(), compactor.wait_idle(SOON))
            print([type(event).__name__ for event in compactor.events])
        atexit.register(late)
        """,
    ) == ["interpreter_exit None True", "['Evaluated', 'Started', 'Prepared', 'Discarded']"]


def test_a_host_may_stop_it_and_compact_in_its_own_exit_handler() -> None:
    """One that was registered after the import runs before."""
    assert run(
        """
        gate.set()
        def last():
            print(compactor.compact_now(SOON).end_index, compactor.stop(SOON))
        atexit.register(last)
        """
    ) == ["7 True"]


# Fork


@forks
def test_a_forked_child_is_new_with_locks_of_its_own() -> None:
    """Even where another thread of the parent holds one of them at that moment, and a call is in flight."""
    assert run(
        """
        compactor.start()
        assert inside.wait(SOON)
        holding = threading.Event()

        def hold():
            with compactor._runner._lock, SYSTEM_CLOCK._due, compactor._events._lock, memory._lock:
                holding.set()
                gate.wait()

        threading.Thread(target=hold, daemon=True).start()
        assert holding.wait(SOON)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                assert compactor.status().state is State.NEW
                assert compactor.status().failures == 0
                gate.set()
                add_round(memory)
                assert compactor.compact_now(SOON).end_index == 8
                compactor.on_event(heard)
                for _ in range(5):
                    add_round(memory)
                compactor.start()
                assert compactor.wait_idle(SOON)
                assert end_of(compactor) == 13
                assert compactor.stop(SOON)
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        print("child", os.waitstatus_to_exitcode(status))
        gate.set()
        assert compactor.wait_idle(SOON)
        print("parent", end_of(compactor), compactor.stop(SOON))
        """
    ) == ["child 0", "parent 7 True"]


@forks
def test_a_forked_child_looks_though_a_hosts_condition_hangs_in_the_parent() -> None:
    """The thread that all such looks share is the parent's, and stays there."""
    assert run(
        """
        def hang(view):
            inside.set()
            gate.wait()
            return False

        def make():
            return ContextCompactor.for_role(memory_of(10), ROLE, CONFIG, lambda request: PRICES, trigger=when(hang))

        parents = make()
        parents.start()
        assert inside.wait(SOON)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                gate.set()
                with make() as childs:
                    assert childs.wait_idle(SOON)
                parents.start()
                assert parents.wait_idle(SOON)
                code = 0
            finally:
                os._exit(code)
        print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        gate.set()
        print("parent", parents.wait_idle(SOON), parents.stop(SOON))
        """
    ) == ["child 0", "parent True True"]


@forks
def test_a_forked_child_of_an_adapter_serves_its_own_callers() -> None:
    """Even where a thread of the parent finds or opens a session at that moment."""
    assert run(
        """
        from compactor.integrations.anthropic import Compaction

        compaction, holding = Compaction(8_000), threading.Event()
        compaction.prepare("", messages=[{"role": "user", "content": "Hello."}])

        def hold():
            with compaction._unnamed._lock, compaction.sessions()._lock:
                holding.set()
                gate.wait()

        threading.Thread(target=hold, daemon=True).start()
        assert holding.wait(SOON)
        child = os.fork()
        if child == 0:
            for name in ("", "s"):
                messages = [{"role": "user", "content": name or "Hello."}]
                assert compaction.prepare(name, messages=messages)["messages"] == messages
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        gate.set()
        """
    ) == ["0"]


@forks
def test_a_forked_child_runs_coroutines_on_a_loop_of_its_own() -> None:
    """Neither the host's loop nor the shared one runs there."""
    assert run(
        """
        import asyncio

        async def later(request):
            await asyncio.sleep(0)
            return PRICES

        def in_child(compactor):
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    code = 0 if compactor.compact_now(SOON).end_index == 9 else 2
                finally:
                    os._exit(code)
            print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

        shared = ContextCompactor.for_role(memory_of(12), ROLE, CONFIG, later)
        assert ContextCompactor.for_role(memory_of(9), ROLE, CONFIG, later).compact_now(SOON)
        in_child(shared)

        async def host():
            seldom = CompactorConfig(threshold=50, retain_recent=3)
            async with ContextCompactor.for_role(memory_of(12), ROLE, seldom, later) as compactor:
                await asyncio.to_thread(in_child, compactor)

        asyncio.run(host())
        """
    ) == ["child 0", "child 0"]


@forks
def test_a_back_off_works_in_a_forked_child() -> None:
    """It has a timer thread of its own."""
    assert run(
        """
        fails = [OSError()] * 2
        def summarizer(request):
            if fails:
                raise fails.pop()
            return PRICES
        quick = CONFIG.copy_with(backoff_initial=0.001)
        slow = ContextCompactor.for_role(memory, ROLE, CONFIG, summarizer, on_event=heard)
        slow.start()
        heard.until(Failed)
        mine = ContextCompactor.for_role(memory_of(10), ROLE, quick, summarizer, on_event=heard)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                mine.start()
                heard.until(Published)
                code = 0 if len(of_kind(mine.events, Failed)) == 1 else 2
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        assert slow.stop(SOON)
        """
    ) == ["0"]


@forks
@pytest.mark.parametrize("where", ["in a hook", "in the summarizer"])
def test_a_fork_in_the_compactors_own_thread_leaves_both_working(where: str) -> None:
    """A hook or a client that starts a process: the child begins anew, the parent goes on."""
    code = """
        children = []

        def fork(*_):
            if children:
                return PRICES
            child = os.fork()
            if child:
                children.append(child)
                return PRICES
            children.append(0)
            assert compactor.status().state is State.NEW
            assert compactor.compact_now(SOON).end_index == 7
            return PRICES

        in_a_hook = WHERE == "in a hook"
        compactor = ContextCompactor.for_role(
            memory, ROLE, CONFIG, (lambda request: PRICES) if in_a_hook else fork, on_event=fork if in_a_hook else None
        )
        main = os.getpid()
        real = compactor._runner._run_cycle

        def work(run):
            real(run)
            is_copy = os.getpid() != main and threading.current_thread() is threading.main_thread()
            if is_copy:  # what the child does when its copy of the cycle is through; it has workers of its own, too
                code = 3
                try:
                    assert compactor.status().state is State.NEW
                    assert compactor.compact_now(SOON) is None
                    assert end_of(compactor) == 7
                    refused = []

                    def hook(event):
                        try:
                            compactor.wait_idle(0)
                        except RuntimeError:
                            refused.append(event)

                    compactor.on_event(hook)
                    compactor.revert()
                    code = 0 if refused else 4
                finally:
                    os._exit(code)

        compactor._runner._run_cycle = work
        compactor.start()
        assert compactor.wait_idle(SOON)
        print("child", os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
        print("parent", end_of(compactor), compactor.stop(SOON))
    """
    assert run(f"WHERE = {where!r}\n{textwrap.dedent(code)}") == ["child 0", "parent 7 True"]


@forks
def test_a_run_in_which_the_summarizer_forks_publishes_in_the_parent_alone() -> None:
    """The child has a copy of the run and its answer, and a compactor that was not started."""
    code = """
        main, children = os.getpid(), []

        def fork(request):
            children.append(os.fork())
            return PRICES

        def watch(event):
            name = type(event).__name__
            if os.getpid() != main and name in ("Prepared", "Published", "Discarded"):
                is_late = name == "Discarded" and event.reason == "late" and compactor.get_compaction() is None
                os._exit(0 if is_late else 3)

        compactor = ContextCompactor.for_role(memory, ROLE, CONFIG, fork, on_event=watch)
        compactor.start()
        assert compactor.wait_idle(SOON)
        print("child", os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]))
        print("parent", end_of(compactor), compactor.stop(SOON))
    """
    assert run(code) == ["child 0", "parent 7 True"]


@forks
def test_a_child_compacts_though_another_thread_was_importing_strategies() -> None:
    """They are imported when a first compaction is due: the fork waits until they are."""
    script = """
import faulthandler, os, sys, threading
from compactor import CompactorConfig, ContextCompactor, Memory

importing, release = threading.Event(), threading.Event()

class Slow:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "compactor.strategies":
            importing.set()
            release.wait()

sys.meta_path.insert(0, Slow)
os.register_at_fork(before=release.set)
memory = Memory()
for _ in range(4):
    memory.append({"role": "user", "content": "Where is order 48213-QX? " * 50})
    memory.append({"role": "assistant", "content": "On its way. " * 50})
compactor = ContextCompactor.for_role(memory, "assistant", CompactorConfig(threshold=1, retain_recent=1))
compactor.start()
importing.wait()
child = os.fork()
if child == 0:
    faulthandler.dump_traceback_later(30, exit=True)
    os._exit(0 if compactor.compact_now(20).end_index == 3 else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), compactor.wait_idle(20))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["0", "True"], done.stderr
