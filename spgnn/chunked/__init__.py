"""Full graphs larger than memory: rows and columns in turn, from a disk."""
