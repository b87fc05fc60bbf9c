"""What the GPU suite measures and checks, on the CPU: right operations pass, wrong ones do not."""

import itertools

import pytest
import torch

from spgnn.kernels import attention_calls
from spgnn.kernels.cuda import device
from spgnn.kernels.library import operators

from .cuda_suite import benchmark, wall_clock

# Torch's own, where it first differentiates in forward mode.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.torch.jit.script. is deprecated:DeprecationWarning"
)


@pytest.fixture(autouse=True)
def same_numbers_every_time():
    torch.manual_seed(0)


@pytest.fixture
def measured():
    return benchmark("gpu_measurements")


@pytest.fixture
def operations():
    return benchmark("gpu_operations")


def small_block(measured):
    return measured.make_blocks(measured.load_graph("rmat-8-8"), "cpu")


def test_calls_are_timed_in_turns(measured):
    asked = []
    ticks = itertools.count(1)

    def clock(call):
        call()
        return float(next(ticks))

    calls = {name: lambda name=name: asked.append(name) for name in "ab"}
    times = measured.measure(calls, clock, 4)
    assert "".join(asked) == "abab" + "abbaabba"
    assert times["a"].median == (1 + 4 + 5 + 8) / 4


def test_a_case_holds_times_ratios_and_a_check(measured):
    blocks = small_block(measured)
    case = measured.spmm_case(blocks, 16, wall_clock, 3)
    assert case["correct"]
    assert case["gathered_bytes"] == blocks.plain.nnz * 64
    assert set(case["speedup"]) == {"0/1", "values", "scaled", "Y +=", "bfloat16"}
    assert set(case["seconds"]) - set(case["speedup"]) == {"cuSPARSE int32", "cuSPARSE int64"}


def test_a_wrong_product_is_noticed(measured, monkeypatch):
    blocks = small_block(measured)
    X = torch.randn(blocks.plain.shape[1], 4)
    assert measured.is_correct(blocks, X)
    spmm = measured.kernels.spmm
    monkeypatch.setattr(measured.kernels, "spmm", lambda A, X: spmm(A, X) * 1.001)
    assert not measured.is_correct(blocks, X)


def test_the_other_measurements_run(measured, operations, monkeypatch):
    monkeypatch.setattr(device, "multiprocessors", lambda _: 132)
    blocks = small_block(measured)
    sweep = measured.tile_sweep(blocks.plain, 8, wall_clock, 2)
    assert set(sweep["seconds"]) == {"1024", "512", "256"}
    assert sweep["rule"] == 256
    found = measured.bandwidth(wall_clock, 2, "cpu", 1000)
    assert set(found) == {"copy", "triad"}
    assert set(operations.heavy_row(wall_clock, 2, "cpu", 2**10)) == {"even", "heavy"}
    assert set(operations.host_microseconds("cpu", 3)) == {"torch", "spgnn"}


def test_every_size_of_tile_is_asked_for(measured, monkeypatch):
    """The sweep changes what the product looks up, wherever that is."""
    asked, host = [], measured.host
    monkeypatch.setattr(device, "multiprocessors", lambda _: 132)
    monkeypatch.setattr(
        measured.kernels, "spmm", lambda A, X: asked.append(host.tile_items(A.nnz, 132))
    )
    measured.tile_sweep(small_block(measured).plain, 8, lambda call: 1.0, 2)
    assert asked[:3] == [1024, 512, 256]


def rows(operations, _):
    return operations.row_operations(wall_clock, 2, "cpu", 100)


def nonzeros(operations, measured):
    return operations.nonzero_operations(small_block(measured), (3, 16), wall_clock, 2)


def distributed(operations, measured):
    scaled = measured.scaled_block(measured.load_graph("rmat-6-4"))
    return operations.distributed(scaled, "cpu", 8, wall_clock, 2)


ROWS = [
    ("gather_rows int64", 1),
    ("scatter_add_rows int64", 1),
    ("gather_rows int32", 1),
    ("scatter_add_rows int32", 1),
    ("dropout_rows", 1),
    ("quantise_rows, 8 bits", 1),
    ("dequantise_rows, 8 bits", 1),
    ("quantise_rows, 2 bits", 1),
    ("dequantise_rows, 2 bits", 1),
]
ATTENTION = ["attention", "attention and gradient", "attention, two derivatives"]
HEADS = ["sddmm", "edge_softmax", "spmm of heads", *ATTENTION]
DISTRIBUTED = [
    ("product, against spmm", 1),
    ("product and gradient, against spmm", 1),
]
LINES = {
    rows: ROWS * 2,
    nonzeros: [("sddmm", 1)] * 2 + [(name, heads) for heads in (8, 4) for name in HEADS],
    distributed: DISTRIBUTED,
}


def nearly_right(function):
    """One number of the result, the largest, is a tenth of a percent too large."""

    def nearly(*arguments, **options):
        result = function(*arguments, **options)
        place = result.detach().abs().flatten().argmax()
        factor = torch.ones(result.numel()).index_fill(0, place, 1.001).view(result.shape)
        return result * factor

    return nearly


@pytest.mark.parametrize("lines", LINES)
def test_operations_are_compared_and_right(operations, measured, lines):
    found = list(lines(operations, measured))
    assert [(line["operation"], line["heads"]) for line in found] == LINES[lines]
    for line in found:
        assert line["correct"], line
        assert ("speedup" in line) == ("attention" not in line["operation"])


@pytest.mark.parametrize(
    ("lines", "broken", "wrong"),
    [
        (rows, "gather_rows", {"gather_rows int32", "gather_rows int64"}),
        (rows, "scatter_add_rows", {"scatter_add_rows int32", "scatter_add_rows int64"}),
        (rows, "dropout_rows", {"dropout_rows"}),
        (rows, "dequantise_rows", {"dequantise_rows, 8 bits", "dequantise_rows, 2 bits"}),
        (nonzeros, "sddmm", {"sddmm"}),
        (nonzeros, "edge_softmax", {"edge_softmax"}),
        (nonzeros, "spmm", {"spmm of heads"}),
    ],
)
def test_wrong_operations_are_noticed(operations, measured, monkeypatch, lines, broken, wrong):
    nearly = nearly_right(getattr(operations.kernels, broken))
    monkeypatch.setattr(operations.kernels, broken, nearly)
    found = {line["operation"] for line in lines(operations, measured) if not line["correct"]}
    assert found - set(ATTENTION) == wrong


@pytest.mark.parametrize(("broken", "first"), [("forward", 0), ("adjoint", 1)])
def test_a_wrong_distributed_product_is_noticed(operations, measured, monkeypatch, broken, first):
    matrix = operations.DistMatrix
    monkeypatch.setattr(matrix, broken, nearly_right(getattr(matrix, broken)))
    found = [line["correct"] for line in distributed(operations, measured)]
    assert found == [first > 0, False]


@pytest.mark.parametrize("order", [1, 2])
def test_a_wrong_derivative_is_noticed(operations, measured, monkeypatch, order):
    """Of the backward alone: forward mode goes another way, and finds another number."""
    softmax = operators["edge_softmax"]
    kept = []

    def backward(ctx, G):
        none, gradient = right(ctx, G)
        kept.append(G.requires_grad)
        return none, gradient * (1.05 if order == 1 or G.requires_grad else 1)

    right = softmax.backward
    monkeypatch.setattr(softmax, "backward", backward)
    found = {line["operation"] for line in nonzeros(operations, measured) if not line["correct"]}
    assert any(kept)
    assert found >= {ATTENTION[order]}


def fused(measured):
    """All lines of fused attention."""
    attention = benchmark("gpu_attention")
    yield from attention.fused_attention(small_block(measured).plain, wall_clock, 2)
    yield from attention.hub_attention(wall_clock, 2, "cpu", 2**10)


def test_fused_attention_is_compared_and_right(measured):
    found = list(fused(measured))
    each = [(kind, heads) for kind in ("GAT", "GATv2") for heads in (8, 4)]
    each += [("GAT, dropout", 8), ("GAT, bfloat16", 8)]
    names = [(name + end, heads) for name, heads in each for end in ("", ", gradients")]
    assert [(line["operation"], line["heads"]) for line in found] == [
        *names,
        ("GAT, half of all nonzeros in a row", 8),
    ]
    assert all(line["correct"] and "speedup" in line for line in found)


@pytest.mark.parametrize("broken", ["attend", "attend_v2_backward", "head_products"])
def test_wrong_attention_is_noticed(measured, monkeypatch, broken):
    right = getattr(attention_calls, broken)

    def nearly(*arguments):
        result = right(*arguments)
        made = {"attend": lambda: arguments[-1].out, "head_products": lambda: arguments[-1]}
        array = made.get(broken, lambda: result[0])()
        array.view(-1)[array.abs().argmax()] *= 1.1
        return result

    monkeypatch.setattr(attention_calls, broken, nearly)
    wrong = {line["operation"] for line in fused(measured) if not line["correct"]}
    gradients = {"GAT, gradients", "GAT, dropout, gradients", "GAT, bfloat16, gradients"}
    assert (
        wrong
        == {
            "attend": {
                "GAT",
                "GAT, dropout",
                "GAT, bfloat16",
                "GAT, half of all nonzeros in a row",
            },
            "attend_v2_backward": {"GATv2, gradients"},
            "head_products": gradients | {"GATv2, gradients"},
        }[broken]
    )
