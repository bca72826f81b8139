"""Proof that one checkpoint is another with resized position tables, and nothing else."""
