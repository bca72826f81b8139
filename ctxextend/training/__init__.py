"""Short continued training; imported by the commands that train alone, since it stands on torch."""
