r"""Serve predictions on a graph that changes: updates come line by line, changed ones go out.

    printf 'add 3 17\nadd 17 3\nx 3 0.5 -1 2\n\n' | python experiments/serve.py --graph graph.npz \
        --weights model.pt --hidden 128 --layers 3
    torchrun --nproc-per-node 4 experiments/serve.py …

Lines are ``add SOURCE TARGET [WEIGHT]``, ``drop SOURCE TARGET`` and ``x VERTEX VALUE …``; an empty
line, or the end, makes an update of those before it. For each update one line of JSON is printed:
the graph's version, and the new class of each vertex whose class is another one. A line that
cannot be is answered by an error, and its update is left out.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from spgnn.signals import end_silently_on_interrupt

end_silently_on_interrupt()  # in the seconds that importing torch takes

# ruff: noqa: E402
import numpy as np
import torch

import spgnn
from spgnn import InputError
from spgnn.comm import Communicator, guarded
from spgnn.command import run, say
from spgnn.errors import check_integer
from spgnn.inference.weights import load_weights
from spgnn.registry import MODELS


def batches(lines: Iterator[str]) -> Iterator[list[str]]:
    """Lines up to an empty one, or the end."""
    batch: list[str] = []
    for line in lines:
        if line.strip():
            batch.append(line)
        elif batch:
            yield batch
            batch = []
    if batch:
        yield batch


def update_of(lines: list[str]) -> dict[str, Any]:
    """The arguments of ``graph.update`` that some lines say.

    Raises
    ------
    InputError
        If one of them says nothing.
    """
    add, drop, weights, ids, rows = [], [], [], [], []
    for line in lines:
        try:
            match line.split():
                case ["add", source, target, *weight] if len(weight) < 2:
                    add.append((np.int64(int(source)), np.int64(int(target))))
                    weights += [float(w) for w in weight]
                case ["drop", source, target]:
                    drop.append((np.int64(int(source)), np.int64(int(target))))
                case ["x", vertex, *values]:
                    ids.append(np.int64(int(vertex)))
                    rows.append([float(v) for v in values])
                case _:
                    raise ValueError
        except (ValueError, OverflowError):
            raise InputError(
                f"{line.strip()!r}: write add SOURCE TARGET [WEIGHT], drop SOURCE TARGET or "
                "x VERTEX VALUE …"
            ) from None
    if len({len(row) for row in rows}) > 1:
        raise InputError("x: rows of different widths")
    given: dict[str, Any] = {
        "add_edges": np.array(add, np.int64).reshape(-1, 2).T,
        "drop_edges": np.array(drop, np.int64).reshape(-1, 2).T,
    }
    if weights:
        given["edge_weight"] = torch.tensor(weights)
    if ids:
        given["x"] = ids, torch.tensor(rows)
    return given


def serve(options: argparse.Namespace, comm: Communicator) -> None:
    """Read updates on rank 0 until they end."""
    for name in ("hidden", "layers"):
        check_integer(f"--{name}", getattr(options, name), 1)
    graph = spgnn.distribute(options.graph, partition=options.partition, comm=comm)
    hidden = [options.hidden] * (options.layers - 1)
    classes = options.classes or graph.num_classes
    model = MODELS[options.model].of([graph.num_features, *hidden, classes])
    load_weights(model, options.weights, comm)
    served = spgnn.Embeddings(model, graph)
    classes_of = served.outputs.argmax(1)
    waiting = batches(iter(sys.stdin)) if comm.rank == 0 else iter(())
    while (lines := comm.from_rank_zero(lambda: next(waiting, None))) is not None:
        answer: dict[str, Any]
        try:
            given = comm.on_rank_zero(lambda lines=lines: update_of(lines))  # type: ignore[misc]
            version = graph.update(**given or {})
            now = spgnn.infer(model, graph, since=served).argmax(1)
            other = (now != classes_of).nonzero()[:, 0]
            mine = torch.stack((graph.vertex_ids[other], now[other]), 1)
            counts = comm.exchange_counts([len(mine)] + [0] * (comm.size - 1))
            every = mine.new_empty(counts.received, 2)
            comm.alltoallv(mine, every, counts).wait()
            answer = {"version": version, "classes": dict(sorted(every.tolist()))}
            classes_of = now
        except InputError as error:
            answer = {"error": str(error)}
        if comm.rank == 0:
            say(json.dumps(answer))


def main() -> int:
    """Parse flags, and serve; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graph", required=True, help="name or path of a data set")
    parser.add_argument(
        "--weights", required=True, help="a state_dict, or a checkpoint's directory"
    )
    parser.add_argument("--model", choices=MODELS, default="sage")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--classes", type=int, help="by default, those of the graph's labels")
    parser.add_argument("--partition", default="gvb")
    options = parser.parse_args()

    def body() -> None:
        comm = spgnn.connect()
        with guarded(comm):
            serve(options, comm)

    return run(body)


if __name__ == "__main__":
    sys.exit(main())
