"""cuSPARSE at its best: descriptors, workspace and preprocessing are kept between products."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from spgnn import CSR

ALGORITHMS = {"ALG2": 6, "ALG3": 12}  # of CSR; numbers are those of cusparse.h, here and below
_FLOAT32 = 0  # cudaDataType
_TYPES = {torch.float32: _FLOAT32, torch.bfloat16: 14}
_INT32, _FROM_ZERO, _BY_ROWS, _AS_IT_IS = 2, 0, 2, 0


@cache
def library() -> Any:
    """The library that torch has loaded."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    loaded = [line.split()[-1] for line in maps if "/libcusparse.so" in line]
    return ctypes.CDLL(loaded[0] if loaded else "libcusparse.so.12")


def call(name: str, *arguments: Any) -> None:
    """Call a function whose status must be 0."""
    status = getattr(library(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} returns {status}")


@cache
def handle(stream: int) -> ctypes.c_void_p:
    """A handle for a stream of torch's."""
    made = ctypes.c_void_p()
    call("cusparseCreate", ctypes.byref(made))
    call("cusparseSetStream", made, ctypes.c_void_p(stream))
    return made


class Product:
    """Y = A X by one algorithm, on the same X and Y every time.

    Parameters
    ----------
    A : CSR
        With int32 indices; values, if any, and X are of one type. Sums are of float32.
    """

    def __init__(self, algorithm: str, A: CSR, X: Tensor) -> None:
        rows, columns = A.shape[0], X.shape[1]
        self.Y = X.new_empty((rows, columns))
        indptr, values = A.indptr.int(), torch.ones(A.nnz, dtype=X.dtype, device=X.device)
        if A.values is not None:
            values = A.values.to(X.dtype)
        kind = _TYPES[X.dtype]
        matrix, dense, result = (ctypes.c_void_p() for _ in range(3))
        sizes = (ctypes.c_int64(n) for n in (*A.shape, A.nnz))
        arrays = (ctypes.c_void_p(t.data_ptr()) for t in (indptr, A.indices, values))
        flags = _INT32, _INT32, _FROM_ZERO, kind
        call("cusparseCreateCsr", ctypes.byref(matrix), *sizes, *arrays, *flags)
        for descriptor, tensor in ((dense, X), (result, self.Y)):
            shape = (ctypes.c_int64(n) for n in (*tensor.shape, columns))
            address = ctypes.c_void_p(tensor.data_ptr())
            call("cusparseCreateDnMat", ctypes.byref(descriptor), *shape, address, kind, _BY_ROWS)
        one, zero, needed = ctypes.c_float(1), ctypes.c_float(0), ctypes.c_size_t()
        self._arguments = (
            *(handle(torch.cuda.current_stream().cuda_stream), _AS_IT_IS, _AS_IT_IS),
            *(ctypes.byref(one), matrix, dense, ctypes.byref(zero), result),
            *(_FLOAT32, ALGORITHMS[algorithm]),
        )
        call("cusparseSpMM_bufferSize", *self._arguments, ctypes.byref(needed))
        workspace = torch.empty(needed.value, dtype=torch.uint8, device=X.device)
        self._arguments += (ctypes.c_void_p(workspace.data_ptr()),)
        library().cusparseSpMM_preprocess(*self._arguments)  # refused where it has no use
        self._descriptors = ("SpMat", matrix), ("DnMat", dense), ("DnMat", result)
        self._kept = indptr, A.indices, values, X, workspace

    def __call__(self) -> Tensor:
        """Y, overwritten."""
        call("cusparseSpMM", *self._arguments)
        return self.Y

    def close(self) -> None:
        """Let go of the descriptors."""
        for kind, descriptor in self._descriptors:
            call(f"cusparseDestroy{kind}", descriptor)


def products(A: CSR, X: Tensor) -> dict[str, Product]:
    """One for each algorithm that the library has for this type."""
    found: dict[str, Product] = {}
    for algorithm in ALGORITHMS:
        try:
            found[algorithm] = Product(algorithm, A, X)
            found[algorithm]()
        except (RuntimeError, AttributeError):  # a status, or a library without preprocessing
            found.pop(algorithm, None)
    return found
