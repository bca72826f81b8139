"""The rules of each runtime, as rows that were run or read."""
