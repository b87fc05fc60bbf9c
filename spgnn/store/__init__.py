"""Rows of features wherever they lie: memory, a disk, other ranks; and caches before them."""
