"""Compare resize methods on one model, one text and one seed, and tune the settings of `bands`."""
