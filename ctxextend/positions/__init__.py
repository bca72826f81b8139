"""The kinds of positions: rows of a table, sinusoids, rotary settings, and unlimited ones."""
