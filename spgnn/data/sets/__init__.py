"""Data sets by name: published ones that are downloaded, and generated ones."""
