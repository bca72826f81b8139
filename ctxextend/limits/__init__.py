"""Every statement of length in a checkpoint's files: find it, and edit it for another length."""
