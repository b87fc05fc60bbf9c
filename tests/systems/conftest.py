import sys
from pathlib import Path

# Programs import it by this name.
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import systems  # noqa: F401  (registers what they bring)
