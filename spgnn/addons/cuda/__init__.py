"""Kernels of our own carry out operations on CUDA tensors; NVRTC compiles them for the device."""

from spgnn.registry import KERNELS

KERNELS.add("cuda", "spgnn.addons.cuda.kernels:load")
