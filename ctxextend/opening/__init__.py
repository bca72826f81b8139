"""Open a checkpoint: its model type, its positions, and refusals of unknown types."""
