"""Checks on a summary before prompts show it: form, length, voice, invented facts and lost facts."""
