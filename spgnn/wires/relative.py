"""The errors that approximate wires made, of all ranks together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.wires.errors import Errors

# Matrix, product of an epoch, adjoint, and what made the error.
Account = tuple[int, int, bool, str]
DIRECTIONS = ("forward", "adjoint")


def relative_errors(errors: Sequence[Errors], comm: Communicator) -> list[dict[str, Any]]:
    """Relative errors of each product of an epoch and its adjoint, by what made them. Collective.

    Parameters
    ----------
    errors : sequence of Errors
        Of this rank, one a matrix, in the order of the layers.
    comm : Communicator
        All ranks.

    Returns
    -------
    list of dict
        ``product``, its number in an epoch; ``direction``; ``error``, the root of the sum of the
        squares of those in ``by``, each the norm of what was lost over the norm of what was to be
        sent, all rows of all ranks and measured epochs together. ``None`` is no number.
    """
    mine: dict[Account, Tensor] = {
        (matrix, *key): sums.cpu()
        for matrix, each in enumerate(errors)
        for key, sums in each.sums().items()
    }
    accounts = _of_all(mine, comm)
    nothing = torch.zeros(2, dtype=torch.float64)
    sums = torch.stack([nothing, *(mine.get(account, nothing) for account in accounts)])
    comm.all_reduce(sums).wait()
    shares = {a: _relative(*row) for a, row in zip(accounts, sums[1:].tolist(), strict=True)}
    products = sorted({account[:2] for account in accounts})
    found = []
    for (matrix, product, adjoint), kinds in groupby(accounts, key=lambda account: account[:3]):
        by = {account[3]: shares[account] for account in kinds}
        told = {"product": products.index((matrix, product)), "direction": DIRECTIONS[adjoint]}
        found.append({**told, "error": _together(by.values()), "by": by})
    return found


def _of_all(mine: Iterable[Account], comm: Communicator) -> list[Account]:
    """The accounts that any rank has, in order: not every wire has something on all of them."""
    text = json.dumps(sorted(mine)).encode()
    longest = comm.agree(len(text))
    padded = torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8)
    texts = torch.empty(comm.size, longest, dtype=torch.uint8)
    comm.all_gather(padded[None], texts, [1] * comm.size)
    every = {tuple(account) for row in texts for account in json.loads(row.numpy().tobytes())}
    return sorted(every)


def _relative(error: float, norm: float) -> float | None:
    """The roots' ratio; nothing lost of nothing is no error."""
    share = math.sqrt(error / norm) if norm > 0 else (0.0 if error == 0 else math.inf)
    return share if math.isfinite(share) else None


def _together(shares: Iterable[float | None]) -> float | None:
    """Independent errors, added up."""
    total = math.hypot(*(math.inf if share is None else share for share in shares))
    return total if math.isfinite(total) else None
