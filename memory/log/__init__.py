"""The log of one session, and what it makes of a Memory: the one place where either is written."""
