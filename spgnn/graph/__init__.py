"""A graph distributed over ranks: its vertices, its halo, its matrices."""
