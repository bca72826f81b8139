"""Figures of what was found, for people to look at."""
