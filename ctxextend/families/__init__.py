"""What is known of each architecture, as data."""
