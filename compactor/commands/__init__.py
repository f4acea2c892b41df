"""What the command line does, one module a command. ``compactor.cli`` declares the options, and ``session_commands``
those of the commands on stored sessions."""
