"""A session elsewhere: as plain values, as lines of a file, and as a session of its own."""
