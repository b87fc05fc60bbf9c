"""The CUDA sources compile for every architecture, without warnings and without spilling."""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from spgnn.addons.cuda import device, programs
from spgnn.addons.cuda import kernels as native
from spgnn.addons.cuda.device import ACCUMULATORS, WARP, instance, thread_shape
from spgnn.addons.cuda.operations import COPY_X
from spgnn.attention import operators  # noqa: F401  (registers those of attention)
from spgnn.kernels import torch_kernels as cusparse
from spgnn.kernels.extremes import PICK
from spgnn.sparse import SUM_DTYPE

ARCHITECTURES = (75, 80, 86, 90, 100)
# ptxas may move a few address registers to memory; running sums and loaded packs must stay.
SPILL_LIMIT = 16


def instances() -> list[str]:
    """Kernels for every width of pack, number of packs and type."""
    single, double, half = torch.float32, torch.float64, torch.bfloat16
    plain, wide = (single, single, torch.int32), (single, single, torch.int64)
    cases = [
        (plain, True, False, thread_shape(16, 4)),
        (plain, True, False, thread_shape(128, 4)),
        (plain, False, False, thread_shape(128, 4)),
        (plain, True, True, thread_shape(256, 4)),
        (plain, True, False, thread_shape(300, 4)),
        (wide, True, False, thread_shape(1024, 4)),
        (plain, True, False, thread_shape(47, 1)),
        (plain, True, False, thread_shape(256, 1)),
        ((double, double, torch.int32), True, False, thread_shape(300, 2, 8)),
        ((half, half, torch.int32), True, False, thread_shape(64, 8)),
        ((half, half, torch.int32), False, False, thread_shape(1024, 8)),
        ((single, half, torch.int32), False, True, thread_shape(64, 4)),
    ]
    names = [instance("spmm", *dtypes, *flags, *shape, 1024) for dtypes, *flags, shape in cases]
    for dtype, index in (plain[1:], wide[1:], (double, torch.int64), (half, torch.int32)):
        vector = 16 // dtype.itemsize
        names.append(instance("gather_rows", dtype, index, vector, WARP))
        names.append(instance("sddmm", dtype, index, vector, 4))
    for dtype in (single, double, half):
        names.append(instance("dropout_rows", dtype, 2, WARP))
        names.append(instance("update_rows", dtype, 2, WARP))
        names.append(instance("update_rows_backward", dtype, 2, WARP))
        vector, narrow = 16 // dtype.itemsize, torch.int32
        shape = *thread_shape(300, vector, 64 // SUM_DTYPE[dtype].itemsize), 1024
        for op, shared in ((0, 0), (2, 0), (3, 1), (4, 0), (6, 0)):
            names.append(instance("edge_sum", dtype, dtype, narrow, op, shared, *shape))
        few = *thread_shape(300, min(vector, 4), ACCUMULATORS // 2), 1024
        names.append(instance("edge_sum", dtype, narrow, narrow, PICK, 0, *few))
        names.append(instance("edge_picks", dtype, narrow, 2, WARP))
        for op in (0, 1, 6):
            names.append(instance("edge_products", dtype, torch.int32, op, 2, WARP))
        few = *thread_shape(300, vector, ACCUMULATORS // 2), 1024
        for op in (0, COPY_X):
            names.append(instance("edge_extremes", dtype, dtype, narrow, narrow, op, *few))
        names.append(instance("quantise_rows", dtype, 16 // dtype.itemsize, WARP))
        names.append(instance("dequantise_rows", dtype, 16 // dtype.itemsize, WARP))
        for threads in (4, device.THREADS):
            names.append(instance("edge_softmax", dtype, threads))
            names.append(instance("row_sums", dtype, threads))
    return names


def attention_instances() -> list[str]:
    """Kernels of attention, for shapes with the most registers."""
    single, double, half = torch.float32, torch.float64, torch.bfloat16
    return [
        *of_eight_heads(),
        *_attention(single, torch.int64, False, (4, 4, 32, 4)),
        *_attention(double, torch.int32, True, (2, 32, 32, 2)),
        *_attention(half, torch.int32, True, (8, 8, 32, 1)),
    ]


def of_eight_heads() -> list[str]:
    """Kernels for 8 heads × 8 alone."""
    return _attention(torch.float32, torch.int32, True, (4, 1, 8, 2))


def _attention(
    dtype: torch.dtype, index: torch.dtype, twice: bool, shape: tuple[int, int, int, int]
) -> list[str]:
    backward = *shape[:3], min(2, shape[3])
    return [
        instance("attend", dtype, index, twice, *shape, 1024),
        instance("attend_v2", dtype, index, *shape, 1024),
        instance("merge_carried", dtype, twice, *shape, 256),
        instance("end_triples", dtype, twice, *shape),
        instance("head_products", dtype, SUM_DTYPE[dtype], *backward),
        *(
            instance(kernel, dtype, index, *backward, 1024)
            for kernel in ("attend_backward", "attend_v2_columns", "attend_v2_rows")
        ),
    ]


def test_every_kernel_is_compiled():
    kernels = re.findall(
        r"__global__ void __launch_bounds__\(kThreads\)\s+(\w+)\(", programs.source()
    )
    assert len(kernels) == programs.source().count("__global__")
    names = [*instances(), *attention_instances()]
    assert {name.partition("<")[0] for name in names} == {f"spgnn::{k}" for k in kernels}


def test_every_operation_has_a_kernel_and_a_way_without_one():
    """Whatever an operator asks for on CUDA tensors is there, in both implementations."""
    names = {name for name, value in vars(native).items() if callable(value)}
    names -= {"load", "trouble", "know_range"}
    registered = {
        name.partition(".")[0].removeprefix("spgnn::")
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA") and "spgnn::" in name
    }
    # The adjoint of gather_rows is scatter_add_rows, those of extremes are sums and products;
    # operators of attention are made of several functions.
    elsewhere = {"gather_rows_adjoint", "extreme_adjoint", "pick_extremes"}
    elsewhere |= {"gemm_product", "gemm_gradient", "gemm_narrow_product", "gemm_narrow_gradient"}
    elsewhere |= {"gemm_products", "gemm_gradients", "gemm_passed"}
    elsewhere |= {"cross_entropy_gradient"}  # a second call of cross_entropy
    fused = {"attention", "attention_backward", "attention_v2", "attention_v2_backward"}
    of_attention = {"attention_finish", "head_products"}
    assert fused < registered
    assert registered - elsewhere - fused == names - of_attention
    assert of_attention < names
    for implementation in (native, cusparse):
        assert all(callable(getattr(implementation, name)) for name in names)


def half(begin: int) -> Callable[[], list[str]]:
    """Every second of the instances."""
    return lambda: instances()[begin::2]


# Where every minute counts: the oldest and the one that most have, and few kernels of attention.
COMPILED = [
    pytest.param(75, half(0), id="75-half"),
    pytest.param(90, lambda: half(1)() + of_eight_heads(), id="90-other half, eight heads"),
    *(
        pytest.param(architecture, kernels, marks=pytest.mark.slow)
        for architecture in ARCHITECTURES
        for kernels in (instances, attention_instances)
    ),
]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
@pytest.mark.parametrize(("architecture", "kernels"), COMPILED)
def test_nvcc_compiles_without_spills(tmp_path, architecture, kernels):
    table = ",\n".join(f"reinterpret_cast<const void*>({name})" for name in kernels())
    text = tmp_path / "kernels.cu"
    text.write_text(f"{programs.source()}\nconst void* kernels[] = {{{table}}};\n")
    flags = [*programs.FLAGS, "-cubin", "-Xptxas=-v", f"-arch=sm_{architecture}"]
    flags.append("-diag-suppress=177")  # constants of kernels that are not asked for here
    command = ["nvcc", *flags, str(text), "-o", str(tmp_path / "kernels.cubin")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    log = re.sub(r"ptxas warning : Registers are spilled.*", "", done.stderr)
    assert "warning" not in log
    spills = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log)]
    assert len(spills) == len(kernels())
    assert max(spills) <= SPILL_LIMIT


def nvrtc_library() -> Path | None:
    """The run-time compiler that CuPy uses, from NVIDIA's wheels or the toolkit."""
    spec = find_spec("nvidia")
    folders = [Path(f) for f in (spec.submodule_search_locations or [])] if spec else []
    found = [so for folder in folders for so in folder.glob("*/lib/libnvrtc.so*")]
    found += Path("/usr/local/cuda/lib64").glob("libnvrtc.so*")
    return found[0] if found else None


@pytest.mark.skipif(nvrtc_library() is None, reason="needs NVRTC")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_nvrtc_compiles_without_headers(architecture):
    nvrtc = ctypes.CDLL(str(nvrtc_library()))
    program = ctypes.c_void_p()
    text = programs.source().encode()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"spgnn.cu", 0, None, None) == 0
    names = [*instances(), *attention_instances()]
    for name in names:
        assert nvrtc.nvrtcAddNameExpression(program, name.encode()) == 0
    asked = [flag.encode() for flag in (*programs.FLAGS, f"-arch=sm_{architecture}")]
    flags = (ctypes.c_char_p * len(asked))(*asked)
    outcome = nvrtc.nvrtcCompileProgram(program, len(asked), flags)
    log = ctypes.create_string_buffer(100_000)
    nvrtc.nvrtcGetProgramLog(program, log)
    assert outcome == 0, log.value.decode()
    assert "warning" not in log.value.decode()
    for name in names:
        lowered = ctypes.c_char_p()
        assert nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(lowered)) == 0
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
