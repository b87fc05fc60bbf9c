"""What may be kept of memory that is freed, so that the next part need not ask for it again."""

from __future__ import annotations

from dataclasses import dataclass

from spgnn.direct import keep_pages, pages_held
from spgnn.memory import give_back_holes, resident_bytes


@dataclass(frozen=True)
class Spare:
    """How much of a budget is for memory that is free, and would be taken again soon.

    Attributes
    ----------
    pages : int
        Bytes of tables and of what is read, in use and kept.
    piece : int
        Bytes that a part may take beside them while it is worked on.
    resident : int, optional
        Bytes that the process may have at most; ``None``: whatever it takes.
    """

    pages: int
    piece: int
    resident: int | None

    def keep(self) -> None:
        """From now on keep freed pages, up to what there is for them."""
        keep_pages(self.pages)

    def make_room(self) -> None:
        """Before a pass, whose pieces have other sizes: they may not fit into what is free."""
        if self.resident is None:
            return
        may_come = self.pages - pages_held() + self.piece
        if resident_bytes() + may_come > self.resident:
            give_back_holes()


def keep_nothing() -> None:
    """Give back the pages that are kept; what is in use is not touched."""
    keep_pages(None)
