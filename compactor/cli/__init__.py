"""The command line. ``app`` declares the commands, ``session_commands`` those on stored sessions."""
