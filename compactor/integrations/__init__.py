"""Adapters for agent frameworks: one extra and one file each, two for LlamaIndex. No other file imports a framework."""
