from .convolution import (
    Convolution as Convolution,
)
from .convolution import (
    Linear as Linear,
)
from .convolution import (
    check_channels as check_channels,
)
from .convolution import (
    check_options as check_options,
)
from .convolution import (
    copy_from_rank_zero as copy_from_rank_zero,
)
from .convolution import (
    find_widths as find_widths,
)
from .convolution import (
    glorot_ as glorot_,
)
from .convolution import (
    layer_widths as layer_widths,
)
from .convolution import (
    lazy_parts as lazy_parts,
)
from .edge_features import (
    CGConv as CGConv,
)
from .edge_features import (
    GINEConv as GINEConv,
)
from .edge_features import (
    InteractionNetwork as InteractionNetwork,
)
from .edge_features import (
    NNConv as NNConv,
)
from .edge_features import (
    TransformerConv as TransformerConv,
)
from .gat import (
    AttentionConv as AttentionConv,
)
from .gat import (
    GATConv as GATConv,
)
from .gat import (
    GATv2Conv as GATv2Conv,
)
from .label_input import (
    WithLabels as WithLabels,
)
from .layers import (
    APPNP as APPNP,
)
from .layers import (
    NEIGHBOURS as NEIGHBOURS,
)
from .layers import (
    GCN2Conv as GCN2Conv,
)
from .layers import (
    GCNConv as GCNConv,
)
from .layers import (
    GINConv as GINConv,
)
from .layers import (
    GraphConv as GraphConv,
)
from .layers import (
    LGConv as LGConv,
)
from .layers import (
    SAGEConv as SAGEConv,
)
from .layers import (
    SGConv as SGConv,
)
from .layers import (
    TAGConv as TAGConv,
)
from .links import (
    DotProduct as DotProduct,
)
from .links import (
    HadamardMLP as HadamardMLP,
)
from .links import (
    ScoredPairs as ScoredPairs,
)
from .links import (
    pairs_cross_entropy as pairs_cross_entropy,
)
from .loss import (
    UNKNOWN as UNKNOWN,
)
from .loss import (
    count_labelled as count_labelled,
)
from .loss import (
    masked_cross_entropy as masked_cross_entropy,
)
from .metrics import (
    accuracies as accuracies,
)
from .models import (
    GAT as GAT,
)
from .models import (
    GCN as GCN,
)
from .models import (
    GIN as GIN,
)
from .models import (
    GINE as GINE,
)
from .models import (
    MODELS as MODELS,
)
from .models import (
    GATv2 as GATv2,
)
from .models import (
    GraphSAGE as GraphSAGE,
)
from .models import (
    Stack as Stack,
)
from .norm import (
    BatchNorm as BatchNorm,
)
from .norm import (
    GraphNorm as GraphNorm,
)
from .norm import (
    LayerNorm as LayerNorm,
)
from .norm import (
    Norm as Norm,
)
from .norm import (
    PairNorm as PairNorm,
)
from .norm import (
    Stage as Stage,
)
from .norm import (
    flatten_stages as flatten_stages,
)
from .norm import (
    run_stages as run_stages,
)
from .norm import (
    run_until as run_until,
)
from .rowwise import (
    DropoutKeys as DropoutKeys,
)
from .rowwise import (
    dropout as dropout,
)
from .rowwise import (
    dtype_of as dtype_of,
)
from .rowwise import (
    keys_on as keys_on,
)
from .rowwise import (
    multiplied_in as multiplied_in,
)
from .rowwise import (
    weights_of as weights_of,
)
