"""What communication cost this rank, counted where bytes are handed to the transport."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Traffic:
    """What one kind of operation cost this rank so far."""

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    sent_between: int = 0
    """Of `sent_bytes`, those for ranks of other nodes, where the ledger knows nodes."""
    received_between: int = 0
    seconds: float = 0.0
    """Seconds this rank was blocked, in starting the operation and in waiting for its end."""


@dataclass
class Ledger:
    """Traffic by operation.

    Attributes
    ----------
    operations : dict
    node_size : int
        So many neighbouring ranks are a node, and what all-to-alls, broadcasts and reductions move
        between nodes is counted apart; 0 if that is not known.
    """

    operations: dict[str, Traffic] = field(default_factory=dict)
    node_size: int = 0

    def of(self, operation: str) -> Traffic:
        """The running account of one operation."""
        return self.operations.setdefault(operation, Traffic())

    def copy(self) -> Ledger:
        """A snapshot, to subtract from a later one."""
        return Ledger({name: Traffic(**vars(t)) for name, t in self.operations.items()})

    def since(self, earlier: Ledger) -> Ledger:
        """What was added after the snapshot `earlier`."""
        added = {}
        for name, now in self.operations.items():
            before = earlier.operations.get(name, Traffic())
            if now.calls == before.calls:
                continue
            added[name] = Traffic(**{k: v - getattr(before, k) for k, v in vars(now).items()})
        return Ledger(added)
