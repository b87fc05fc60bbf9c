from .batch import (
    Batch as Batch,
)
from .column_batches import (
    SplitBlock as SplitBlock,
)
from .feature_rows import (
    Counts as Counts,
)
from .feature_rows import (
    DiskRows as DiskRows,
)
from .feature_rows import (
    MemoryRows as MemoryRows,
)
from .feature_rows import (
    Rows as Rows,
)
from .feature_rows import (
    Wait as Wait,
)
from .feature_rows import (
    check_ids as check_ids,
)
from .feature_rows import (
    copy_rows as copy_rows,
)
from .feature_rows import (
    finish_read as finish_read,
)
from .feature_rows import (
    open_reader as open_reader,
)
from .growth import (
    RowEntries as RowEntries,
)
from .link_loader import (
    LinkNeighborLoader as LinkNeighborLoader,
)
from .loader import (
    Mode as Mode,
)
from .loader import (
    NeighborLoader as NeighborLoader,
)
from .loader import (
    features_of as features_of,
)
from .rank_batches import (
    Clusters as Clusters,
)
from .rank_batches import (
    Options as Options,
)
from .rank_batches import (
    RankBatches as RankBatches,
)
from .rank_batches import (
    seed_order as seed_order,
)
from .rank_graph import (
    Boundary as Boundary,
)
from .rank_graph import (
    Metadata as Metadata,
)
from .rank_graph import (
    RankGraph as RankGraph,
)
from .rank_graph import (
    as_dtype as as_dtype,
)
from .rank_graph import (
    mask_of as mask_of,
)
from .rank_graph import (
    rows_as_bytes as rows_as_bytes,
)
from .rank_sampler import (
    RankSampler as RankSampler,
)
from .rank_sampler import (
    RowRequests as RowRequests,
)
from .remote_rows import (
    RemoteRows as RemoteRows,
)
from .remote_rows import (
    Requests as Requests,
)
from .remote_rows import (
    rows_of_ranks as rows_of_ranks,
)
from .remote_rows import (
    take as take,
)
from .sampled_graph import (
    SampledGraph as SampledGraph,
)
from .sampled_graph import (
    on_disk as on_disk,
)
from .sampled_graph import (
    sampled_graph as sampled_graph,
)
from .sampling import (
    Draw as Draw,
)
from .sampling import (
    Hop as Hop,
)
from .sampling import (
    Place as Place,
)
from .sampling import (
    Sample as Sample,
)
from .sampling import (
    SampleCounts as SampleCounts,
)
from .sampling import (
    SamplerName as SamplerName,
)
from .sampling import (
    offsets_of as offsets_of,
)
from .sampling import (
    relabel as relabel,
)
from .subgraphs import (
    ClusterSampler as ClusterSampler,
)
from .threads import (
    in_background as in_background,
)
from .threads import (
    in_order as in_order,
)
from .to_device import (
    CopyAhead as CopyAhead,
)
