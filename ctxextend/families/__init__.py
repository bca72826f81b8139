"""Facts about model types, as data."""
