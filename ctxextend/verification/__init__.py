"""Verify that a checkpoint differs from its base only in its position tables."""
