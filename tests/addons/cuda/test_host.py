"""Without CuPy, and around it: the way through torch, one notice, what a launch hands over."""

import ctypes
import struct
from contextlib import nullcontext

import pytest
import torch

from spgnn.addons.cuda import device, kernels, programs
from spgnn.addons.cuda import operations as nonzeros
from spgnn.kernels import library, sddmm, torch_kernels
from spgnn.torch_internals import at_work
from tests.kernels.conftest import assert_product, assert_sddmm, work_by

from .conftest import SKEWED, block, matrix, multiply


class FakeToolkit:
    """Stands in for the driver and NVRTC as CuPy binds them, and records what is asked of them."""

    NVRTCError = RuntimeError

    def __init__(self) -> None:
        self.compiled: list[tuple[str, tuple[str, ...]]] = []
        self.launched: list[tuple[object, ...]] = []
        self.context = 0
        self.devices: list[int] = []

    def getVersion(self):
        return 13, 0

    def createProgram(self, text, name, headers, includes):
        assert "#include" not in text
        return [name]

    def addNameExpression(self, program, kernel):
        program.append(kernel)

    def compileProgram(self, program, flags):
        self.compiled.append((program[1], flags))

    def getProgramLog(self, program):
        return "no such architecture"

    def getLoweredName(self, program, kernel):
        return f"lowered {kernel}"

    def getCUBIN(self, program):
        return f"code of\n{program[1]}".encode()

    def destroyProgram(self, program):
        program.clear()

    def moduleLoadData(self, binary):
        return binary

    def moduleGetFunction(self, module, name):
        return module, name

    def ctxGetCurrent(self):
        return self.context

    def setDevice(self, index):
        self.devices.append(index)
        self.context = 1

    def launchKernel(self, function, *shape_and_stream):
        *numbers, parameters, extra = shape_and_stream
        assert parameters == 0
        end = (ctypes.c_void_p * 5).from_address(extra)
        assert (end[0], end[2], end[4]) == (1, 2, None)
        size = ctypes.c_size_t.from_address(end[3]).value
        self.launched.append((function, *numbers, ctypes.string_at(end[1], size)))


def forget():
    """What the host keeps for good, in a process."""
    for cached in (programs.function, programs.bound, library.cuda_kernels, kernels.trouble):
        getattr(cached, "cache_clear", int)()


@pytest.fixture
def toolkit(monkeypatch, tmp_path):
    """A pretended CUDA device 0 of capability 9.0, which torch thinks is the current one."""
    fake = FakeToolkit()
    monkeypatch.setenv("SPGNN_CACHE", str(tmp_path))
    forget()
    monkeypatch.setattr(programs, "bound", lambda module: fake)
    monkeypatch.setattr(device, "at_work", lambda index: nullcontext())
    monkeypatch.setattr(device, "current_stream", lambda index: 4711)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    yield fake
    forget()


def fails(error):
    """A function that raises."""

    def function(*_):
        raise error

    return function


BROKEN = {
    "no CuPy": ("bound", ModuleNotFoundError("No module named 'cupy'"), ["'cupy'", "gpu-cu13"]),
    "no toolkit": ("bound", ImportError("libnvrtc.so.13: cannot open"), ["libnvrtc.so.13", "13"]),
    "no NVRTC": ("createProgram", RuntimeError("failed to load libnvrtc.so.13"), ["libnvrtc"]),
    "unknown architecture": ("compileProgram", RuntimeError("invalid --gpu-arch"), ["sm_90"]),
    "old driver": ("moduleLoadData", RuntimeError("CUDA_ERROR_UNSUPPORTED_PTX"), ["UNSUPPORTED"]),
    "another CUDA": ("launchKernel", RuntimeError("CUDA_ERROR_INVALID_IMAGE"), ["INVALID_IMAGE"]),
    "nothing written": ("launchKernel", None, ["wrote 0.0"]),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_installation_gets_one_notice_and_torch(what, toolkit, monkeypatch, recwarn):
    where, error, words = BROKEN[what]
    if error is not None:
        monkeypatch.setattr(programs if where == "bound" else toolkit, where, fails(error))
    ones, zeros = torch.ones, torch.zeros
    for name, make in (("ones", ones), ("zeros", zeros)):
        on_cpu = lambda *shape, make=make, device=None, **rest: make(*shape, **rest)  # noqa: E731
        monkeypatch.setattr(torch, name, on_cpu)
    A, X = block(SKEWED), matrix(800, 16)
    for _ in range(2):
        assert_product(multiply(library.cuda_kernels(), A, X), A, X)
    said = [str(w.message) for w in recwarn if "cuSPARSE" in str(w.message)]
    assert len(said) == 1
    assert "\n" not in said[0]
    assert all(word in said[0] for word in [*words, "pip install"])


def test_a_kernel_is_compiled_once_for_all_processes(toolkit, tmp_path):
    for _ in range(2):
        forget()  # as a new process
        code = programs.function("spgnn::k<1>", 0)
        assert code[1] == (b"code of\nspgnn::k<1>", "lowered spgnn::k<1>")
    assert toolkit.compiled == [("spgnn::k<1>", (*programs.FLAGS, "-arch=sm_90"))]
    programs.compiled("spgnn::k<1>", "sm_80")
    programs.compiled("spgnn::k<2>", "sm_90")
    assert len(toolkit.compiled) == 3
    for file in (tmp_path / "kernels").glob("*.cubin"):  # what a crash or a stranger may leave
        file.write_bytes(file.read_bytes()[:3])
    forget()
    assert programs.function("spgnn::k<1>", 0) == code
    assert len(toolkit.compiled) == 4


def test_without_a_place_to_keep_it_a_kernel_is_compiled_all_the_same(toolkit, monkeypatch):
    monkeypatch.setenv("SPGNN_CACHE", "/dev/null/nowhere")
    assert programs.compiled("spgnn::k<1>", "sm_90")[0] == "lowered spgnn::k<1>"


@pytest.mark.parametrize("columns", [1, 64, 5000])
def test_gathered_rows_stay_below_a_number_of_bytes(columns, monkeypatch):
    A, G, X = block([30] * 90, 500), matrix(90, columns), matrix(500, columns)
    work_by(monkeypatch, torch_kernels)
    whole = sddmm(A, G, X)
    monkeypatch.setattr(torch_kernels, "GATHERED_BYTES", 2**16)
    largest, multiply_ = [0], torch.Tensor.__mul__
    monkeypatch.setattr(
        torch.Tensor, "__mul__", lambda a, b: largest.append(a.nbytes + b.nbytes) or multiply_(a, b)
    )
    found = sddmm(A, G, X)
    monkeypatch.undo()
    assert torch.equal(found, whole)
    assert_sddmm(found, A, G, X)
    assert 0 < max(largest) <= max(2**16, 2 * 4 * columns)


def test_a_launch_hands_over_addresses_on_torchs_stream(toolkit):
    X = matrix(5, 4, torch.bfloat16, padding=4).requires_grad_()
    ids = torch.arange(5)
    for _ in range(2):
        device.launch("spgnn::k<1>", (3, 2), (None, X, ids, -7, 0.5))
    assert len(toolkit.devices) == 1  # a new thread makes the device's context its own, once
    assert len(toolkit.compiled) == 1
    function, *shape, stream, packed = toolkit.launched[1]
    assert function[1] == "lowered spgnn::k<1>"
    assert shape == [3, 2, 1, device.THREADS, 1, 1, 0]
    assert stream == 4711
    assert struct.unpack("qqqqd", packed) == (0, X.data_ptr(), ids.data_ptr(), -7, 0.5)


def test_a_launch_makes_its_device_the_current_one(monkeypatch):
    entered = []
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: nullcontext(entered.append(index)))
    for index in (0, 1):
        with at_work(index):
            assert entered == [0]


def test_the_device_constants_match_the_sources():
    assert f"kThreads = {device.THREADS};" in programs.source()
    assert f"kRowsInFlight = {nonzeros.ROWS_IN_FLIGHT};" in programs.source()
    assert f"kNonzerosInFlight = {nonzeros.NONZEROS_IN_FLIGHT};" in programs.source()
