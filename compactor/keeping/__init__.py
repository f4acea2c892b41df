"""What outlasts a cycle: publications, answers that were paid for, whose turn it is to ask, failures."""
