"""Private parts of torch that spgnn needs, each with the reason; nothing else uses ``torch._C``."""

from __future__ import annotations

import torch


def in_backward() -> bool:
    """Whether autograd is at work: ``torch.utils.checkpoint`` then runs a forward a second time.

    torch has no public question for it.
    """
    return torch._C._current_graph_task_id() >= 0
