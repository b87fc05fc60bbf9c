"""Train GraphSAGE with Ray Train, whose workers make the process group and may be killed.

python experiments/guests/in_ray.py --workers 2 [--directory CHECKPOINTS] [--kill-at EPOCH]

Where a worker is killed, Ray starts as many as there is place for, from the last checkpoint. So it
does where the program is started again with the same directory, with any number of workers.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import ray
import torch
import torch.nn.functional as F
from ray import train
from ray.train.torch import TorchConfig, TorchTrainer
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE

import spgnn


def work(options: dict[str, Any]) -> None:
    """What each worker does."""
    data = KarateClub()[0]
    torch.manual_seed(0)
    model = GraphSAGE(data.num_features, 16, num_layers=2, out_channels=int(data.y.max()) + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    begun, losses = 0, []
    if (checkpoint := train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as directory:
            saved = torch.load(Path(directory, "state.pt"), weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begun, losses = saved["epoch"], saved["losses"]
    graph = spgnn.distribute(data, group=torch.distributed.group.WORLD, model=model)
    labels = graph.y
    assert labels is not None

    for epoch in range(begun + 1, 51):
        out = model(graph.x, graph.edge_index)
        loss = graph.mean(F.cross_entropy(out, labels, reduction="none"), graph.train_mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if epoch % 10 == 0:
            losses.append(f"epoch {epoch}: loss {loss:.4f}")
            metrics = {"losses": losses, "workers": graph.comm.size, "begun": begun}
            with tempfile.TemporaryDirectory() as directory:
                state = {"epoch": epoch, "losses": losses}
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(state, Path(directory, "state.pt"))
                checkpoint = train.Checkpoint.from_directory(directory)
                train.report(metrics, checkpoint=checkpoint if graph.comm.rank == 0 else None)
        last = graph.comm.rank == graph.comm.size - 1
        if epoch == options["kill_at"] and begun == 0 and last:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Print the losses, and how many workers went on from which epoch."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--directory", default=None)
    parser.add_argument("--kill-at", type=int, default=0, help="epoch in which a worker is killed")
    parser.add_argument("--retries", type=int, default=1)
    options = parser.parse_args()
    # A cluster that RAY_ADDRESS names, or one of this machine.
    here = {} if "RAY_ADDRESS" in os.environ else {"num_cpus": options.workers}
    ray.init(log_to_driver=False, **here)
    workers: Any = (1, options.workers)
    trainer = TorchTrainer(
        work,
        train_loop_config={"kill_at": options.kill_at},
        scaling_config=train.ScalingConfig(num_workers=workers),
        run_config=train.RunConfig(
            name="graph",
            storage_path=str(Path(options.directory or tempfile.mkdtemp()).absolute()),
            failure_config=train.FailureConfig(max_failures=options.retries),
        ),
        torch_config=TorchConfig(backend="gloo"),
    )
    metrics: Any = trainer.fit().metrics
    print("\n".join(metrics["losses"]))
    print(f"{metrics['workers']} workers from epoch {metrics['begun'] + 1}")


if __name__ == "__main__":
    main()
