"""The inspector: a session as a page, for people who would rather look than read."""
