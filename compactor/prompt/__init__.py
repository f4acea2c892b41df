"""A round as the messages that a model reads: overlaid, in units that stay whole, shortened, counted."""
