"""A comparison of methods as one page that a browser opens, and as a figure."""
