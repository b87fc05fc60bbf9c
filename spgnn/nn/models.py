"""The models that can be asked for by name."""

from __future__ import annotations

from spgnn.nn.gat import GAT, GATv2
from spgnn.nn.gcn import GCN
from spgnn.nn.gin import GIN
from spgnn.nn.sage import GraphSAGE
from spgnn.nn.stack import Stack

MODELS: dict[str, type[Stack]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gin": GIN,
    "gat": GAT,
    "gatv2": GATv2,
}
