"""The operations on CUDA tensors by kernels of our own, which NVRTC compiles for the device."""

from spgnn.registry import KERNELS

KERNELS.add("cuda", "spgnn.addons.cuda.kernels:load")
