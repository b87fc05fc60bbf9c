"""The compiled module, room by room. Arrays are what the bindings take without a copy."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

_Bytes = npt.NDArray[np.uint8]
_Int32 = npt.NDArray[np.int32]
_Int64 = npt.NDArray[np.int64]
_UInt64 = npt.NDArray[np.uint64]
_Float32 = npt.NDArray[np.float32]
_Float64 = npt.NDArray[np.float64]
_Array = npt.NDArray[Any]
_Progress = Callable[[int, int], None] | None

def instruction_sets() -> list[str]: ...
def instruction_set() -> str: ...
def use_instruction_set(name: str) -> None: ...

# kernels: each writes its result into its last tensors

def spmm(
    indptr: Tensor,
    indices: Tensor,
    values: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    X: Tensor,
    out: Tensor,
    accumulate: bool,
    scaled: Tensor | None = None,
) -> None: ...
def spmm_if_plain(
    indptr: Tensor,
    indices: Tensor,
    values: Tensor | None,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    cols: int,
    X: Tensor,
    out: Tensor,
    accumulate: bool,
    scaled: Tensor | None = None,
) -> bool: ...
def sddmm(
    indptr: Tensor,
    indices: Tensor,
    row_scale: Tensor | None,
    col_scale: Tensor | None,
    G: Tensor,
    X: Tensor,
    out: Tensor,
) -> None: ...
def edge_softmax(indptr: Tensor, scores: Tensor, out: Tensor) -> None: ...
def row_sums(indptr: Tensor, a: Tensor, b: Tensor | None, out: Tensor) -> None: ...
def gather_rows(X: Tensor, rows: Tensor, scale: Tensor | None, out: Tensor) -> None: ...
def scatter_add_rows(Y: Tensor, rows: Tensor, X: Tensor, scale: Tensor | None) -> None: ...
def dropout_rows(X: Tensor, vertex_ids: Tensor, key: int, p: float, out: Tensor) -> None: ...
def update_rows(
    Z: Tensor,
    bias: Tensor | None,
    vertex_ids: Tensor | None,
    key: int,
    p: float,
    act: int,
    alpha: float,
    out: Tensor,
) -> None: ...
def update_rows_backward(
    G: Tensor,
    Y: Tensor | None,
    vertex_ids: Tensor | None,
    key: int,
    p: float,
    act: int,
    alpha: float,
    dZ: Tensor,
    sums: Tensor,
) -> None: ...
def extreme(
    indptr: Tensor,
    indices: Tensor,
    X: Tensor,
    largest: bool,
    begun: bool,
    first_column: int,
    out: Tensor,
    arg: Tensor,
) -> None: ...
def extreme_adjoint(G: Tensor, arg: Tensor, dX: Tensor) -> None: ...
def edge_sum(
    indptr: Tensor,
    indices: Tensor,
    order: Tensor | None,
    X: Tensor | None,
    W: Tensor | None,
    V: Tensor,
    op: int,
    out: Tensor,
) -> None: ...
def edge_products(
    indptr: Tensor,
    indices: Tensor,
    G: Tensor | None,
    X: Tensor | None,
    V: Tensor | None,
    op: int,
    out: Tensor,
) -> None: ...
def edge_extremes(
    indptr: Tensor,
    indices: Tensor,
    X: Tensor | None,
    V: Tensor,
    op: int,
    largest: bool,
    out: Tensor,
    arg: Tensor,
) -> None: ...
def quantise_rows(
    X: Tensor,
    bits: int,
    ids: Tensor,
    key: int,
    stochastic: bool,
    rows: Tensor | None,
    residual: Tensor | None,
    lost: Tensor | None,
    out: Tensor,
) -> None: ...
def dequantise_rows(packed: Tensor, bits: int, rows: Tensor | None, out: Tensor) -> None: ...
def gemm_product(
    X: Tensor,
    W: Tensor,
    out: Tensor,
    other_X: Tensor | None,
    other_W: Tensor | None,
    other_out: Tensor | None,
    passing: Tensor | None,
    sums: Tensor | None,
) -> None: ...
def gemm_gradient(
    G: Tensor,
    X: Tensor,
    out: Tensor,
    other_G: Tensor | None,
    other_X: Tensor | None,
    other_out: Tensor | None,
) -> None: ...
def cross_entropy(
    X: Tensor,
    target: Tensor,
    mask: Tensor | None,
    divisor: float,
    out: Tensor,
    gradient: Tensor | None,
) -> None: ...

class AttentionSide:
    def __init__(
        self,
        indptr: Tensor,
        indices: Tensor,
        packed: Tensor,
        heads: int,
        width: int,
        slope: float,
        order: Tensor | None = None,
        first: Tensor | None = None,
        second: Tensor | None = None,
        first_numbers: Tensor | None = None,
        second_numbers: Tensor | None = None,
        vector: Tensor | None = None,
        edge_scores: Tensor | None = None,
        edge_features: Tensor | None = None,
        own_ids: Tensor | None = None,
        other_ids: Tensor | None = None,
        by_column: bool = False,
        key: int = 0,
        p: float = 0.0,
    ) -> None: ...

def attention_pack(
    heads: int, matrices: Sequence[Tensor], numbers: Sequence[Tensor], packed: Tensor
) -> None: ...
def attend(
    side: AttentionSide,
    like: Tensor,
    state: Sequence[Tensor | None],
    ending: int,
    out: Tensor | None,
    lse: Tensor | None,
    v2: bool,
) -> None: ...
def attend_backward(
    side: AttentionSide,
    kind: int,
    rows: Tensor,
    numbers: Tensor | None,
    vector: Tensor | None,
    edge_scores: Tensor | None,
    edge_features: Tensor | None,
) -> None: ...
def attention_scatter(
    side: AttentionSide,
    loops: Tensor | None,
    loop_columns: Tensor | None,
    sums: Tensor,
    ends: Tensor,
    vector: Tensor,
    v2: bool,
) -> None: ...
def attention_finish(m: Tensor, n: Tensor, O: Tensor, out: Tensor, lse: Tensor) -> None: ...
def head_products(G: Tensor, X: Tensor, products: Tensor) -> None: ...
def advise_huge_pages(memory: Tensor) -> None: ...
def is_intel() -> bool: ...
def last_cache_bytes() -> int: ...
def use_last_cache_bytes(bytes: int) -> None: ...
def near_bytes() -> int: ...
def use_near_bytes(bytes: int) -> None: ...

# pattern.py, hashing.py

def is_symmetric(indptr: _Array, indices: _Array, cols: int) -> bool: ...
def transpose(
    indptr: _Array, indices: _Array, cols: int, t_indptr: _Array, t_indices: _Array
) -> None: ...
def transposed_order(indptr: _Array, indices: _Array, t_indptr: _Array, order: _Array) -> None: ...
def uniform_rows(
    ids: _Array, streams: _Array, columns: _Array, out: _Array, threads: int
) -> None: ...

# comm

class Operation:
    @property
    def mismatched(self) -> bool: ...

class Endpoint:
    def __init__(self, span: int, token: int, ranks: int, rank: int, spins: bool) -> None: ...
    @property
    def file(self) -> int: ...
    def meet(self, rank: int, process: int, file: int, token: int) -> bool: ...
    def open(self, key: int, members: Sequence[int], member: int) -> int: ...
    def reserve(self, channel: int, count: int) -> int: ...
    def begin(
        self,
        channel: int,
        number: int,
        kind: int,
        send: int,
        sent: _Int64,
        unit: int,
        same: bool,
        receive: int,
        received: _Int64,
        followed: bool,
        budget: int,
    ) -> Operation | None: ...
    def wait(self, operation: Operation) -> bool: ...
    def pause(self) -> None: ...
    def take_notice(self) -> None: ...
    def is_done(self, operation: Operation) -> bool: ...
    def give_back(self) -> None: ...

# exchange

_Block = tuple[_Int64, _Int32, _Array]
_Demand = tuple[_Int64, _Int64, _Int32, _Int32, _Array]

def demand(
    indptr: _Int64,
    indices: _Array,
    offsets: _Int64,
    members: _Int64,
    me: int,
    cover: int,
    weighted: bool,
) -> tuple[_Block, _Block, _Demand]: ...
def halo_edges(
    sources: _Array,
    targets: _Array,
    source_offsets: _Int64,
    source_numbers: _Int32 | None,
    target_offsets: _Int64,
    target_numbers: _Int32 | None,
    me: int,
    rows: _Int64,
    ends: _Int64,
) -> tuple[_Int64, _Int32]: ...
def minimum_vertex_cover(
    begin: _Int64, columns: _Int64, num_columns: int
) -> tuple[_Bytes, _Bytes]: ...
def choose_agents(
    block: _Int64, home: _Int64, begin: _Int64, candidate: _Int64, blocks: int, ranks: int
) -> _Int64: ...

# data

def parse_lines(
    text: bytes,
    first_line: int,
    head: str,
    cycle: str,
    separators: str,
    comments: str,
    blank_rows: bool,
) -> tuple[_Int64, _Float64, _Int64, _Int64, tuple[str, int, int, int, int]]: ...

class NameTable:
    def __init__(self) -> None: ...
    def number(self, begins: _Int64, bytes: _Bytes, all_known: bool) -> _Int64: ...
    def take(self, numbers: _Int64) -> tuple[_Int64, _Bytes]: ...
    def order(self) -> _Int64: ...
    def __len__(self) -> int: ...

class BlockModel:
    def __init__(
        self,
        starts: _Int64,
        district: int,
        inside: float,
        near: float,
        exponent: float,
        hub: float,
        seed: int,
    ) -> None: ...
    def count_degrees(
        self, vertices: int, edges: int, threads: int, progress: _Progress
    ) -> _Int32: ...
    def draw_rows(
        self, first: int, degrees: _Int32, edges: int, threads: int, progress: _Progress
    ) -> tuple[_Int32, _Int32]: ...

# partition

_CoverVolume = tuple[_Int64, _Int64, _Int64]

def count_volumes(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    parts: int,
    threads: int,
    table_bytes: int,
    progress: _Progress,
) -> tuple[_CoverVolume, _CoverVolume, int]: ...
def count_minimum_covers(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    parts: int,
    parts_per_node: int,
    threads: int,
    progress: _Progress,
) -> tuple[_CoverVolume, _CoverVolume]: ...
def column_nets(indptr: _Int64, indices: _Int32) -> tuple[_Int64, _Int32]: ...
def symmetrize(indptr: _Int64, indices: _Int32) -> tuple[_Int64, _Int32]: ...
def stream_partition(
    indptr: _Int64,
    indices: _Int32,
    column_indptr: _Int64,
    column_indices: _Int32,
    weights: _Int64,
    max_weight: list[int],
    fixed: _Int32 | None,
    receive: bool,
    seed: int,
    cluster_passes: int,
    refine_passes: int,
    initial: _Int32 | None,
    threads: int,
    progress: _Progress,
) -> _Int32: ...

class Libra:
    def __init__(self, vertices: int, parts: int, limit: int, seed: int) -> None: ...
    def add(self, first: int, indptr: _Int64, columns: _Int32, labels: _Int32) -> None: ...

def lower_degree_labels(
    indptr: _Int64, indices: _Int32, owners: _Int32, threads: int
) -> _Int32: ...
def count_cut(
    indptr: _Int64,
    indices: _Int32,
    labels: _Int32,
    owners: _Int32 | None,
    parts: int,
    most_vertices: int,
    threads: int,
) -> tuple[_Int32, _Int64, _Int64, _Int64, _Int64, _Int64, _Int64]: ...
def count_levels(
    indptr: _Int64, indices: _Int32, labels: _Int32, parts: int, parts_per_node: int, threads: int
) -> tuple[_Int64, _Int64, _Int64, _Int64, _Int64, _Int64]: ...
def parse_labels(text: bytes, lowest: int, parts: int, labels: _Int32) -> None: ...
def format_labels(labels: _Array) -> bytes: ...

# partition/ours.py

class GvbOptions:
    parts: int
    max_weight: list[int]
    kinds: list[int]
    seed: int
    receive: bool
    node_size: int
    outside: int
    threads: int
    starts: int
    cycles: int
    greedy_rounds: int
    peak_rounds: int
    search_passes: int
    coarse_search_passes: int
    search_budget: int
    patience: int
    cut_rounds: int
    bisection: list[int]  # tries, passes, patience, of cuts
    alpha_coarse: float
    alpha_fine: float
    alpha_last: float

def gvb_partition(
    indptr: _Int64,
    indices: _Int32,
    weights: _Int64,
    options: GvbOptions,
    cover: bool,
    fixed: _Int32 | None,
    initial: _Int32 | None,
    progress: Callable[[str, float], None] | None,
) -> _Int32: ...
def place_parts(
    indptr: _Int64, indices: _Int32, labels: _Int32, node_size: int, kinds: _Int32
) -> _Int32: ...
def place_blocks(blocks: _Int64, node_size: int, kinds: _Int32) -> _Int32: ...
def is_canonical(indptr: _Int64, indices: _Int32) -> bool: ...
def gvb_cover_moves(
    indptr: _Int64,
    indices: _Int32,
    column_indptr: _Int64,
    column_indices: _Int32,
    symmetric: bool,
    labels: _Int32,
    parts: int,
    vertices: _Int32,
    targets: _Int32,
    node_size: int,
    outside: int,
) -> tuple[_Bytes, _Bytes, _Bytes, _Int64]: ...
def gvb_replay(
    indptr: _Int64,
    indices: _Int32,
    split: _Bytes,
    labels: _Int32,
    parts: int,
    vertices: _Int32,
    targets: _Int32,
    node_size: int = 1,
    outside: int = 1,
) -> tuple[int, _Int64, _Int64, _Int64, _Int64, float]: ...

# addons/batches

_Index = _Int32 | _Int64
_Hop = tuple[_Int64, _Int32, _Int64 | None, _Float32 | None, int]
_Sample = tuple[list[_Int64], list[_Hop], list[_Int64]]  # nodes and roots of each type

class _Graph:
    def __init__(
        self,
        indptr: _Int64,
        indices: _Index,
        cols: int,
        ids: _Int64 | None,
        column_ids: _Int64 | None,
        order: _Int64 | None,
        times: _Int64 | None,
        weights: _Float64 | None,
        first_entries: bool,
        threads: int,
    ) -> None: ...
    def neighbors(
        self,
        seeds: list[_Int64],
        limits: list[_Int64],
        fanouts: _Int64,
        draws: _UInt64,
        strategy: int,
        replace: bool,
        disjoint: bool,
        directed: bool,
        resample: bool,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def hop(
        self,
        targets: _Int64,
        roots: _Int64 | None,
        limits: _Int64 | None,
        fanout: int,
        hop: int,
        draw: _UInt64,
        strategy: int,
        replace: bool,
        edge_ids: bool,
        threads: int,
    ) -> tuple[_Int64, _Index, _Int64 | None, _Float32 | None]: ...
    def labor(
        self,
        seeds: list[_Int64],
        fanouts: _Int64,
        draws: _UInt64,
        first_hop: int,
        iterations: int,
        same_every_hop: bool,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def ladies(
        self,
        seeds: list[_Int64],
        counts: _Int64,
        draws: _UInt64,
        first_hop: int,
        squares: _Float64,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def fastgcn(
        self,
        seeds: list[_Int64],
        counts: _Int64,
        draws: _UInt64,
        first_hop: int,
        vertices: _Graph,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...
    def induced(self, vertices: list[_Int64], edge_ids: bool, threads: int) -> list[_Sample]: ...
    def walks(self, starts: _Int64, length: int, draw: _UInt64, threads: int) -> _Int64: ...
    def negatives(
        self,
        sources: _Int64,
        count: int,
        vertices: _Graph,
        by_weight: bool,
        excluded: bool,
        draw: _UInt64,
        threads: int,
    ) -> _Int64: ...

class Graph32(_Graph): ...
class Graph64(_Graph): ...

class _Relations:
    def __init__(
        self,
        graphs: list[_Graph],
        sources: list[int],
        targets: list[int],
        strategies: list[int],
        sizes: list[int],
    ) -> None: ...
    def neighbors(
        self,
        seeds: list[list[_Int64]],
        limits: list[_Int64],
        fanouts: _Int64,
        draws: _UInt64,
        replace: bool,
        disjoint: bool,
        directed: bool,
        resample: bool,
        edge_ids: bool,
        threads: int,
    ) -> list[_Sample]: ...

class Relations32(_Relations): ...
class Relations64(_Relations): ...

def row_order(
    indptr: _Int64, indices: _Index, ids: _Int64 | None, times: _Int64 | None, threads: int
) -> _Int64 | None: ...
def relabel(targets: _Int64, columns: _Index) -> tuple[_Int64, _Int32]: ...

# addons/diskbatches

class Ticket:
    def wait(self) -> str: ...
    @property
    def bytes(self) -> int: ...
    @property
    def reads(self) -> int: ...

class Reader:
    ring: bool
    def __init__(self, path: str, direct: bool, depth: int) -> None: ...
    @property
    def alignment(self) -> int: ...
    @property
    def size(self) -> int: ...
    def read(
        self, begins: _Int64, lengths: _Int64, to: _Int64, out: _Bytes, gap: int
    ) -> Ticket: ...
    def read_rows(
        self, ids: _Int64, places: _Int64, out: _Bytes, offset: int, row_bytes: int, gap: int
    ) -> Ticket: ...

def ring_refusal() -> str: ...

class CacheTable:
    def begin(self, first: _Int32) -> tuple[_Int64, _Int64]: ...
    def plan(self, ids: _Int64, uses: _Int32 | None = None) -> tuple[_Int64, _Int64]: ...

def copy_rows(
    source: _Bytes, from_row: _Int64, target: _Bytes, to_row: _Int64, row_bytes: int
) -> None: ...
def copy_stretches(
    source: _Bytes, begins: _Int64, lengths: _Int64, to: _Int64, target: _Bytes
) -> None: ...
def cache_table(policy: str, rows: int, slots: int, scores: _Float32) -> CacheTable: ...
def fixed_cache_table(rows: int, kept: _Int64) -> CacheTable: ...

# addons/historical/stale.py

class EmbeddingCache:
    def __init__(self, vertices: int, capacity: int) -> None: ...
    @property
    def used(self) -> int: ...
    def search(self, vertices: Tensor, now: int, life: int, slots: Tensor) -> tuple[int, int]: ...
    def list(self, vertices: Tensor, made: Tensor, slots: Tensor) -> None: ...
    def store(self, vertices: Tensor, made: int, rows: Tensor, table: Tensor) -> None: ...

# addons/dynamic/updates.py

class Neighbours:
    def __init__(
        self, lengths: _Int64, columns: _Int32, weights: _Float32 | None = None
    ) -> None: ...
    @property
    def weighted(self) -> bool: ...
    def lengths(self, rows: _Int64 | None = None) -> _Int64: ...
    def extend(self, rows: int, before: int) -> None: ...
    def renumber(self, first: int, by: int) -> None: ...
    def find(self, rows: _Int64, columns: _Int64, skip: int = 0) -> _Int64: ...
    def add(self, rows: _Int64, columns: _Int64, weights: _Float32 | None = None) -> None: ...
    def drop(self, rows: _Int64, places: _Int64) -> None: ...
    def take(
        self, rows: _Int64, skip: npt.NDArray[np.bool_] | None = None
    ) -> tuple[_Int64, _Int32, _Float32 | None]: ...
    def ends(self, rows: _Int64, others: _Int64, limit: int) -> _Int64: ...

def put_rows(table: Tensor, at: _Int64, rows: Tensor) -> _Int64: ...
