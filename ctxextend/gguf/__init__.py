"""GGUF files: the positions that their metadata states, and their edits."""
