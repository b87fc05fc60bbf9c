"""Who works on CUDA tensors: kernels that are emulated or on a GPU, and torch."""

from __future__ import annotations

import pytest
import torch

from spgnn.addons.cuda import device
from spgnn.addons.cuda import kernels as native
from spgnn.kernels import torch_kernels
from tests.kernels.conftest import threads, work_by  # noqa: F401

from .emulation import EMULATION, EmulatedDevice, cpu_properties

ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="session")
def emulated_device(tmp_path_factory):
    """One device for all tests, which keeps the kernels that it has compiled."""
    return EmulatedDevice(tmp_path_factory.mktemp("emulation"))


@pytest.fixture
def emulated(emulated_device, monkeypatch):
    """`spgnn.kernels.cuda` with its launches emulated."""
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
