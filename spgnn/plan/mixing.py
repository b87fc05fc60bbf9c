"""Plans in which layers have algorithms of their own.

What the products of a layer take depends on who owns which rows, on the layers above it by the rows
that these need, and on nothing else of other layers. So on the rows of one algorithm the best
choice for each layer is found layer by layer, from plans in which all layers have the same one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from spgnn.exchange import Algorithm
from spgnn.plan.configurations import Configuration
from spgnn.plan.counted import Counted
from spgnn.plan.search import Arrange, Planned, Plans, Price, arrangement

# On the rows of so many algorithms, so many are tried for the layers.
_HOSTS, _GUESTS = 2, 4
# Seconds of the products of each layer of what has been priced.
LayerSeconds = Callable[[Configuration, dict[Plans, Counted]], list[float]]


class Mixer:
    """Finds the best algorithm for each layer.

    Parameters
    ----------
    price, arrange : callable
        As of :class:`~spgnn.plan.search.Search`.
    layers : callable
        Seconds by layer of a configuration that has been priced with these counts.
    """

    def __init__(self, price: Price, arrange: Arrange, layers: LayerSeconds) -> None:
        self._price, self._arrange, self._layers = price, arrange, layers

    def mixed(self, priced: Sequence[Planned], layers: int) -> list[Planned]:
        """Plans on the rows of the fastest ones, with other algorithms for all layers or for some.

        Parameters
        ----------
        priced : sequence of Planned
            In which all layers have one algorithm.
        layers : int
        """
        ranked = sorted(filter(_takes_part, priced), key=lambda one: one.seconds)
        if not ranked or ranked[0].configuration.ranks == 1:
            return []
        hosts: dict[object, Configuration] = {}
        shapes: dict[tuple[str, int], None] = {}
        for one in ranked:
            how = one.configuration
            hosts.setdefault(arrangement(how), how)
            shapes.setdefault((how.algorithm.algo, how.algorithm.c))
        found = list[Planned]()
        for host in list(hosts.values())[:_HOSTS]:
            others = [replace(host.algorithm, algo=a, c=c) for a, c in list(shapes)[:_GUESTS]]  # type: ignore[arg-type]
            found += self._on_rows_of(host, others, layers)
        return found

    def _on_rows_of(
        self, host: Configuration, others: Sequence[Algorithm], layers: int
    ) -> list[Planned]:
        """Each of the others for all layers, and the best one for each layer."""
        counted: dict[Plans, Counted] = {}
        self._price(host, self._arrange(host), counted)
        own = self._layers(host, counted)
        seconds, priced = {host.algorithm: own}, dict[tuple[Algorithm, ...], Planned]()
        for other in others:
            if other not in seconds:
                every, counted = (other,) * layers, {}
                one = replace(host, by_layer=every)
                priced[every] = self._price(one, self._arrange(one), counted)
                seconds[other] = self._layers(one, counted)
        # Where it makes no difference, as with ghosts, the host's: there may be a matrix less.
        wanted = [
            tuple(other if seconds[other][n] != own[n] else host.algorithm for n in range(layers))
            for other in seconds
        ]
        wanted.append(tuple(min(seconds, key=lambda one: seconds[one][n]) for n in range(layers)))
        found = list[Planned]()
        for by_layer in dict.fromkeys(wanted):
            if set(by_layer) == {host.algorithm}:
                continue
            one = replace(host, by_layer=by_layer)
            found.append(priced.get(by_layer) or self._price(one, self._arrange(one), {}))
        return found


def _takes_part(one: Planned) -> bool:
    """Whether others can work on its rows, and it on theirs."""
    configuration, how = one.configuration, one.configuration.algorithm
    return (
        not configuration.by_layer
        and how.node_size == 1
        and how.schedule == "overlap"
        and how.exchange == "sparsity-aware"
        and how.algo != "vertex-cut"
    )
