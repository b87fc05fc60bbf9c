"""Moments of a norm over all vertices whose rows come chunk by chunk, and their gradients."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.graph.moments import Moments
from spgnn.nn.norm import Norm


@dataclass(eq=False)
class Known:
    """Mean and variance of what one norm takes, over all vertices.

    Attributes
    ----------
    norm : Norm
    mean, variance : Tensor float64 [f]
    count : int
    gradient : Tensor float64 [2, f], optional
        Of the mean and the variance, over all rows of all ranks, once it is known: then what is
        sent backward through any rows has their share of it.
    shift : Tensor [f], optional
        The bias that the norm gets apart from its rows; it is no part of the mean.
    """

    norm: Norm
    mean: Tensor
    variance: Tensor
    count: int
    gradient: Tensor | None = None
    shift: Tensor | None = None

    def of(self, x: Tensor, *, leaf: bool) -> tuple[Moments, list[Tensor]]:
        """As the norm takes them, of some rows [rows, f].

        Parameters
        ----------
        x : Tensor [rows, f]
        leaf : bool
            Whether gradients of mean and variance are asked for.

        Returns
        -------
        moments
        leaves : list of Tensor [f]
            Mean and variance, if they are.
        """
        centre = self.mean.to(x.dtype)
        mean = (self.mean - centre).to(x.dtype).requires_grad_(leaf)
        variance = self.variance.to(x.dtype).requires_grad_(leaf)
        centred = x - centre
        if self.gradient is not None and centred.requires_grad:
            self._returned_through(centred, mean.detach())
        found = Moments(centred, centre, mean, variance, self.count)
        return found, [mean, variance] if leaf else []

    def remembered(self, dtype: torch.dtype) -> None:
        """Let the norm take them into its running ones."""
        if self.count > 1:
            found, _ = self.of(self.mean[None].to(dtype), leaf=False)
            if self.shift is not None:
                found = replace(found, centre=found.centre + self.shift)
            self.norm.remember(found)

    def _returned_through(self, centred: Tensor, mean: Tensor) -> None:
        """Add the share that rows have in the gradients of mean and variance to theirs."""
        assert self.gradient is not None
        of_mean, of_variance = (self.gradient / self.count).to(centred.dtype)
        shift, rows = of_mean - 2 * of_variance * mean, centred.detach()
        centred.register_hook(lambda G: torch.addcmul(G + shift, rows, 2 * of_variance))


class Gathered:
    """Number, mean and squared distances from it, of rows that come chunk by chunk.

    Chunks are merged as Chan, Golub & LeVeque (1983) do; nothing cancels.
    """

    def __init__(self) -> None:
        self._norm: Norm | None = None
        self._shift: Tensor | None = None
        self._rows = 0
        self._mean = self._squares = torch.zeros(0, dtype=torch.float64)

    def add(self, norm: Norm, x: Tensor, shift: Tensor | None = None) -> None:
        """The rows of one more chunk [rows, f], which a norm is given, and a bias apart."""
        if self._norm is None:
            self._norm, self._shift = norm, None if shift is None else shift.detach().clone()
            self._mean = self._squares = x.new_zeros(x.shape[1], dtype=torch.float64)
        rows = len(x)
        if not rows:
            return
        centre = x.mean(0)
        variance, rest = torch.var_mean(x - centre, 0, correction=0)
        apart = centre.double() + rest.double() - self._mean
        total = self._rows + rows
        self._mean = self._mean + apart * (rows / total)
        between = apart.square() * (self._rows * rows / total)
        self._squares = self._squares + rows * variance.double() + between
        self._rows = total

    def over_ranks(self, comm: Communicator | None) -> Known:
        """Of all vertices. Collective."""
        assert self._norm is not None
        rows, mean, squares = self._rows, self._mean, self._squares
        if comm is not None and comm.size > 1:
            total = torch.cat((rows * mean, mean.new_tensor([rows])))
            comm.all_reduce(total).wait()
            count = int(total[-1])
            middle = total[:-1] / max(count, 1)
            squares = squares + rows * (mean - middle).square()
            comm.all_reduce(squares).wait()
            rows, mean = count, middle
        return Known(self._norm, mean, squares / max(rows, 1), rows, shift=self._shift)


class Returned:
    """Gradients of one norm's mean and variance, added up chunk by chunk."""

    def __init__(self) -> None:
        self._total: Tensor | None = None

    def add(self, H: Tensor, dH: Tensor, leaves: list[Tensor]) -> None:
        """Add the gradients of mean and variance that some output rows of a layer contribute."""
        found = torch.autograd.grad(H, leaves, dH, allow_unused=True)
        both = [
            torch.zeros_like(leaf) if gradient is None else gradient
            for gradient, leaf in zip(found, leaves, strict=True)
        ]
        here = torch.stack(both).detach().double()
        self._total = here if self._total is None else self._total + here

    def over_ranks(self, comm: Communicator | None) -> Tensor:
        """Of all rows, float64 [2, f]. Collective."""
        total = self._total
        assert total is not None
        if comm is not None and comm.size > 1:
            comm.all_reduce(total).wait()
        return total
