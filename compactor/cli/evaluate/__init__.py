"""``compactor evaluate``: what survives in the summaries of a user's own transcripts."""
