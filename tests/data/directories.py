"""A small graph, and graph directories changed in ways that their digests do not betray."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from spgnn.data.arrays import ArrayRecord, ArrayWriter
from spgnn.data.generators import block_model
from spgnn.data.shards import META, PART, _fingerprint, write_part


def rewrite(directory: Path, part: int, name: str, array: np.ndarray | None) -> None:
    """Give a part another array (``None``: none), and describe it as if it had been written so."""
    folder = directory / f"part-{part:05d}"
    described = json.loads((folder / PART).read_text())["arrays"]
    records = {key: ArrayRecord.of(key, entry) for key, entry in described.items()}
    if array is None:
        del records[name]
        (folder / f"{name}.npy").unlink()
    else:
        writer = ArrayWriter(folder / f"{name}.npy", array)
        writer.append(array)
        records[name] = writer.finish()
    digest = write_part(folder, part, records)
    meta = json.loads((directory / META).read_text())
    meta["digests"][part] = digest
    restate(directory, meta)


def restate(directory: Path, meta: dict) -> None:
    """Give a directory another description."""
    meta["digest"] = _fingerprint(meta)
    (directory / META).write_text(json.dumps(meta))


def small_graph():
    """Of 60 vertices."""
    return block_model(60, 300, classes=3, features=4, seed=2)
