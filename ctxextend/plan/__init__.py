"""Planning and writing a resize."""
