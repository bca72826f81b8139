"""Loading, resizing and running transformers models."""
