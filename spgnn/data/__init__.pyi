from .adapters import (
    from_dgl as from_dgl,
)
from .adapters import (
    from_ogb as from_ogb,
)
from .adapters import (
    from_pyg as from_pyg,
)
from .adapters import (
    from_scipy as from_scipy,
)
from .adapters import (
    is_said_of_all as is_said_of_all,
)
from .adapters import (
    lists_of_vertices as lists_of_vertices,
)
from .adapters import (
    masks_of_lists as masks_of_lists,
)
from .adapters import (
    numbers_vertices as numbers_vertices,
)
from .adapters import (
    of_own_rows as of_own_rows,
)
from .adapters import (
    rows_of_vertices as rows_of_vertices,
)
from .adapters import (
    with_edge_index as with_edge_index,
)
from .arrays import (
    Archive as Archive,
)
from .distribute import (
    Arrangement as Arrangement,
)
from .distribute import (
    RankShare as RankShare,
)
from .distribute import (
    Slices as Slices,
)
from .distribute import (
    renumbered as renumbered,
)
from .distribute import (
    scatter as scatter,
)
from .graph import (
    MASKS as MASKS,
)
from .graph import (
    UNKNOWN as UNKNOWN,
)
from .graph import (
    WEIGHT as WEIGHT,
)
from .graph import (
    Graph as Graph,
)
from .graph import (
    GraphBlock as GraphBlock,
)
from .graph import (
    VertexData as VertexData,
)
from .graph import (
    classes_of as classes_of,
)
from .graph import (
    fits_float32 as fits_float32,
)
from .graph import (
    labelled as labelled,
)
from .graph import (
    labels_of_table as labels_of_table,
)
from .graph import (
    narrow as narrow,
)
from .graph import (
    vertex_ids_of as vertex_ids_of,
)
from .load import (
    EDGE_FILES as EDGE_FILES,
)
from .load import (
    edge_file as edge_file,
)
from .load import (
    load_dataset as load_dataset,
)
from .load import (
    open_source as open_source,
)
from .load import (
    suffix_of as suffix_of,
)
from .normalise import (
    POWERS as POWERS,
)
from .normalise import (
    WITH_LOOPS as WITH_LOOPS,
)
from .normalise import (
    Normalisation as Normalisation,
)
from .normalise import (
    add_self_loops as add_self_loops,
)
from .normalise import (
    check_weights as check_weights,
)
from .normalise import (
    degree_scales as degree_scales,
)
from .normalise import (
    first_not_below as first_not_below,
)
from .normalise import (
    is_bag_of_words as is_bag_of_words,
)
from .normalise import (
    normalisation_of as normalisation_of,
)
from .normalise import (
    row_normalise_features as row_normalise_features,
)
from .normalise import (
    row_sums as row_sums,
)
from .npz import (
    LABEL_GAPS as LABEL_GAPS,
)
from .reading import (
    PIECE as PIECE,
)
from .reading import (
    Grammar as Grammar,
)
from .reading import (
    Head as Head,
)
from .reading import (
    NoNumbers as NoNumbers,
)
from .reading import (
    check_regular as check_regular,
)
from .reading import (
    check_unpacked as check_unpacked,
)
from .reading import (
    check_vertices as check_vertices,
)
from .reading import (
    count as count,
)
from .reading import (
    errors_of as errors_of,
)
from .reading import (
    graph_of as graph_of,
)
from .reading import (
    name_in as name_in,
)
from .reading import (
    open_bytes as open_bytes,
)
from .reading import (
    parse_stream as parse_stream,
)
from .reading import (
    read_head as read_head,
)
from .reading import (
    read_numbers as read_numbers,
)
from .reading import (
    reading as reading,
)
from .reading import (
    refuse_first as refuse_first,
)
from .reading import (
    unpacked as unpacked,
)
from .shards import (
    IDS as IDS,
)
from .shards import (
    ShardDirectory as ShardDirectory,
)
from .shards import (
    directory_writer as directory_writer,
)
from .shards import (
    is_graph_directory as is_graph_directory,
)
from .shards import (
    open_shards as open_shards,
)
from .shards import (
    write_shards as write_shards,
)
from .source import (
    PIECE_BYTES as PIECE_BYTES,
)
from .source import (
    GraphMeta as GraphMeta,
)
from .source import (
    GraphSource as GraphSource,
)
from .source import (
    MemorySource as MemorySource,
)
from .source import (
    shown_name as shown_name,
)
from .splits import (
    Pairs as Pairs,
)
from .splits import (
    divided as divided,
)
from .splits import (
    held_out_of as held_out_of,
)
from .splits import (
    seeded_split as seeded_split,
)
from .structure import (
    added as added,
)
from .structure import (
    csr_from_edges as csr_from_edges,
)
from .structure import (
    from_entries as from_entries,
)
from .structure import (
    pattern_of as pattern_of,
)
from .structure import (
    row_ranges as row_ranges,
)
from .structure import (
    slice_rows as slice_rows,
)
from .structure import (
    union as union,
)
from .structure import (
    without_ones as without_ones,
)
