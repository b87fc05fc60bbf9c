"""Train GraphSAGE with PyTorch Lightning, whose strategy makes the process group.

python experiments/guests/in_lightning.py [processes]
"""

from __future__ import annotations

import argparse

import lightning
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from torch_geometric.datasets import KarateClub
from torch_geometric.nn import GraphSAGE

import spgnn


class OnWholeGraph(lightning.LightningModule):
    """A step is an epoch: the whole graph at once."""

    def __init__(self) -> None:
        super().__init__()
        self.data = KarateClub()[0]
        torch.manual_seed(0)
        classes = int(self.data.y.max()) + 1
        self.model = GraphSAGE(self.data.num_features, 16, num_layers=2, out_channels=classes)

    def setup(self, stage: str) -> None:
        # Lightning has made the group by now, and wraps the model for averages of gradients later.
        self.graph = spgnn.distribute(self.data, group=torch.distributed.group.WORLD)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        graph, labels = self.graph, self.graph.y
        assert labels is not None
        out = self.model(graph.x, graph.edge_index)
        loss = graph.mean(F.cross_entropy(out, labels, reduction="none"), graph.train_mask)
        epoch = self.current_epoch + 1
        if epoch % 10 == 0 and self.global_rank == 0:
            print(f"epoch {epoch}: loss {loss:.4f}", flush=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)

    def train_dataloader(self) -> DataLoader[torch.Tensor]:
        return DataLoader([torch.zeros(1)])  # type: ignore[arg-type]

    def teardown(self, stage: str) -> None:
        del self.graph


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("devices", nargs="?", type=int, default=2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=parser.parse_args().devices,
        strategy="ddp",
        max_epochs=50,
        use_distributed_sampler=False,  # a step is of all ranks together
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(OnWholeGraph())
