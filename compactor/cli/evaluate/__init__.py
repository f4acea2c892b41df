"""``compactor evaluate``: measures how much of a user's own transcripts survives in summaries."""
