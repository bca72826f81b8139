"""Checkpoints as files on disk, read and written without loading the model."""
