"""Processes whose whole standard error a test compares with what ours has to say."""

from __future__ import annotations

#: What a dependency warns of, in its next release or at the end of the process, is not ours. Of what is, the tests in
#: this process hear: each warning is an error there.
QUIET = {"PYTHONWARNINGS": "ignore"}
