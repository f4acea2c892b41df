"""The inspector: shows one session as a web page."""
