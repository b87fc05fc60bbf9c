"""What communication cost this rank, counted where bytes are handed to the transport."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Traffic:
    """What one kind of operation cost this rank so far."""

    calls: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0
    """Seconds this rank was blocked, in starting the operation and in waiting for its end."""


@dataclass
class Ledger:
    """Traffic by operation."""

    operations: dict[str, Traffic] = field(default_factory=dict)

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
