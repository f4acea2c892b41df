"""Adapters for agent frameworks: one file and one extra each. Only its own file imports a framework."""
