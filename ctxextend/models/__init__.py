"""Models that transformers has loaded."""
