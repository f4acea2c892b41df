"""What a summary is asked before it may be shown: is it one, whose voice is it, is anything made up or lost."""
