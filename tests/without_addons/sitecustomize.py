"""On PYTHONPATH, in a process and all that it starts, ``spgnn.addons`` is not installed."""

from __future__ import annotations

import sys


class _NoAddons:
    """Finds nothing, and says that the add-ons are missing."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "spgnn.addons" or name.startswith("spgnn.addons."):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)


sys.meta_path.insert(0, _NoAddons)  # type: ignore[arg-type]
