"""Compare approximate wires on one data set: accuracy and time to accuracy against bytes.

Forked ranks: python experiments/tradeoff.py --nproc 8 --dataset cora --runs 10 --plot cora.png
torchrun:     torchrun --nproc-per-node 8 experiments/tradeoff.py --dataset cora
MPI:          mpiexec -n 8 python experiments/tradeoff.py --dataset cora
A few:        python experiments/tradeoff.py --nproc 4 --settings exact,bits-4,delay-1,never
"""

from __future__ import annotations

import os
import sys

# Hundreds of ranks would each log that a client's host name is unknown, or a group is destroyed.
# Read when torch is imported, hence before it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from spgnn.train.tradeoff import main

if __name__ == "__main__":
    sys.exit(main())
