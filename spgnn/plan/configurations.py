"""Which configurations there are for so many ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from spgnn.errors import InputError
from spgnn.exchange import COVERS, Algorithm
from spgnn.exchange.algorithm import ALGOS
from spgnn.nn import Order
from spgnn.plan.network import Network

# Beyond so many replicas a fold costs more than any exchange of rows it spares.
MOST_REPLICAS = 16
# Beyond so many, the plans of all ranks take a second or more for each algorithm.
MANY_RANKS = 512


@dataclass(frozen=True)
class Configuration:
    """Everything that planning may choose.

    Attributes
    ----------
    ranks : int
    method, objective : str
        Of the partition.
    algorithm : Algorithm
    order : {"auto", "paper"}
    ghosts, reach : bool
    """

    ranks: int
    method: str
    objective: str
    algorithm: Algorithm
    order: Order = "auto"
    ghosts: bool = False
    reach: bool = True

    @property
    def parts(self) -> int:
        """Parts of the partition."""
        return self.algorithm.parts(self.ranks)

    @property
    def nodes(self) -> int | None:
        """Nodes that the partition knows, as the training command makes it."""
        return self.algorithm.nodes(self.parts) if self.method == "gvb" else None

    @property
    def storage(self) -> dict[str, Any] | None:
        """What lies on a disk, if rows are worked through in parts."""
        return None

    def network(self, given: Network) -> Network:
        """The model as this configuration trains it."""
        return replace(given, order=self.order, ghosts=self.ghosts)

    @property
    def flags(self) -> dict[str, Any]:
        """Of the training command, by name."""
        how = dict(vars(self.algorithm))
        node_size = how.pop("node_size")
        return {
            **how,
            "hierarchy": str(node_size) if node_size > 1 else "none",
            "order": self.order,
            "recompute_halo": self.ghosts,
            "prune": self.reach,
            "partition": self.method,
        }

    def written(self) -> list[str]:
        """The same as they are written, without those that are defaults."""
        found = []
        defaults = Configuration(self.ranks, "gvb", "column", Algorithm()).flags
        for name, value in self.flags.items():
            flag = "--" + name.replace("_", "-")
            if value == defaults[name]:
                continue
            if isinstance(value, bool):
                found.append(flag if value else flag.replace("--", "--no-", 1))
            else:
                found += [flag, str(value)]
        return found

    def __str__(self) -> str:
        parts: list[str] = [self.algorithm.algo]
        if self.algorithm.c > 1:
            parts.append(f"c={self.algorithm.c}")
        parts.append(self.algorithm.cover)
        extras = {
            f"nodes of {self.algorithm.node_size}": self.algorithm.node_size > 1,
            "recomputed halo": self.ghosts,
            "not pruned": not self.reach,
            "paper order": self.order == "paper",
        }
        parts += [name for name, there in extras.items() if there]
        return " ".join(parts)


def algorithms(
    ranks: int, ranks_a_node: int = 1, most_replicas: int = MOST_REPLICAS
) -> Iterator[Algorithm]:
    """Every algorithm that works on so many ranks, each once.

    Parameters
    ----------
    ranks : int
    ranks_a_node : int
        Where there are several nodes, what crosses between them may be sent once.
    most_replicas : int
        Largest c.
    """
    copies = [c for c in range(1, min(ranks, most_replicas) + 1) if ranks % c == 0]
    known: set[tuple[int, int]] = set()
    for algo in ALGOS:
        # Shares of feature columns are not folded: with all ranks as shares no row is exchanged.
        for c in sorted({*copies, ranks}) if algo == "feature" else copies:
            plain = Algorithm(algo, c)  # type: ignore[arg-type]
            if not _works(plain, ranks):
                continue
            if algo != "vertex-cut":
                shape = plain.copies(ranks)
                if shape in known:
                    continue  # the same under another name, as 2D of two replicas and 1.5D are
                known.add(shape)
            for cover in COVERS:
                flat = replace(plain, cover=cover)  # type: ignore[arg-type]
                found = [flat, replace(flat, node_size=ranks_a_node)]
                several = 1 < ranks_a_node < ranks
                yield from (one for one in found[: 1 + several] if _works(one, ranks))


def configurations(
    ranks: int,
    network: Network,
    methods: Sequence[str],
    *,
    ranks_a_node: int = 1,
    thorough: bool = True,
) -> Iterator[Configuration]:
    """All configurations, those of one partition and algorithm one after another.

    Parameters
    ----------
    ranks : int
    network : Network
        Ghosts are left out where they do not fit it.
    methods : sequence of str
        Of the partitioner. gvb makes another partition for minimum covers.
    ranks_a_node : int
    thorough : bool
        Without, only what is likely to win: columns and minimum covers, up to 4 replicas, and the
        order that moves less; on very many ranks 1D, 1.5D and feature-parallel alone, without
        hierarchy.
    """
    for algorithm in algorithms(ranks, ranks_a_node, MOST_REPLICAS if thorough else 4):
        if not network.works_with(algorithm) or (not thorough and not _likely(algorithm, ranks)):
            continue
        for method in methods:
            for objective in _objectives(method, algorithm):
                # Where norms take all rows, reach makes no difference.
                every = network.takes_all_rows
                base = Configuration(ranks, method, objective, algorithm, reach=not every)
                yield base
                if not every:
                    yield replace(base, reach=False)
                if network.takes_ghosts and ranks > 1:
                    yield replace(base, ghosts=True)
                if thorough and network.kind == "gcn":
                    yield replace(base, order="paper")


def _likely(algorithm: Algorithm, ranks: int) -> bool:
    """Whether an algorithm is worth its plans on a large graph."""
    if ranks <= MANY_RANKS:
        return algorithm.cover != "row"
    if algorithm.node_size > 1:
        return False
    if algorithm.algo == "1d":
        return algorithm.cover != "row"
    return algorithm.algo in ("1.5d", "feature") and algorithm.cover == "column"


def fitting(
    candidates: Iterable[Configuration], given: Mapping[str, Any]
) -> Iterator[Configuration]:
    """The configurations that have all the flags that were given.

    Parameters
    ----------
    candidates : iterable of Configuration
    given : mapping of flag to value
        Of `Configuration.flags`.
    """
    # Never worth a thought of one's own, but somebody may compare with it, or be short of memory.
    fixed = {name: given[name] for name in ("exchange", "schedule", "buffer") if name in given}
    for one in candidates:
        algorithm = replace(one.algorithm, **fixed)
        found = replace(one, algorithm=algorithm)
        flags = found.flags
        fits = all(flags[name] == value for name, value in given.items())
        if fits and _works(found.algorithm, found.ranks):
            yield found


def _objectives(method: str, algorithm: Algorithm) -> tuple[str, ...]:
    """As the training command has them: gvb knows what minimum covers move."""
    return ("cover",) if method == "gvb" and algorithm.cover == "minimum" else ("column",)


def _works(algorithm: Algorithm, ranks: int) -> bool:
    try:
        algorithm.check(ranks)
    except InputError:
        return False
    return True
