"""Methods side by side: on one model, one text and one seed."""
