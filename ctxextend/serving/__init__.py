"""What engines do with a planned output, and how they are started."""
