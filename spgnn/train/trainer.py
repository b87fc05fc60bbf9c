"""The training loop: full-graph epochs of any task, gradients summed over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from difflib import SequenceMatcher
from functools import partial
from inspect import signature
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

from spgnn.comm import Communicator
from spgnn.command import plural
from spgnn.config import Aim, Training
from spgnn.errors import InputError, check_choice, memory_for, unknown
from spgnn.graph import DistributedGraph
from spgnn.graph.parameters import check_replicated
from spgnn.graph.vertices import write_rows
from spgnn.memory import FreedMemory
from spgnn.nn.loss import LossFunction
from spgnn.nn.rowwise import multiplied_in, weights_of
from spgnn.options import options_of
from spgnn.progress import ProgressBar
from spgnn.torch_internals import default_device, without_compiler
from spgnn.train import checkpoint
from spgnn.train.callbacks import Callback, call, states_of
from spgnn.train.measure import Measurements
from spgnn.train.task import Scores, Task
from spgnn.train.vertices import GivenModel, Metric

# In one pass over each parameter: a dozen small operators a parameter are a tenth of a short epoch.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": partial(without_compiler(torch.optim.Adam), fused=True),
    "adamw": partial(without_compiler(torch.optim.AdamW), fused=True),
    "sgd": partial(without_compiler(torch.optim.SGD), fused=True),
}
# Arguments of Trainer that are no options, by words of other trainers.
_ARGUMENTS = {
    "loss": "criterion",
    "forward": "autocast, amp, precision",
    "metrics": "scores",
    "callbacks": "loggers and schedulers",
}
_LOSSES = next(option.choices for option in options_of(Aim) if option.name == "loss")


class Trainer:
    """Trains a model on this rank's share of a graph, together with all other ranks. Collective.

    Gradients and losses are sums over all ranks: the history is that of one process.

    Parameters
    ----------
    model : Module or Task
        A module with layers of :mod:`spgnn.nn` is called as ``model(graph.x, graph)``, any other
        one as ``model(graph.x, graph.edge_index)``, with ``edge_weight`` and ``edge_attr`` where it
        names them and the graph has them. It returns a row for each own vertex, [own
        rows] or [own rows, …], and starts from the parameters of rank 0. A :class:`Task` brings its
        own model, loss and scores, and takes no graph and no loss.
    graph : DistGraph or HeteroDistGraph, optional
        With labels y and masks: it is trained on the training vertices that have a label, and
        scored on all three masks. Without masks, a seeded split. Of several vertex types, a model
        is called with ``graph.x_dict``, and returns the rows of all types, or of that with labels.
    target : str, optional
        Of several vertex types, the one whose labels are learnt; by default the only one with y.
    loss : str or callable
        ``"softmax"``, ``"multilabel"``, ``"mse"``, ``"l1"``, ``"huber"``, or ``"auto"``: what y is,
        one class a vertex, several (integers or numbers [n, labels], all 0 or 1), or numbers. Or a
        function of (outputs, y) of some vertices, y as the graph has it, that returns the mean of
        their losses, as those of ``torch.nn.functional``; or (sum, weight), where it is a weighted
        mean. It is called with parts of the vertices first, and refused if their losses do not add
        up. Scores are those that fit what it calls: F.binary_cross_entropy_with_logits, say.
    optimizer : str, Optimizer or callable, optional
        ``"adam"``, ``"adamw"`` or ``"sgd"``; an optimiser of all parameters of the model that are
        trained, which keeps its own settings; a class, which is given `lr`, and `weight_decay` if
        that is set; or a function of the parameters that returns an optimiser.
    forward : callable, optional
        ``forward(model, graph)`` to what the model returns, if it is called otherwise.
    metrics : sequence of str or callable
        Further scores: names of ``--metric``, and functions of (outputs, y), as the loss takes
        them, or objects of torchmetrics. These are called on rank 0 with all vertices of a mask
        that have a label, return a number, and are named as their function or class.
    options : Training, optional
        Instead of `settings`.
    callbacks : sequence of callable or LRScheduler
        ``on_epoch(record)``; those of rank 0 are called, whatever the others are given. What they
        set of the optimiser, as schedulers of torch do, is set on all ranks; one that returns
        ``True`` ends training. Schedulers are stepped after each epoch, ``ReduceLROnPlateau`` with
        the validation loss; what has a ``state_dict`` is in checkpoints.
    **settings
        Of :class:`spgnn.config.Training`: ``lr``, ``weight_decay`` (0 by default), ``seed``,
        ``patience``, ``eval_every``, ``checkpoint`` with ``checkpoint_every`` and ``resume``,
        ``lr_schedule``, ``warmup``, ``clip``, ``dtype``.

    Raises
    ------
    InputError
        If options do not go together, an argument would have no effect, there is no such setting,
        the optimiser has other parameters, or labels do not fit the loss.

    Attributes
    ----------
    history : list of dict
        An epoch each: its number, loss, learning rate and seconds, and the scores where it was
        evaluated.
    measured : Measurements
        Of the epochs that this object has trained.
    failure : str or None
        Why training ended before it was done, the same on all ranks.
    first_epoch : int
        Epochs that a resumed run had trained before.
    """

    def __init__(
        self,
        model: nn.Module | Task,
        graph: DistributedGraph | None = None,
        *,
        target: str | None = None,
        loss: str | LossFunction = "auto",
        optimizer: str | torch.optim.Optimizer | Callable[..., torch.optim.Optimizer] | None = None,
        forward: Callable[[nn.Module, Any], Any] | None = None,
        metrics: Sequence[Metric] = (),
        options: Training | None = None,
        callbacks: Sequence[Callback] = (),
        **settings: Any,
    ) -> None:
        comm = getattr(model if graph is None else graph, "comm", None)

        def checked() -> Training:
            _check_arguments(loss, optimizer, forward, callbacks, settings, options)
            result = options or Training(**{"weight_decay": 0.0, **settings})
            result.check_together()
            return result

        if isinstance(comm, Communicator):
            self.options = comm.on_every_rank(checked)
        else:  # whoever made the mistake made it on all ranks
            self.options = checked()
        if isinstance(optimizer, str):
            settings["optimizer"], optimizer = optimizer, None
            self.options = replace(self.options, optimizer=settings["optimizer"])
        changed = [] if options is None else options.changed
        set_by_hand = {*settings, *(option.name for option, _ in changed)}
        options = self.options
        if isinstance(model, nn.Module):
            if not isinstance(graph, DistributedGraph):
                raise InputError(
                    "Trainer(model, graph): give the graph that spgnn.distribute made, got "
                    f"{type(graph).__name__}"
                )
            how: dict[str, Any] = {"target": target, "forward": forward, "metrics": metrics}
            how |= {"seed": options.seed, "weight_decay": options.weight_decay}
            self.task: Task = GivenModel(model, graph, loss, **how)
        else:
            if (graph, target, loss, forward, *metrics) != (None, None, "auto", None):
                raise InputError(
                    f"Trainer({type(model).__name__}): a Task takes no graph, target, loss, "
                    "forward or metrics, it has its own"
                )
            self.task = model
        self.comm = self.task.comm
        if not isinstance(model, nn.Module) or "dtype" in set_by_hand:
            features = None if graph is None else graph.model_inputs(True)[0]
            for x in features.values() if isinstance(features, Mapping) else [features]:
                if not isinstance(x, Tensor):
                    continue
                if (x.dtype == torch.float64) != (options.dtype == "float64"):
                    raise InputError(
                        f"dtype={options.dtype!r}: the features of the graph are {x.dtype}; "
                        f"distribute those of {weights_of(options.dtype)}"
                    )
            self.task.model.to(weights_of(options.dtype))
        for parameter in self.task.model.parameters():  # no view with gaps, nothing transposed
            parameter.data = parameter.data.contiguous()
        groups = self.task.parameter_groups()
        self._parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        # A task may have parameters of its own, at their owners.
        self._device = self._parameters[0].device if self._parameters else self.comm.device
        if optimizer is not None:
            theirs = optimizer
            self.optimizer = self.comm.on_every_rank(
                lambda: _optimizer_of(theirs, self.task, options, set_by_hand)
            )
            self.comm.check_agreement("the optimizer", groups=str(_numbers_of(self.optimizer)))
        elif self.task.steps:  # it has a learning rate, and nothing to step on
            self.optimizer = OPTIMIZERS["sgd"](groups, lr=options.lr)
        else:
            self.optimizer = OPTIMIZERS[options.optimizer](groups, lr=options.lr)
        self._is_given = optimizer is not None
        kind = type(self.optimizer).__name__.lower()
        self.signature = {**self.task.signature, "optimizer": kind}
        self.history: list[dict[str, Any]] = []
        self.measured = Measurements(self.comm.ledger, self._device)
        self.failure: str | None = None
        self.first_epoch = 0
        self.freed: FreedMemory | None = None
        self.steps_per_epoch = self.task.steps or 1
        self._steps_agree = True  # all ranks take all of them
        self._callbacks, self._has_callbacks, self._ends = callbacks, False, False

    def fit(self, epochs: int | None = None, **unknown_settings: Any) -> list[dict[str, Any]]:
        """Train until `epochs` are in the history, by default those of the options. Collective.

        Returns
        -------
        list of dict
            The history.

        Raises
        ------
        InputError
            On all ranks, as :meth:`run`, or if training ended before it was done.
        """
        if unknown_settings:
            raise unknown("fit(…)", next(iter(unknown_settings)), ["epochs"])
        if epochs is not None:
            self.options = replace(self.options, epochs=epochs)
            self.options.check_together()
        with default_device(self._device):
            self.run()
        if self.failure is not None:
            raise InputError(self.failure)
        return self.history

    def run(self) -> None:
        """Train for ``options.epochs`` epochs, with checkpoints; `failure` says what ended it."""
        options = self.options
        check_replicated(self.task.model, self.comm)
        if options.checkpoint:
            checkpoint.check_state(self.task.model, self.optimizer, self.comm)
        if options.resume and not self.history:
            self._resume()
        self._has_callbacks, self._ends = self.comm.agree(len(self._callbacks)) > 0, False
        self.optimizer.zero_grad()  # of a backward of the user's own
        with ProgressBar(shown=self.comm.rank == 0) as bar:
            self.task.progress = bar
            bar("epoch", len(self.history), options.epochs, "begins")
            while not self._is_done():
                record = self._epoch(len(self.history))
                if self.freed is not None:
                    self.freed.after_epoch()
                self.failure = _not_finite(record)
                if math.isfinite(record["loss"]):
                    for name, value in record.items():
                        if value is not None and not math.isfinite(value):
                            record[name] = None
                    self.history.append(record)
                    accuracy = record.get("val_acc")
                    shown = "" if accuracy is None else f"  val {accuracy:.1%}"
                    news = f"loss {record['loss']:.4f}{shown}"
                    bar("epoch", len(self.history), options.epochs, news)
                    self._call_back(self.history[-1])
                if self.failure is None:
                    self._save_sometimes()
        self.task.progress = None
        self.task.finish()

    def _resume(self) -> None:
        self.history, own, called = checkpoint.load_run(
            self.options.checkpoint,
            self.task.model,
            self.optimizer,
            self.signature,
            self.comm,
            steps=self.steps_per_epoch if self._steps_agree else None,
        )
        self.first_epoch = len(self.history)
        if called is not None:
            self._set_numbers(called["groups"])
            self.comm.on_rank_zero(lambda: self._load_callbacks(called["states"]))
        if own:
            try:
                self._load_state(own)
            except InputError as error:
                raise InputError(f"{self.options.checkpoint}: {error}") from None

    def _load_callbacks(self, states: list[Any]) -> None:
        if [one is None for one in states] != [one is None for one in states_of(self._callbacks)]:
            raise InputError(f"{self.options.checkpoint}: was made with other callbacks")
        for callback, state in zip(self._callbacks, states, strict=True):
            if state is not None:
                callback.load_state_dict(state)  # type: ignore[attr-defined]

    def _state(self) -> dict[str, Any]:
        """The state that this rank has besides model and optimiser. Collective."""
        return dict(self.task.state())

    def _load_state(self, state: Mapping[str, Any]) -> None:
        self.task.load_state(state)

    def train_epoch(self, epoch: int) -> Tensor:
        """One forward, one backward, one step; the loss over all ranks, a scalar. Collective."""
        model = self.task.model
        if not all(part.training for part in model.modules()):
            model.train()
        self.task.lr = self.optimizer.param_groups[0]["lr"]
        with self._precision():
            share = self.task.loss(epoch)
        if self.task.steps:
            return share
        _check_loss(share)
        share.backward()
        loss = self._sum_gradients(share.detach())
        if self.options.clip:  # the same numbers everywhere: they are sums over all ranks
            torch.nn.utils.clip_grad_norm_(self._parameters, self.options.clip)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    @torch.no_grad()
    def evaluate(self) -> Scores:
        """The task's scores, without dropout. Collective."""
        self.task.model.eval()
        try:
            with self._precision():
                return self.task.scores()
        finally:
            self.task.model.train()

    def _precision(self) -> AbstractContextManager[object]:
        return multiplied_in(self.options.dtype, self._device)

    @torch.no_grad()
    def write_predictions(self, path: str, dataset: str | None = None) -> None:
        """Write the predictions of all vertices, ``.npz`` or ``.parquet``. Collective."""
        self.task.model.eval()
        with self._precision():
            predictions = self.task.predictions()
        if predictions is None:
            raise InputError(f"{type(self.task).__name__} predicts nothing of vertices")
        what = f"--predictions {path}"
        ids, arrays, after, columns = predictions
        write_rows(path, arrays, ids, self.comm, what, after, dataset, columns)

    def _call_back(self, record: dict[str, Any]) -> None:
        """Call the callbacks of rank 0; what one raises ends training on all ranks."""
        if not self._has_callbacks:
            return
        before = _numbers_of(self.optimizer)

        def call_all() -> tuple[bool, list[dict[str, Any]]]:
            trouble, ends = "", False
            for callback in self._callbacks:
                try:
                    ends = call(callback, record) is True or ends
                except Exception as error:
                    message = str(error) or type(error).__name__
                    name = getattr(callback, "__name__", type(callback).__name__)
                    trouble = trouble or f"{name}: {message}"
            after = _numbers_of(self.optimizer)
            scheduled = self.options.lr_schedule != "none" or self.options.warmup
            if not trouble and scheduled and after != before:
                trouble = "a callback sets the optimizer's lr, which lr_schedule and warmup set"
            if trouble:
                raise InputError(trouble)
            return ends, after if after != before else []

        try:
            self._ends, changed = self.comm.from_rank_zero(call_all)
            self._set_numbers(changed)
        except InputError as error:
            self.failure = self.failure or str(error)

    def _set_numbers(self, changed: Sequence[Mapping[str, Any]]) -> None:
        for group, numbers in zip(self.optimizer.param_groups, changed, strict=False):
            for name, number in numbers.items():
                if isinstance(group.get(name), Tensor):
                    group[name].fill_(number)
                else:
                    group[name] = tuple(number) if isinstance(number, list) else number

    def _is_done(self) -> bool:
        """True if nothing is left to do: of a resumed run too, which goes on as a straight one."""
        done = len(self.history) >= self.options.epochs
        return done or self.failure is not None or self._ends or self._should_stop()

    def _epoch(self, epoch: int) -> dict[str, Any]:
        options = self.options
        rate = apply_rates(self.optimizer, options, self.history)
        if self._is_given:
            rate = float(self.optimizer.param_groups[0]["lr"])
        with memory_for(f"activations and gradients of epoch {epoch}"):
            loss = self.measured.epoch(lambda: self.train_epoch(epoch))
            self.task.end_epoch(epoch, loss)
            last = epoch + 1 == options.epochs
            evaluated = last or (epoch + 1) % options.eval_every == 0
            scores = self.evaluate() if evaluated and math.isfinite(loss) else {}
        if options.patience and evaluated and scores.get(self.task.criterion.name, 0.0) is None:
            raise InputError("--patience needs a validation loss, and no validation vertex has one")
        seconds = self.measured.seconds[-1]
        return {"epoch": epoch, "loss": loss, **scores, "lr": rate, "seconds": seconds}

    def _should_stop(self) -> bool:
        """Early stopping of Kipf & Welling (2017, section 5.2) and their code."""
        patience = self.options.patience
        criterion = self.task.criterion
        scores = [score for r in self.history if (score := r.get(criterion.name)) is not None]
        if patience == 0 or len(scores) <= patience + 1:
            return False
        if self.history[-1].get(criterion.name) is None:
            return False
        return criterion.better(fmean(scores[-patience - 1 : -1]), scores[-1])

    def _sum_gradients(self, loss_share: Tensor) -> Tensor:
        """Every rank holds distinct rows, so gradients and loss just add up; one message."""
        if self.comm.size == 1 and not [p for p in self._parameters if p.grad is None]:
            return loss_share
        # Where nothing on this rank depends on a parameter, elsewhere it may.
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        flat = torch.cat([g.reshape(-1) for g in gradients] + [loss_share.reshape(1)])
        self.comm.all_reduce(flat).wait()
        parts = flat.split([p.numel() for p in self._parameters] + [1])
        for parameter, part in zip(self._parameters, parts, strict=False):
            # Lies as its parameter does, which fused optimisers take for granted; autograd's do.
            parameter.grad = part.view_as(parameter).to(parameter.dtype)
        return flat[-1]

    def _save_sometimes(self) -> None:
        options, epochs = self.options, len(self.history)
        if not options.checkpoint or (epochs % options.checkpoint_every and not self._is_done()):
            return
        try:
            checkpoint.save_run(
                options.checkpoint,
                self.task.model,
                self.optimizer,
                self.signature,
                self.history,
                self.comm,
                self._state(),
                {"states": states_of(self._callbacks), "groups": _numbers_of(self.optimizer)},
            )
        except InputError as error:
            self.failure = str(error)


def _check_arguments(
    loss: object,
    optimizer: object,
    forward: object,
    callbacks: object,
    settings: Mapping[str, Any],
    options: Training | None,
) -> None:
    """Refuse arguments of other kinds."""
    if isinstance(loss, str):
        check_choice("Trainer(loss=…)", loss, _LOSSES)
    _check_settings(settings, options)
    _check_loss_function(loss)
    optimizers = torch.optim.Optimizer
    if isinstance(optimizer, str):
        check_choice("Trainer(optimizer=…)", optimizer, OPTIMIZERS)
        _check_settings({"optimizer": optimizer}, options)
        usable = True
    elif isinstance(optimizer, type):
        usable = issubclass(optimizer, optimizers)
    else:
        usable = callable(optimizer) or isinstance(optimizer, optimizers | None)
    if not usable:
        raise _wrong("optimizer", "a torch optimizer, its class, a name or ", optimizer)
    if forward is not None and (isinstance(forward, type) or not callable(forward)):
        raise _wrong("forward", "", forward)
    if callable(callbacks):
        raise InputError("Trainer(callbacks=…) must be a list of functions, got one")


def _check_settings(settings: Mapping[str, Any], options: Training | None) -> None:
    """Refuse settings that no option has, and those that would have no effect."""
    helps = {option.name: option.mark.help for option in options_of(Training)}
    del helps["runs"]
    for name in settings:
        if name not in helps:
            raise _no_setting(name, helps)
        if options is not None:
            raise InputError(f"Trainer(options=…, {name}=…): options has it; give one of both")
    schedule = settings.get("lr_schedule", "none")
    for name, works in (
        ("lr_every", schedule in ("step", "plateau")),
        ("lr_factor", schedule in ("step", "plateau")),
        ("checkpoint_every", settings.get("checkpoint") is not None),
    ):
        if name in settings and not works:
            needs = "checkpoint=" if "check" in name else "lr_schedule='step' or 'plateau'"
            raise InputError(f"Trainer({name}=…) needs {needs}")


def _no_setting(name: str, helps: Mapping[str, str]) -> InputError:
    """The error for a setting that no option has; it names those first that mean the same."""
    words = [word[:4] for word in name.lower().split("_") if len(word) > 2]

    def nearness(option: str) -> float:
        described = sum(word in f"{option} {helps[option]}" for word in words)
        near = described + SequenceMatcher(None, name, option).ratio()
        return near if near > 0.6 else 0.0

    helps = {**helps, **_ARGUMENTS}
    names = sorted(helps, key=nearness, reverse=True)
    likely = f"; did you mean {names[0]}?" if nearness(names[0]) else "."
    return InputError(
        f"Trainer({name}=…): there is no such setting{likely} Choose one of {', '.join(names)}"
    )


def _wrong(name: str, others: str, value: object) -> InputError:
    got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)
    return InputError(f"Trainer({name}=…) must be {others}a function, got {got}")


def _check_loss_function(loss: object) -> None:
    """Refuse what cannot be called, classes, and losses that would have to be learnt."""
    if isinstance(loss, type) or not (isinstance(loss, str) or callable(loss)):
        raise _wrong("loss", "a name or ", loss)
    learnt = loss.named_parameters() if isinstance(loss, nn.Module) else []
    for name, parameter in learnt:
        if parameter.requires_grad:
            raise InputError(
                f"Trainer(loss=…): {name} of {type(loss).__name__} would not be trained: freeze "
                "it with requires_grad_(False), or write a Task (docs/tasks.md)"
            )


def _optimizer_of(
    theirs: torch.optim.Optimizer | Callable[..., torch.optim.Optimizer],
    task: Task,
    options: Training,
    set_by_hand: set[str],
) -> torch.optim.Optimizer:
    """The user's optimiser, or that of a user's class or function."""
    if task.steps:
        raise InputError(f"optimizer=: {type(task).__name__} takes steps of its own")
    groups = task.parameter_groups()
    if isinstance(theirs, type):
        if isinstance(task, GivenModel) and "weight_decay" not in set_by_hand:
            groups = [{"params": group["params"]} for group in groups]
        optimizer = theirs(groups, lr=options.lr)
        decays = any(group.get("weight_decay") for group in groups)
        if decays and "weight_decay" not in getattr(optimizer, "defaults", {}):
            raise InputError(f"weight_decay=: {theirs.__name__} knows none")
    else:
        for name in ("lr", "weight_decay", "optimizer"):
            if name in set_by_hand:
                raise InputError(
                    f"{name}= does not reach the optimizer that optimizer= is, or makes: set it "
                    "there, or give its class, as in optimizer=torch.optim.SGD, lr=0.1"
                )
        if isinstance(theirs, torch.optim.Optimizer):
            optimizer = theirs
        else:
            optimizer = theirs([p for group in groups for p in group["params"] if p.requires_grad])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InputError(f"optimizer= must make a torch optimizer, got {type(optimizer).__name__}")
    kind = type(optimizer).__name__
    step = signature(optimizer.step).parameters.get("closure")
    if step is not None and step.default is step.empty:
        raise InputError(f"optimizer=: {kind} calls a closure several times a step; others do not")
    updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
    own = dict(task.model.named_parameters())
    others = updated - {id(p) for p in own.values()} - {id(p) for g in groups for p in g["params"]}
    if others:
        raise InputError(
            f"optimizer=: {kind} has {plural(len(others), 'parameter')} that the model has not: "
            "give one of this model's, as in SGD(model.parameters(), lr=0.1)"
        )
    for name, p in own.items():
        if p.requires_grad and id(p) not in updated:
            raise InputError(
                f"optimizer=: {kind} has no {name}, which the model trains: give it all parameters "
                "of the model, or freeze those with requires_grad_(False)"
            )
    return optimizer


def _numbers_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """The rates and other numbers of an optimiser's groups, which JSON can carry."""

    def plain(value: Any) -> Any:
        number = value.item() if isinstance(value, Tensor) and not value.dim() else value
        return list(number) if isinstance(number, tuple) else number

    return [
        {
            name: number
            for name, value in group.items()
            if name != "params" and isinstance(number := plain(value), int | float | list)
        }
        for group in optimizer.param_groups
    ]


def _check_loss(share: Any) -> None:
    """Refuse what cannot be a share of a loss."""
    if not isinstance(share, Tensor):
        got = type(share).__name__
    elif share.numel() != 1:
        got = f"a tensor {list(share.shape)}"
    elif not share.requires_grad:
        got = "one that does not"
    else:
        return
    raise InputError(
        f"a task's loss must be a scalar that depends on the model's parameters, got {got}"
    )


def _not_finite(record: dict[str, Any]) -> str | None:
    """The fault of an epoch whose loss or score is not finite."""
    for name, value in record.items():
        if value is not None and not math.isfinite(value):
            return (
                f"{name} of epoch {record['epoch']} is {value}: training ends; "
                "try a smaller --lr, or other features"
            )
    return None


def rate_factor(options: Training, history: Sequence[Mapping[str, Any]]) -> float:
    """Factor of the learning rates of all groups in the epoch after that history."""
    epoch = len(history)
    if epoch < options.warmup:
        return (epoch + 1) / options.warmup
    after, left = epoch - options.warmup, options.epochs - options.warmup
    match options.lr_schedule:
        case "cosine":
            return (1 + math.cos(math.pi * min(after / left, 1))) / 2
        case "linear":
            return max(1 - after / left, 0.0)
        case "step":
            return float(options.lr_factor ** (after // options.lr_every))
        case "plateau":
            best, waited, reductions = math.inf, 0, 0
            for loss in [record["val_loss"] for record in history if "val_loss" in record]:
                if loss is None:
                    raise InputError(
                        "training.lr-schedule plateau needs a validation loss: no validation "
                        "vertex has one"
                    )
                waited = 0 if loss < best else waited + 1
                best = min(best, loss)
                if waited == options.lr_every:
                    reductions, waited = reductions + 1, 0
            return float(options.lr_factor**reductions)
    return 1.0


def apply_rates(
    optimizer: torch.optim.Optimizer, options: Training, history: Sequence[Mapping[str, Any]]
) -> float:
    """Set the rates of the epoch after that history; returns that of groups without their own."""
    factor = rate_factor(options, history)
    if options.lr_schedule != "none" or options.warmup:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
    return options.lr * factor
