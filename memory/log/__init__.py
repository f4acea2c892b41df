"""The log of one session and the state that it gives a Memory; both are written here alone."""
