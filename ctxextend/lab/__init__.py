"""Evaluate checkpoints on a text: losses, effective lengths and document retrieval."""
