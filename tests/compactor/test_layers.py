"""The layers: memory, prompts, the compactor's core, and around it the outer ring; imports go inwards only."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import pytest

import compactor

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("memory", "prompts", "compactor")
#: What may use the core and is never used by it.
OUTER = ("cli", "commands", "server", "integrations", "presets", "worker", "__main__")
#: What a program that only keeps its history should not pay for.
HEAVY = (
    "openai",
    "typer",
    "rich",
    "tiktoken",
    "toktok",
    "structlog",
    "asyncio",
    "httpx",
    "sqlalchemy",
    "sqlite3",
    "genai_prices",
)


def layer(module: str) -> int:
    """Return how far out *module* lies: memory is 0."""
    parts = module.split(".")
    if parts[0] == "compactor":
        return 3 if len(parts) > 1 and parts[1] in OUTER else 2
    return PACKAGES.index(parts[0])


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, path: Path) -> Iterator[str]:
    """Give the modules of ours that *module* imports, wherever in it: at the top, in a function, for types only."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
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


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_inwards_only(module: str) -> None:
    """``memory`` ← ``prompts`` ← the core of ``compactor`` ← the outer ring."""
    for imported in imports_of(module, MODULES[module]):
        assert layer(imported) <= layer(module), f"{module} imports {imported}"


def test_the_walk_sees_what_there_is() -> None:
    """Relative, absolute and nested imports are all found: a test that sees nothing proves nothing."""
    seen = {(module, imported) for module, path in MODULES.items() for imported in imports_of(module, path)}

    assert ("compactor.compose", "compactor.prompt.accounting") in seen
    assert ("compactor.prompt.groups", "memory.rounds") in seen
    assert ("compactor.summarizers.base", "memory.errors") in seen
    assert ("compactor.strategies.incremental", "compactor.view") in seen
    assert ("memory.memory", "memory.messages") in seen
    assert ("compactor.transcript", "prompts") in seen
    assert layer("compactor.cli") > layer("compactor.view") > layer("prompts") > layer("memory.rounds")


@pytest.mark.parametrize(
    ("package", "others"),
    [("memory", ("prompts", "compactor", "yaml")), ("prompts", ("compactor",)), ("compactor", ("compactor.cli",))],
)
def test_importing_a_package_imports_only_what_it_needs(package: str, others: tuple[str, ...]) -> None:
    """In a process of its own; what is slow to import waits until it is used."""
    code = f"import sys, {package}; print(*(name for name in {(*HEAVY, *others)!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == []


def test_packages_say_what_is_public() -> None:
    """A package, and a module that hosts import from, has ``__all__``, and all in it is there."""
    for module, path in MODULES.items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        exported = [name for node in tree.body if _is_all(node) for name in ast.literal_eval(node.value)]
        if not exported:
            says_what_it_is_for = len(tree.body) == 1
            assert path.stem != "__init__" or says_what_it_is_for, f"{module} has no __all__"
            continue
        bound = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        bound |= {target.id for node in tree.body for target in _targets(node)}
        bound |= {
            alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
        }
        assert set(exported) <= bound, f"{module}: {set(exported) - bound}"


def _is_all(node: ast.stmt) -> TypeGuard[ast.Assign | ast.AugAssign]:
    """Return whether *node* sets ``__all__`` or adds to it."""
    targets = [node.target] if isinstance(node, ast.AugAssign) else getattr(node, "targets", [])
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _targets(node: ast.stmt) -> Iterator[ast.Name]:
    if isinstance(node, ast.Assign):
        yield from (target for target in node.targets if isinstance(target, ast.Name))
    elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        yield node.target


def test_every_error_that_a_host_can_meet_can_be_imported_from_the_package() -> None:
    """One that a page names and ``compactor`` does not have is found by reading the source only."""
    inner = {"LeasedElsewhere"}  # says within a cycle that it is another process's turn
    assert set(compactor.errors.__all__) - inner <= set(compactor.__all__)
