from .block import (
    Block as Block,
)
from .block import (
    Degrees as Degrees,
)
from .block import (
    LocalMatrix as LocalMatrix,
)
from .block import (
    block_pattern as block_pattern,
)
from .codecs import (
    GraphCodecs as GraphCodecs,
)
from .dist_vertices import (
    DistVertices as DistVertices,
)
from .dist_vertices import (
    as_rows as as_rows,
)
from .distgraph import (
    DistGraph as DistGraph,
)
from .dry import (
    DryGraph as DryGraph,
)
from .dry import (
    DryMatrix as DryMatrix,
)
from .edges import (
    Edges as Edges,
)
from .features import (
    Features as Features,
)
from .features import (
    Propagated as Propagated,
)
from .features import (
    densified as densified,
)
from .features import (
    propagate_ as propagate_,
)
from .features import (
    times as times,
)
from .matrices import (
    normalised as normalised,
)
from .moments import (
    Moments as Moments,
)
from .named import (
    Named as Named,
)
from .pairs import (
    matrix_of_sources as matrix_of_sources,
)
from .parameters import (
    check_replicated as check_replicated,
)
from .protocol import (
    RECIPES as RECIPES,
)
from .protocol import (
    Aggregation as Aggregation,
)
from .protocol import (
    AnyGraph as AnyGraph,
)
from .protocol import (
    AttentionScores as AttentionScores,
)
from .protocol import (
    DroppedEdges as DroppedEdges,
)
from .protocol import (
    Graph as Graph,
)
from .protocol import (
    LayerGraph as LayerGraph,
)
from .protocol import (
    Matrix as Matrix,
)
from .protocol import (
    Normalisation as Normalisation,
)
from .protocol import (
    as_graph as as_graph,
)
from .protocol import (
    dense as dense,
)
from .tracked import (
    tracked as tracked,
)
from .trained import (
    Trained as Trained,
)
from .vertices import (
    check_sent as check_sent,
)
from .vertices import (
    copied_from_rank_zero as copied_from_rank_zero,
)
from .vertices import (
    dealt as dealt,
)
