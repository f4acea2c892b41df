"""Adapters: one file a framework, each an extra. A framework is imported by its own file alone."""
