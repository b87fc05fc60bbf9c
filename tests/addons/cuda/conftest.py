"""Who works on CUDA tensors: kernels that are emulated or on a GPU, and torch."""

from __future__ import annotations

import pytest
import torch

from spgnn.addons.cuda import device
from spgnn.addons.cuda import kernels as native
from spgnn.kernels import torch_kernels
from spgnn.sparse import CSR
from tests.kernels.conftest import random_block, threads, work_by  # noqa: F401

from .emulation import EMULATION, EmulatedDevice, cpu_properties

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
# Hub rows that cross tiles, runs of empty rows, short rows.
SKEWED = [*[2] * 40, 700, *[0] * 300, *range(30), 0, 650, 650, 0, *[5] * 50]


@pytest.fixture(scope="session")
def emulated_device(tmp_path_factory):
    """One device for all tests, which keeps the kernels that it has compiled."""
    return EmulatedDevice(tmp_path_factory.mktemp("emulation"))


@pytest.fixture
def emulated(emulated_device, monkeypatch):
    """`spgnn.addons.cuda` with its launches emulated."""
    monkeypatch.setattr(device, "launch", emulated_device.launch)
    monkeypatch.setattr(device, "properties", cpu_properties)
    emulated_device.launched.clear()
    return emulated_device


def moved(operand, where):
    """Tensors and blocks on a device, alone or in lists; tensors have the same strides there."""
    if isinstance(operand, (tuple, list)):
        return [moved(one, where) for one in operand]
    if not isinstance(operand, torch.Tensor) or operand.is_cuda:
        return operand.to(where) if hasattr(operand, "to") else operand
    whole = operand.untyped_storage().size() // operand.element_size()
    there = operand.as_strided((whole,), (1,), 0).to(where)
    return there.as_strided(operand.shape, operand.stride(), operand.storage_offset())


@pytest.fixture(
    params=[pytest.param("kernels", marks=EMULATION), "torch", pytest.param("gpu", marks=ON_GPU)]
)
def away(request, monkeypatch):
    """Runs a function of tensors and blocks by another implementation; results are on the CPU."""
    if request.param == "kernels":
        request.getfixturevalue("emulated")

    def run(function, *operands):
        if request.param == "gpu":
            return moved(function(*moved(operands, "cuda")), "cpu")
        with monkeypatch.context() as patch:
            work_by(patch, native if request.param == "kernels" else torch_kernels)
            return function(*operands)

    run.way = request.param
    return run


def block(lengths, cols=800, *, seed=0, **options) -> CSR:
    """A random block with these lengths of rows."""
    return random_block(len(lengths), cols, lengths, seed, **options)


def matrix(rows, columns, dtype=torch.float32, *, padding=0, offset=0, seed=1) -> torch.Tensor:
    """Normal numbers, or NaN around them where memory is not part of the matrix."""
    stride = columns + padding
    storage = torch.full((offset + rows * stride + 16,), float("nan"), dtype=dtype)
    view = storage[offset:].as_strided((rows, columns), (stride, 1))
    generator = torch.Generator().manual_seed(seed)
    return view.copy_(torch.randn(rows, columns, generator=generator, dtype=torch.float64))


def multiply(module, A, X, out=None, accumulate=False) -> torch.Tensor:
    """Y = A X or Y += A X by one of the implementations."""
    if out is None:
        out = X.new_empty((A.shape[0], *X.shape[1:]))
    numbers = A.values, A.row_scale, A.col_scale
    module.spmm(A.indptr, A.indices, *numbers, X, out, accumulate)
    return out


def some_scores(pattern, heads, dtype, seed=1) -> torch.Tensor:
    """Scores with single ones and a whole row of −∞."""
    scores = 5 * matrix(pattern.nnz, heads, dtype, seed=seed).clone()
    scores[::7, -1:] = -torch.inf
    begin, end = pattern.indptr[40:42].tolist()
    scores[begin:end] = -torch.inf
    return scores
