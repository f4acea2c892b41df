"""The layers: what the architecture page draws; imports go down only."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

import compactor
import memory
from compactor import ContextError, Event

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("memory", "prompts", "compactor")
#: The pictures of docs/architecture.md, from top to bottom and from left to right: each module imports what stands behind
#: it. A package stands for those of its modules that are not named.
LAYERS = """
    compactor.__main__ compactor.cli compactor.server compactor.inspector compactor.telemetry compactor.mcp compactor.workers compactor.presets compactor.testing compactor.integrations compactor

    compactor.sessions compactor.health
    compactor.background compactor.compose compactor.difference
    compactor.runner
    compactor.cycle
    compactor.strategies compactor.cost compactor.triggers compactor.prompt.fit
    compactor.view
    compactor.summarize compactor.journal compactor.notes
    compactor.acceptance
    compactor.summarizers compactor.transcript
    compactor.formats compactor.prompt compactor.host_rounds compactor.tokens compactor.media compactor.models compactor.plan
    compactor.events compactor.timers compactor.coroutines compactor.errors compactor.config compactor._siblings compactor.lazy_imports compactor._interrupt

    prompts

    memory.stores.contract memory
    memory.recall memory.memory
    memory.transfer memory.journal memory.sync memory.alignment memory.fingerprints
    memory.log.session_log memory.search
    memory.log memory.visibility memory.usage memory.places memory.references
    memory.stores
    memory.packed memory.entries memory.overlays memory.messages
    memory.events memory.io_threads memory.hooks memory.rounds memory.arguments memory.patterns memory.values memory.errors
"""
ORDER = LAYERS.split()
#: Imports for types alone, of a record that holds or makes one of a module before it.
FOR_TYPES = {
    ("memory.transfer.fork", "memory.memory"),
    ("memory.transfer.state_dict", "memory.memory"),
    ("memory.journal", "memory.memory"),
    ("memory.sync", "memory.memory"),
    ("memory.visibility", "memory.log.state"),
    ("memory.log.redaction", "memory.log.state"),
    ("memory.overlays", "memory.entries"),
    ("compactor.prompt.token_cache", "compactor.view"),
}
#: What a program that only keeps its history should not pay for.
HEAVY = (
    "openai",
    "typer",
    "rich",
    "tiktoken",
    "splintr",
    "structlog",
    "asyncio",
    "httpx",
    "sqlalchemy",
    "sqlite3",
    "genai_prices",
    "yaml",
    "regex",
    "concurrent.futures",
    "logging",
    "difflib",
    # Parts of ours that a first prompt does not need.
    "compactor.acceptance",
    "compactor.config",
    "compactor.cycle",
    "compactor.events",
    "compactor.strategies",
    "compactor.summarizers.content",
    "compactor.summarizers.openai",
    "compactor.summarizers.choice",
    "compactor.summarizers.statements",
    "memory.log.checkpoint",
    "memory.transfer.fork",
    "memory.transfer.state_dict",
)


def place_of(module: str) -> int:
    """Return the place in ``ORDER`` of *module*, or else of the innermost package around it that has one."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(len(parts), 1, -1)] or parts
    return next((ORDER.index(name) for name in names if name in ORDER), -1)


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports_of(module: str, path: Path) -> frozenset[str]:
    """Return the modules of ours that *module* imports, wherever in it: at the top, in a function, for types only."""
    return frozenset(_imports_of(module, path))


def _imports_of(module: str, path: Path) -> Iterator[str]:
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.partition(".")[0] in PACKAGES)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, *([node.module] if node.module else [])])
            if origin.partition(".")[0] in PACKAGES:
                yield from (
                    f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in MODULES else origin for alias in node.names
                )


MODULES = modules()


def exported(path: Path) -> set[str]:
    """Return the names in ``__all__`` of the module at *path*; empty if it has none."""
    if "__all__" not in path.read_text(encoding="utf-8"):
        return set()
    return {name for node in parse(path).body if _is_all(node) for name in ast.literal_eval(node.value)}


def _is_all(node: ast.stmt) -> TypeGuard[ast.Assign | ast.AugAssign]:
    """Return whether *node* sets ``__all__`` or adds to it."""
    targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def runs_before(module: str) -> set[str]:
    """Return the modules that *module* imports, and the packages around them: these are imported with them."""
    imported = {name for name in imports_of(module, MODULES[module]) if (module, name) not in FOR_TYPES}
    around = {name.rpartition(".")[0] for name in imported} - {"", *PACKAGES}
    return {name for name in imported | around if not f"{module}.".startswith(f"{name}.")}


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """What each module imports."""
    return {module: runs_before(module) for module in MODULES}


def test_imports_go_down_the_picture_only(graph: dict[str, set[str]]) -> None:
    """At the top of a module, within functions and for types: no module imports one that the picture has above it."""
    assert [module for module in graph if place_of(module) < 0] == [], "the picture does not show them"
    upwards = [
        f"{module} imports {imported}"
        for module, imports in graph.items()
        for imported in imports
        if place_of(module) > place_of(imported)
    ]
    assert upwards == []


def test_no_modules_import_each_other(graph: dict[str, set[str]]) -> None:
    """Neither two of them nor more in a circle, within a package or across packages."""
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, with the circle


def test_the_picture_shows_what_there_is() -> None:
    """Nothing stands in the list that does not exist or that the page does not name."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for name in ORDER:
        last = name.rpartition(".")[2]
        assert name in MODULES, name
        assert last in page or last.startswith("_"), name


def test_the_walk_sees_what_there_is() -> None:
    """Relative, absolute and nested imports are all found: a test that sees nothing proves nothing."""
    seen = {(module, imported) for module, path in MODULES.items() for imported in imports_of(module, path)}

    assert ("compactor.compose", "compactor.prompt.token_cache") in seen
    assert ("compactor.prompt.groups", "memory.rounds") in seen
    assert ("compactor.summarizers.base", "memory.errors") in seen
    assert ("compactor.strategies.incremental", "compactor.view") in seen
    assert ("memory.memory", "memory.messages") in seen
    assert ("compactor.transcript", "prompts") in seen
    assert seen >= FOR_TYPES
    assert place_of("compactor.cli.app") < place_of("compactor.view") < place_of("prompts") < place_of("memory.rounds")
    assert place_of("compactor.prompt.fit") < place_of("compactor.view") < place_of("compactor.prompt.groups")
    assert place_of("compactor.unheard_of") < 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "others"),
    [("memory", ("prompts", "compactor")), ("prompts", ("compactor",)), ("compactor", ("compactor.cli",))],
)
def test_importing_a_package_imports_only_what_it_needs(package: str, others: tuple[str, ...]) -> None:
    """In a process of its own; what is slow to import waits until it is used."""
    code = f"import sys, {package}; print(*(name for name in {(*HEAVY, *others)!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_the_public_modules_are_those_of_the_page_about_versions() -> None:
    """A module has ``__all__`` if its names are promised, and then the page lists it."""
    page = (ROOT / "docs" / "versioning.md").read_text(encoding="utf-8")
    listed = [
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)
    ]
    assert sorted(listed) == sorted(module for module, path in MODULES.items() if exported(path))


@pytest.mark.parametrize("module", [module for module, path in MODULES.items() if exported(path)])
def test_all_names_that_a_module_exports_are_there(module: str) -> None:
    """Bound by an import, a definition or an assignment, also where it is imported when it is first used."""
    tree = parse(MODULES[module])
    bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    bound |= {target.id for node in tree.body for target in _targets(node)}
    later = [inner for node in tree.body if isinstance(node, ast.If) for inner in node.body]
    imports = [node for node in [*tree.body, *later] if isinstance(node, ast.ImportFrom)]
    bound |= {alias.asname or alias.name for node in imports for alias in node.names}
    assert exported(MODULES[module]) <= bound


def _targets(node: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(node, ast.Assign):
        yield from (target for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target


def test_everything_that_memory_exports_is_exported_by_compactor() -> None:
    """A program needs one import line."""
    assert set(memory.__all__) <= set(compactor.__all__)


def test_every_error_that_a_host_can_meet_can_be_imported_from_the_package() -> None:
    """One that a page names and ``compactor`` does not have is found by reading the source only."""
    inner = {"LeasedElsewhere"}  # says within a cycle that it is another process's turn
    errors = {
        name
        for module in (memory.errors, compactor.errors)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, ContextError)
    }
    assert len(errors) > 20
    assert errors - inner <= set(compactor.__all__)


def test_every_event_can_be_imported_from_the_package() -> None:
    """Whoever writes a hook can import what it gets."""
    events = {
        name
        for module in (memory.events, compactor.events)
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Event)
    }
    assert len(events) > 20
    assert events <= set(compactor.__all__)
