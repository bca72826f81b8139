"""Statistics of position tables, and the length limits of a checkpoint."""
