"""Time and threads: who works, who waits, and for how long."""
