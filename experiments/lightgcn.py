"""Train LightGCN on the whole graph of users and items.

One process:      python experiments/lightgcn.py --dataset interactions-1000-500-20000
Forked ranks:     python experiments/lightgcn.py --nproc 4 --dataset train.csv
torchrun:         torchrun --nproc-per-node 4 experiments/lightgcn.py --dataset train.csv
MPI:              mpiexec -n 4 python experiments/lightgcn.py --dataset train.csv
Published recipe: python experiments/lightgcn.py --dataset gowalla/ --recipe gowalla
"""

from __future__ import annotations

import gc
import os
import sys

# Hundreds of ranks would each log that a client's host name is unknown, or a group is destroyed.
# Read when torch is imported, hence before it.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from spgnn.signals import end_silently_on_interrupt

end_silently_on_interrupt()  # in the seconds that importing torch takes

gc.disable()  # what importing makes lasts as long as the process: nobody looks through it

import systems  # noqa: E402, F401

from spgnn.addons.recommend import main  # noqa: E402

gc.freeze()
gc.enable()

if __name__ == "__main__":
    sys.exit(main())
