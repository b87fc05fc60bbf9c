"""The tables and figures of the ICPP'24 paper, one command each; docs/icpp24.md describes them.

python experiments/icpp24.py table2 --scale 0.01
python experiments/icpp24.py scaling-1d --datasets amazon --ranks 4,16,64 --output results
"""

from __future__ import annotations

import sys

import systems  # noqa: F401
from paper.commands import main

if __name__ == "__main__":
    sys.exit(main())
