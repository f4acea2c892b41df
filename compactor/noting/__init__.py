"""A summary as a list of notes, and what a model wants changed in it."""
