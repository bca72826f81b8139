"""Evaluate checkpoints on a text: losses, passkey retrieval and document retrieval."""
