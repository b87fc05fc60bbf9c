"""Options of training from a disk, and what that does not know."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from spgnn.config import Extension, TrainConfig
from spgnn.options import flag, key

_NAMED = "--memory, --spill and --chunks"


@dataclass(frozen=True)
class Storage(Extension):
    """Graphs larger than memory: what lies on a disk, and is worked through in chunks."""

    memory: Annotated[
        int, flag("of each rank, everything counted: 20GB, 512MiB", "BYTES", in_bytes=True)
    ] = 0
    spill: Annotated[str | None, flag("what does not fit goes there, and is removed", "DIR")] = None
    chunks: Annotated[
        int, flag("work through a rank's rows in K chunks; 0: as few as fit", "K")
    ] = 0
    spill_dtype: Annotated[
        Literal["float32", "bfloat16"], key("of features and of A·X on the disk")
    ] = "float32"
    recompute: Annotated[
        Literal["auto", "never", "always"],
        key("compute again what layers look at beside products, instead of keeping it"),
    ] = "auto"

    @property
    def asked(self) -> bool:
        """True if a rank's rows are worked through in chunks."""
        return bool(self.memory or self.spill or self.chunks)

    def opener(self, config: TrainConfig) -> Any:
        """The task that opens its data itself."""
        if not self.asked or config.model.registered.typed:
            return None
        from spgnn.addons.outofcore.chunked_links import task_of  # which needs all of training

        return task_of

    def refused(self, config: TrainConfig) -> Iterator[str]:
        """Say what working through rows in chunks does not know."""
        how, model, aim, memory = config.algorithm, config.model, config.aim, self.memory
        if not self.asked:
            for option, _ in self.changed:
                yield f"{option.written} needs --memory, --spill or --chunks"
            return
        if memory and memory < 1 << 20:
            yield f"--memory: {memory} bytes are less than any process takes; give a unit: 20GB"
        from spgnn.exchange import Algorithm  # which --help does not wait for

        differs = how.order != "auto" or how.recompute_halo or how.plan
        if config.distribution != Algorithm() or differs:
            yield (
                f"{_NAMED} need --algo 1d, --cover column, --order auto, no --recompute-halo and "
                "no --hierarchy, --relays, --schedule or --plan: the disk is what they plan for"
            )
        if not config.codec.exact:
            yield f"{config.described_messages} needs rows in memory: no {_NAMED}"
        if aim.inductive or config.changes_features:
            yield f"{_NAMED} need fixed rows: no {config.changes_features or 'aim.inductive'}"
        if config.training.dtype == "bfloat16" and not model.multiplies:
            yield (
                f"{_NAMED} with --dtype bfloat16 need layers that are products: "
                "no attention, no features of edges, and --aggregate mean or sum"
            )
        if model.registered.attends_globally == "softmax":
            yield f"--model {model.model} weighs all vertices by a softmax: no {_NAMED}"
        if config.training.runs > 1:
            yield f"{_NAMED} need --runs 1"
        if config.job.device == "cuda":
            yield f"{_NAMED} work on CPUs: --device cpu"
        if model.message_dropout:
            yield f"{_NAMED} weigh the rows that were scored: model.message-dropout 0"
