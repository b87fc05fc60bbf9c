import sys
from pathlib import Path

# Programs, not a package: they find their parts beside themselves.
sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))
