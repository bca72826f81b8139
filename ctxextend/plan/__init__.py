"""From a recipe and a checkpoint to what a resize writes."""
