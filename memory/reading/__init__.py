"""Finding things again: places in the log by name, words in its texts, and tools for an agent that does."""
