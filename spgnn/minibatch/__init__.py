"""Training on neighbourhoods of a few vertices at a time."""
