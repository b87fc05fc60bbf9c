"""Neighbourhoods of a few vertices, as functions of hashes."""
