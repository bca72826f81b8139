"""What a checkpoint's position tables look like, and what in the folder states their length."""
