"""Names of samplers and cache policies, as flags and arguments have them."""

from __future__ import annotations

from typing import Literal, get_args

SamplerName = Literal["neighbor", "labor", "ladies", "fastgcn"]
SAMPLERS: tuple[str, ...] = get_args(SamplerName)
PolicyName = Literal["belady", "degree", "vip", "lru", "clock", "sieve", "none"]
