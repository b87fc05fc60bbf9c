"""What all approximate wires are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from spgnn.comm import Communicator
from spgnn.exchange import Carried, Flight, Route, Step, Wire
from spgnn.exchange.wire import Moved
from spgnn.wires.approximation import Dials
from spgnn.wires.draws import key_of
from spgnn.wires.errors import Errors
from spgnn.wires.policy import Policy

State = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class Setting:
    """What all wires of one matrix share.

    Attributes
    ----------
    dials : Dials
    errors : Errors
    seed : int
    matrix : int
        Its number among those of a model: layers draw for themselves.
    policy : Policy
        When it is used.
    """

    dials: Dials
    errors: Errors
    seed: int = 0
    matrix: int = 0
    policy: Policy = field(default_factory=Policy)

    def key(self, step: Step, purpose: str) -> int:
        """64 bits for the draws of one step."""
        return key_of(self.seed, self.matrix, step, purpose)

    def shared_key(self, step: Step, purpose: str) -> int:
        """64 bits for what a product and its adjoint draw alike."""
        return self.key(replace(step, adjoint=False, use=None), purpose)


class Codecs:
    """The codecs of one matrix's hops, and how often each product has been made.

    Several losses have a backward each, and the gradient of a gradient multiplies once more: these
    are other rows, and what a codec keeps of the first ones is not for them.

    Parameters
    ----------
    setting : Setting
    hops : iterable of Wire
        What the rows of each hop go through.
    """

    def __init__(self, setting: Setting, hops: Iterable[Wire]) -> None:
        self.setting, self.hops = setting, list(hops)
        self._remembers = any(wire.remembers for wire in self.hops)
        self._uses: dict[tuple[int, bool], tuple[int, int]] = {}

    def begin(self, step: Step, carried: Callable[[Step], Iterator[Carried]]) -> Step:
        """The step of a product, or its adjoint, that begins now and moves what `carried` says."""
        if self._remembers:
            product = step.product, step.adjoint
            epoch, uses = self._uses.get(product, (step.epoch, 0))
            use = uses if epoch == step.epoch else 0
            self._uses[product] = step.epoch, use + 1
            step = replace(step, use=use)
        self.setting.policy.note(lambda: carried(step))
        return step


class Layer(Wire):
    """A wire that does something to rows, and hands them to another one.

    Parameters
    ----------
    inner : Wire
        Carries what is left to carry.
    setting : Setting
    """

    def __init__(self, inner: Wire, setting: Setting) -> None:
        self.inner, self.setting = inner, setting
        self._forget()

    def _forget(self) -> None:
        """Keep nothing of earlier products."""

    def __deepcopy__(self, memo: dict[int, object]) -> Layer:
        # Of another matrix: it asks the same dials, and begins anew.
        other = copy.copy(self)
        other.inner = copy.deepcopy(self.inner, memo)
        other._forget()
        return other

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Whether it keeps anything of one product for another."""
        return self.inner.remembers

    def begin(
        self, rows: Tensor, out: Tensor, route: Route, comm: Communicator, step: Step
    ) -> Flight:
        """Hand the rows on."""
        return self.inner.begin(rows, out, route, comm, step)

    def bytes(self, route: Route, width: int, dtype: torch.dtype, step: Step) -> Moved:
        """What the other one moves."""
        return self.inner.bytes(route, width, dtype, step)

    def land(self) -> None:
        """Wait for all rows that are under way. Collective."""
        if isinstance(self.inner, Layer):
            self.inner.land()

    def forget(self) -> None:
        """Begin anew, and give all buffers back; no rows may be under way."""
        self._forget()
        if isinstance(self.inner, Layer):
            self.inner.forget()

    def state(self) -> State:
        """What it keeps, by name; collective if rows are under way.

        A wire that is given it goes on as this one would. Tensors are those that the wire uses.
        """
        inner = self.inner.state() if isinstance(self.inner, Layer) else {}
        return {f"inner.{name}": tensor for name, tensor in inner.items()}

    def load(self, state: State) -> None:
        """Go on from a state; tensors are taken over."""
        if isinstance(self.inner, Layer):
            inner = {k.removeprefix("inner."): v for k, v in state.items() if k[:6] == "inner."}
            self.inner.load(inner)


def line_name(step: Step) -> str:
    """What a line of products, one an epoch, is called in a state."""
    return f"{step.product}{'t' if step.adjoint else ''}{f'+{step.use}' if step.use else ''}"
