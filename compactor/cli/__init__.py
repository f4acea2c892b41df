"""The command line. ``app`` declares the commands, ``session_commands`` and ``archive_commands`` those on sessions."""
