"""What the command line does, one module a command. ``compactor.cli`` declares the options."""
