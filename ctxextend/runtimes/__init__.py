"""What engines do with a folder: rules with sources, and the lookup in them."""
