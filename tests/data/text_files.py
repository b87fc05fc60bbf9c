"""Text files to be read."""

import bz2
import gzip
import lzma

MTX = "%%MatrixMarket matrix coordinate "
PACK = {".gz": lambda raw: gzip.compress(raw, mtime=0), ".bz2": bz2.compress, ".xz": lzma.compress}


def put(directory, name, content):
    """Write a file, packed if it is named so."""
    path = directory / name
    raw = content.encode() if isinstance(content, str) else content
    pack = PACK.get(path.suffix.lower())
    path.write_bytes(raw if pack is None else pack(raw))
    return path
