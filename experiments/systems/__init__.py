"""What exists for one paper each, a system a file; importing this package registers all of it.

Programs in ``experiments/`` begin with ``import systems``. A program elsewhere does so with this
folder's parent in ``PYTHONPATH``. Systems import from the doors of spgnn's rooms alone.
"""

from spgnn.registry import DATASETS

for _name in ("reddit", "amazon", "protein", "papers", "products"):
    DATASETS.add(f"{_name}-like", "systems.stand_ins:load_stand_in")
DATASETS.add("expanded-COPIES-NAME", "systems.stand_ins:load_expanded")
