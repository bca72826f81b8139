"""Conversion of a checkpoint with learned positions to another position scheme."""
