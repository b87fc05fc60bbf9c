"""Train a graph neural network on the whole graph.

One process:      python experiments/gcn.py --dataset sbm
Forked ranks:     python experiments/gcn.py --nproc 4 --dataset sbm
torchrun:         torchrun --nproc-per-node 4 experiments/gcn.py --dataset sbm
MPI:              mpiexec -n 4 python experiments/gcn.py --dataset sbm
"""

from __future__ import annotations

import gc
import os
import sys

# Hundreds of ranks would each log that a client's host name is unknown, or a group is destroyed.
# Read when torch is imported, hence before it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from spgnn.signals import die_with_torchrun, end_silently_on_interrupt

# Either may happen in the seconds that importing torch takes.
die_with_torchrun()
end_silently_on_interrupt()

gc.disable()  # what importing makes lasts as long as the process: nobody looks through it

import systems  # noqa: E402, F401

from spgnn.train.run import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
