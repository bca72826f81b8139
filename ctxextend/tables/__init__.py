"""Position tables as plain arrays: how new rows are made from learned ones."""
