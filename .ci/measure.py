"""Fails unless the tests cover enough branches of each package."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

PACKAGES = ("memory", "compactor", "prompts")
MIN_BRANCHES = 0.95

ROOT = Path(__file__).resolve().parent.parent


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
    shares = branches()
    print(*(f"{package}: {share:.1%} of branches" for package, share in shares.items()), sep=", ")
    if min(shares.values()) < MIN_BRANCHES:
        return f"less than {MIN_BRANCHES:.0%} of the branches of a package are covered: test what is missing above"
    return None


if __name__ == "__main__":
    sys.exit(main())
