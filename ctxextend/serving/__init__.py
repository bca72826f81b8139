"""What engines do with a planned folder, and how they are started."""
