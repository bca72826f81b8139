"""Continued training; imports torch, so only commands that train import it."""
