from __future__ import annotations

from importlib.util import find_spec

# Without the extra "pyg" there is nothing to compare with.
OF_PYG = ["test_convolutions.py", "test_lonely_ranks.py", "test_parallel.py"]
collect_ignore = [] if find_spec("torch_geometric") else OF_PYG
