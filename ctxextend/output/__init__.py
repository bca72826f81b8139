"""What an output folder contains, and the one function that writes it."""
