"""Fails unless the tests reach far enough: covered branches of each package, and lines of test to lines of source."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

PACKAGES = ("memory", "compactor", "prompts")
LEAST_BRANCHES = 0.95
LEAST_TESTS = 1.3

#: Tests that ship in a package.
SHIPPED = "memory/stores/contract"

ROOT = Path(__file__).resolve().parent.parent


def lines(folder: str) -> int:
    files = (ROOT / folder).rglob("*.py")
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def branches() -> dict[str, float]:
    """Return the share of branches that the tests take, by package."""
    report = subprocess.run(
        [sys.executable, "-m", "coverage", "json", "-q", "-o", "-"], cwd=ROOT, check=True, capture_output=True
    )
    taken: Counter[str] = Counter()
    there: Counter[str] = Counter()
    for path, found in json.loads(report.stdout)["files"].items():
        package = Path(path).parts[0]
        taken[package] += found["summary"]["covered_branches"]
        there[package] += found["summary"]["num_branches"]
    return {package: taken[package] / there[package] for package in PACKAGES}


def main() -> str | None:
    shares, shipped = branches(), lines(SHIPPED)
    ratio = (lines("tests") + shipped) / (sum(map(lines, PACKAGES)) - shipped)
    print(*(f"{package}: {share:.1%} of branches" for package, share in shares.items()), sep=", ")
    print(f"{ratio:.2f} lines of test per line of source")
    if min(shares.values()) < LEAST_BRANCHES:
        return f"less than {LEAST_BRANCHES:.0%} of the branches of a package are covered: test what is missing above"
    if ratio < LEAST_TESTS:
        return f"fewer than {LEAST_TESTS} lines of test per line of source: what is not tested yet?"
    return None


if __name__ == "__main__":
    sys.exit(main())
