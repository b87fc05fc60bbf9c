"""The command spgnn infer: a trained model on a whole graph, on one or many ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from spgnn.comm import Communicator
from spgnn.comm.launch import run_job
from spgnn.command import say
from spgnn.config import DESCRIBED, InferConfig, Model
from spgnn.errors import InputError, memory_for
from spgnn.files import check_new_directory, check_writable
from spgnn.frontend.from_config import training_graph
from spgnn.graph.vertices import check_table, write_rows
from spgnn.inference.forward import infer
from spgnn.inference.weights import State, deal_weights, outputs_of, read_state
from spgnn.memory import resident_bytes
from spgnn.nn.rowwise import multiplied_in, weights_of
from spgnn.train.run import check_run, resolved
from spgnn.train.task import model_of


def run_infer(words: Sequence[str]) -> int:
    """Compute and write; returns the exit status of this rank, or of the job."""
    return run_job(lambda: InferConfig.read(words), infer_to_file, lambda config, line: say(line))


def infer_to_file(config: InferConfig, comm: Communicator) -> str:
    """Compute and write the outputs; returns a line that says what was written. Collective."""
    weights, path = str(config.inference.weights), str(config.inference.output)
    check_run(config, comm, lambda: _check_output(path))
    state = comm.on_rank_zero(lambda: _read(config, weights))
    end = config.model.registered.linear_end
    outputs = comm.from_rank_zero(lambda: outputs_of(state or {}, weights, end))
    settled = resolved(config.settled(outputs), comm)
    dtype = config.training.dtype
    give_back: Callable[[], None] | None = None
    columns: Mapping[str, Any] = {}
    with ExitStack() as stack:
        if config.opener is not None:
            task = config.opener(settled, comm, resident_bytes(), outputs)
            stack.callback(task.close)
            deal_weights(task.model, state, weights, comm)
            comm.settled()
            with multiplied_in(dtype, comm.device):
                ids, arrays, give_back, columns = task.results()
            rows = arrays["rows"]
        else:
            data = training_graph(settled, comm)
            model = model_of(settled, data.whole.num_features, outputs)
            model = model.to(comm.device, weights_of(dtype))
            deal_weights(model, state, weights, comm)
            comm.settled()
            with memory_for("the activations of a layer"), multiplied_in(dtype, comm.device):
                graph = data.A if data.with_edges is None else data.whole
                layer = config.inference.layer or None
                rows = infer(model, graph, data.features, layer=layer)
            ids = data.whole.vertex_ids
        what = f"--output {path}"
        table = path.endswith(".parquet")
        name, columns = ("output", columns) if table else ("rows", {})
        write_rows(path, {name: rows}, ids, comm, what, give_back, config.data.dataset, columns)
        vertices = comm.agree(len(ids), "sum")
        return f"{path}: {vertices:,} vertices × {rows.shape[1]} {rows.dtype}"


def _check_output(path: str) -> None:
    if path.endswith(".parquet"):
        check_table(f"--output {path}")
    if path.endswith((".npy", ".parquet")):
        check_writable(path, "--output")
    else:
        check_new_directory(path, "--output")


def _read(config: InferConfig, weights: str) -> State:
    state, signature = read_state(weights)
    for name in DESCRIBED if signature else ():
        ours = getattr(config.model, name)
        theirs = signature.get(name, getattr(Model(), name))
        if theirs != ours:
            raise InputError(f"{weights}: was made with {name} {theirs}, not {ours}")
    return state
