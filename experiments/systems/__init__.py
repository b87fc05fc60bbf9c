"""Systems that exist for one paper each, a file a system; importing this registers all of them.

Programs in ``experiments/`` begin with ``import systems``. A program elsewhere does so with this
folder's parent in ``PYTHONPATH``. Systems import from the doors of spgnn's rooms alone.
"""

from spgnn.registry import (
    CODECS,
    DATASETS,
    METHODS,
    MODELS,
    MODES,
    SAMPLERS,
    SCHEMES,
    SECTIONS,
    TABLES,
)

for _name in ("reddit", "amazon", "protein", "papers", "products"):
    DATASETS.add(f"{_name}-like", "systems.stand_ins:load_stand_in")
DATASETS.add("expanded-COPIES-NAME", "paper.expansion:load_expanded")

METHODS.add("graph-vb", "systems.graph_vb:graph_vb")  # Acer et al., of ICPP'24
SCHEMES.add("1.5d-replicated", "systems.icpp24:REPLICATED")  # ICPP'24

SCHEMES.add("vertex-cut with clones", "systems.clones:SCHEME")  # DistGNN
SECTIONS.add("TrainConfig.clones", "systems.clones:Clones")
CODECS.add("local_gradients", "systems.clones:LocalGradients")

CODECS.add("fresh", "systems.sancus:SkipUnchanged")  # Sancus
SECTIONS.add("TrainConfig.fresh", "systems.sancus:Skipping")

SECTIONS.add("TrainConfig.labels", "systems.label_propagation:LabelInputs")  # UniMP
SECTIONS.add("TrainConfig.rebalance", "systems.roc:Rebalancing")  # Roc

MODELS.add("gat-relu-first", "systems.relu_first:ReluFirstGAT")  # DistGNN-MB
SAMPLERS.add("agl", "systems.agl:StoredNeighbourhoods")
SAMPLERS.add("ladies", "systems.ladies:LadiesSampler")
SAMPLERS.add("fastgcn", "systems.ladies:FastGCNSampler")
MODES.add("columns", "systems.columns:Columns")  # P3
MODES.add("aligraph", "systems.aligraph:CachedNeighbours")
MODES.add("replicated", "systems.replicas:Replicated")  # PaGraph
MODES.add("aep", "paper.aep:EmbeddingPush")  # DistGNN-MB
MODES.add("llcg", "systems.llcg:Corrected")
TABLES.add("packed", "systems.packed_rows:PackedRows")  # DiskGNN
