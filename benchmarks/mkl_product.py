"""MKL's CSR product with its structure kept (inspector-executor), called through ctypes.

Needs the wheel ``mkl``; its threads are GNU OpenMP's, which torch has loaded, so that both use one
pool. Intel oneMKL Developer Reference for C, "Inspector-executor Sparse BLAS Routines".
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("MKL_THREADING_LAYER", "GNU")

_ZERO_BASED, _NO_TRANSPOSE, _ROW_MAJOR, _GENERAL = 0, 10, 101, 20


class _Descriptor(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("mode", ctypes.c_int), ("diagonal", ctypes.c_int))


def library() -> ctypes.CDLL | None:
    """The runtime library of the installed wheel, or ``None``."""
    try:
        files = importlib.metadata.files("mkl") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    for file in files:
        if file.name.startswith("libmkl_rt.so"):
            return ctypes.CDLL(str(Path(str(file.locate())).resolve()), mode=ctypes.RTLD_GLOBAL)
    return None


class MklMatrix:
    """A float32 CSR matrix that MKL has looked at for products with `width` columns.

    Parameters
    ----------
    mkl : the library
    arrays : indptr and indices, Tensor int32, and values, Tensor float32
    shape : (rows, cols)
    width : int
    """

    def __init__(
        self,
        mkl: Any,
        arrays: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        shape: tuple[int, int],
        width: int,
    ) -> None:
        indptr, indices, values = arrays
        self._mkl, self._arrays, self._handle = mkl, arrays, ctypes.c_void_p()
        self._descriptor = _Descriptor(_GENERAL, 0, 0)
        begin = indptr.data_ptr()
        self._check(
            mkl.mkl_sparse_s_create_csr(
                ctypes.byref(self._handle),
                _ZERO_BASED,
                int(shape[0]),
                int(shape[1]),
                ctypes.c_void_p(begin),
                ctypes.c_void_p(begin + 4),
                ctypes.c_void_p(indices.data_ptr()),
                ctypes.c_void_p(values.data_ptr()),
            )
        )
        self._check(
            mkl.mkl_sparse_set_mm_hint(
                self._handle, _NO_TRANSPOSE, self._descriptor, _ROW_MAJOR, width, 10**6
            )
        )
        self._check(mkl.mkl_sparse_set_memory_hint(self._handle, 81))  # SPARSE_MEMORY_AGGRESSIVE
        self._check(mkl.mkl_sparse_optimize(self._handle))

    def product(self, X: torch.Tensor, Y: torch.Tensor) -> None:
        """``Y = A X``, both row-major."""
        self._check(
            self._mkl.mkl_sparse_s_mm(
                _NO_TRANSPOSE,
                ctypes.c_float(1.0),
                self._handle,
                self._descriptor,
                _ROW_MAJOR,
                ctypes.c_void_p(X.data_ptr()),
                X.shape[1],
                X.shape[1],
                ctypes.c_float(0.0),
                ctypes.c_void_p(Y.data_ptr()),
                X.shape[1],
            )
        )

    def set_threads(self, threads: int) -> None:
        """Of this library."""
        self._mkl.MKL_Set_Num_Threads(threads)

    def __del__(self) -> None:
        self._mkl.mkl_sparse_destroy(self._handle)

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise RuntimeError(f"MKL's sparse routines returned {status}")
