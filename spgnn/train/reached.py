"""How long training took to reach a score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SHARES = ("acc", "f1_micro", "f1_macro", "roc_auc", "r2", "mrr")


def seconds_to(history: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds of training until a score was reached, for every whole percent above all before.

    The score is that on the test set, or on the validation set without one, by what is reported
    first; evaluation takes no time.
    """
    names = [name for record in history for name in record]
    scores = [f"{split}_{share}" for split in ("test", "val") for share in _SHARES]
    known = [name for name in scores if name in names]
    usable = [n for n in known if any(record.get(n) is not None for record in history)]
    found: dict[str, float] = {}
    if not usable:
        return found
    seconds, best = 0.0, -1
    for record in history:
        seconds += record["seconds"]
        score = record.get(usable[0])
        percent = -1 if score is None else int(score * 100 + 1e-9)
        for reached in range(max(best + 1, 0), percent + 1):
            found[f"{reached / 100:.2f}"] = seconds
        best = max(best, percent)
    return found
