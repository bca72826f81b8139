"""What runtimes do with a folder: rules with sources, and the commands that serve it."""
