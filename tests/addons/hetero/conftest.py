from __future__ import annotations

from importlib.util import find_spec

# Without the extra "pyg" there is nothing to compare with.
collect_ignore = [] if find_spec("torch_geometric") else ["test_batches.py", "test_hetero.py"]
