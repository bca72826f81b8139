"""Resize and measure position tables as plain NumPy arrays."""
