from __future__ import annotations

import warnings
from importlib.util import find_spec

# Without the extra "pyg" there is nothing to compare with.
collect_ignore = [] if find_spec("torch_geometric") else ["test_batches.py", "test_hetero.py"]

with warnings.catch_warnings():
    # Importing it warns of what torch will no longer have.
    warnings.simplefilter("ignore")
    if not collect_ignore:
        import torch_geometric.nn  # noqa: F401
