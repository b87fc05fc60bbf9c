"""Text files to be read."""

import gzip

MTX = "%%MatrixMarket matrix coordinate "


def put(directory, name, content):
    """Write a file, gzipped if it is named so."""
    path = directory / name
    raw = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(raw, mtime=0) if name.endswith(".gz") else raw)
    return path
