"""Options of the command spgnn download."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from spgnn.options import Record, flag, positional
from spgnn.registry import DOWNLOADS


@dataclass(frozen=True)
class Download(Record):
    """Fetch a public data set and keep it as .npz."""

    name: Annotated[str, positional(", ".join(DOWNLOADS))]
    data_dir: Annotated[str | None, flag("where named sets live", "DIR")] = None
