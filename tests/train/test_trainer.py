"""spgnn.Trainer for users: their modules and losses give the history of a dense loop."""

from __future__ import annotations

import copy
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import spgnn
from spgnn import InputError
from spgnn.config import Training
from spgnn.testing import run_ranks
from spgnn.train import Task
from spgnn.train.trainer import OPTIMIZERS as NAMED
from tests.comm.jobs import on_their_own
from tests.training import write_dataset

EPOCHS = 6
SGD, ADAMW, DECAYING = torch.optim.SGD, torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.01}


class Mean(torch.nn.Module):
    """Two layers of weights around the mean of neighbours, on anyone's edge_index."""

    def __init__(self, widths=(23, 8, 4), after=None):
        super().__init__()
        self.after = after  # what the model makes of its outputs
        torch.manual_seed(3)
        self.layers = torch.nn.ModuleList(
            torch.nn.Linear(f_in, f_out) for f_in, f_out in pairwise(widths)
        )

    def forward(self, x, edge_index):
        sources, targets = edge_index
        for layer in self.layers:
            h = layer(x.relu())
            x = torch.zeros_like(h).index_add(0, targets, h[sources])
        return x if self.after is None else self.after(x)


def dense_history(path, optimizer, smooth):
    """Losses and validation accuracies of a loop over all vertices in one process."""
    with np.load(path) as file:
        x, y = torch.from_numpy(file["x"]), torch.from_numpy(file["y"])
        masks = [torch.from_numpy(file[f"{split}_mask"]) & (y >= 0) for split in ("train", "val")]
        rows = torch.arange(len(y)).repeat_interleave(torch.from_numpy(np.diff(file["indptr"])))
        edge_index = torch.stack((torch.from_numpy(file["indices"]).long(), rows))
    model = Mean()
    steps, history = optimizer(model.parameters()), []
    for _ in range(EPOCHS):
        out = model(x, edge_index)
        loss = F.cross_entropy(out[masks[0]], y[masks[0]], label_smoothing=smooth)
        loss.backward()
        steps.step()
        steps.zero_grad()
        accuracy = (model(x, edge_index).argmax(1) == y)[masks[1]].float().mean()
        history.append((loss.item(), float(accuracy)))
    return history


def fitted(rank, path, options):
    graph = spgnn.distribute(path, partition="random")
    trainer = spgnn.Trainer(Mean(), graph, **options)
    return [(one["loss"], one["val_acc"]) for one in trainer.fit(epochs=EPOCHS)]


smoothed = partial(F.cross_entropy, label_smoothing=0.2)


@pytest.mark.parametrize(
    ("options", "optimizer", "smooth"),
    [
        ({"lr": 0.05}, partial(torch.optim.Adam, lr=0.05), 0.0),
        ({"loss": smoothed, "optimizer": "sgd", **DECAYING}, partial(SGD, **DECAYING), 0.2),
        ({"optimizer": partial(SGD, lr=0.1, momentum=0.9)}, partial(SGD, lr=0.1, momentum=0.9), 0),
    ],
)
def test_history_of_a_dense_loop(tmp_path, options, optimizer, smooth):
    path = write_dataset(tmp_path / "graph.npz")
    expected = dense_history(path, optimizer, smooth)
    for ranks in (1, 2):
        found = run_ranks(fitted, ranks, path, options)
        assert all(history == found[0] for history in found)
        np.testing.assert_allclose(found[0], expected, rtol=1e-4)


class Clipped(torch.optim.SGD):
    """Clips gradients, and halves its rate in each epoch."""

    def step(self):
        torch.nn.utils.clip_grad_norm_(self.param_groups[0]["params"], 0.1)
        super().step()
        self.param_groups[0]["lr"] /= 2


class Right:
    """Adds up until it is reset, as metrics of torchmetrics do."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.right = self.all = 0

    def __call__(self, outputs, y):
        self.right, self.all = self.right + (outputs.argmax(1) == y).sum(), self.all + len(y)
        return self.right / self.all


def pairs(outputs, y):
    """The area under the ROC curve, pair by pair."""
    areas = []
    for column, scores in enumerate(outputs.log_softmax(1).double().T):
        above = scores[y == column][:, None] - scores[y != column]
        areas.append(((above > 0).double() + (above == 0) / 2).mean())
    return torch.stack(areas).nanmean()


def scheduled(rank, path):
    graph, model, records = spgnn.distribute(path, partition="random"), Mean(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def last(record):
        records.append(record)
        return len(records) == EPOCHS

    history = spgnn.Trainer(
        model,
        graph,
        optimizer=optimizer,
        clip=0.1,
        metrics=["roc-auc", Right(), pairs, F.cross_entropy],
        callbacks=[lambda record: schedule.step(), last],
    ).fit(epochs=50)
    assert records == (history if graph.comm.is_main else [])
    for record in history:
        for split in ("train", "val", "test"):
            assert record[f"{split}_Right"] == pytest.approx(record[f"{split}_acc"])
            assert record[f"{split}_pairs"] == pytest.approx(record[f"{split}_roc_auc"], abs=1e-6)
        assert record["val_cross_entropy"] == pytest.approx(record["val_loss"])
    for metric, words in (
        (lambda outputs, y: outputs[9999], "Trainer.metrics=….: <lambda>: index 9999 is out of"),
        (lambda outputs, y: outputs, "Trainer.metrics=….: <lambda>: "),
        ("rmse", "--metric rmse needs --loss mse"),
    ):
        with pytest.raises(InputError, match=words):
            spgnn.Trainer(model, graph, metrics=[metric]).fit(epochs=1)
    return [(one["loss"], one["val_acc"]) for one in history]


def schedules_resumed(rank, path, directory):
    """Schedulers go on where a run resumes, and a mistake of rank 0 alone is refused on all."""
    graph = spgnn.distribute(path, partition="random")
    settings = {"checkpoint": str(directory)}
    with pytest.raises(InputError, match=r"Trainer\(epoch=…\): there is no such setting"):
        spgnn.Trainer(Mean(), graph, **({"epoch": 3} if graph.comm.is_main else {}))

    def trainer(**how):
        model = Mean()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
        step = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.1)
        how = {"callbacks": [step, plateau]} | how
        return spgnn.Trainer(model, graph, optimizer=optimizer, **how)

    straight = trainer().fit(epochs=10)
    trainer(**settings).fit(epochs=5)
    with pytest.raises(InputError, match="was made with other callbacks"):
        trainer(resume=True, callbacks=[], **settings).fit(epochs=10)
    history = trainer(resume=True, **settings).fit(epochs=10)
    assert len({record["lr"] for record in straight}) > 3
    return [[(one["loss"], one["lr"]) for one in run] for run in (straight, history)]


def test_schedules_go_on_where_a_run_resumes(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    for straight, history in run_ranks(schedules_resumed, 2, path, tmp_path / "run"):
        assert straight == history


def test_schedules_metrics_and_ends_of_ones_own(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    expected = dense_history(path, partial(Clipped, lr=1.0), 0.0)
    for history in run_ranks(scheduled, 2, path):
        np.testing.assert_allclose(history, expected, rtol=1e-4)


def mixed(rank, path):
    """A loop with autocast's scaler, clipping, a schedule and a moving average, and an odd step."""
    graph = spgnn.distribute(path, partition="random")
    model, optim = graph.synchronise(Mean()), torch.optim
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    schedule = optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    mean = optim.swa_utils.AveragedModel(model, multi_avg_fn=optim.swa_utils.get_ema_multi_avg_fn())
    scaler, history = torch.amp.GradScaler("cpu"), []
    mask = graph.train_mask & (graph.y >= 0)
    for epoch in range(EPOCHS):
        x = graph.x.clone()
        if epoch == 2:
            x[graph.vertex_ids == 7] = torch.inf
        loss = F.cross_entropy(model(x, graph.edge_index)[mask], graph.y[mask])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        schedule.step(loss.item())
        mean.update_parameters(model)
        history.append([loss.item(), float(norm), scaler.get_scale(), schedule.get_last_lr()[0]])
    scores = spgnn.infer(mean, graph)
    assert torch.equal(scores, spgnn.infer(mean.module, graph))
    return history, scores.sum(0).double(), graph.gather(scores)


def test_a_loop_of_ones_own_is_that_of_one_process(tmp_path):
    path = write_dataset(tmp_path / "graph.npz")
    ((expected, _, rows),) = run_ranks(mixed, 1, path)
    assert not np.isfinite(expected[2][1])
    assert expected[2][2] < expected[1][2]
    two = run_ranks(mixed, 2, path)
    assert np.array_equal(two[0][0], two[1][0], equal_nan=True)
    np.testing.assert_allclose(two[0][0], expected, rtol=1e-4)
    torch.testing.assert_close(two[0][2], rows, rtol=1e-4, atol=1e-4)


def resumed(rank, path, directory, codec):
    """Straight, and stopped after half of the epochs."""
    histories = []
    for stops, kept in (((EPOCHS,), None), ((EPOCHS // 2, EPOCHS), str(directory))):
        for epochs in stops:
            graph = spgnn.distribute(path, partition="random", codec=codec)
            model = spgnn.nn.GraphSAGE(-1, 8, 2, 4, dropout=0.5, seed=2)
            options = {"checkpoint": kept, "resume": epochs != stops[0], "seed": 1}
            trainer = spgnn.Trainer(model, graph, **options)
            history = trainer.fit(epochs)
        histories.append([(one["loss"], one["val_acc"]) for one in history])
    # A forward of one's own makes the same of the same model.
    graph = spgnn.distribute(path, partition="random")
    model = spgnn.nn.GraphSAGE(23, 8, 2, 4, seed=2)
    one, other = (
        spgnn.Trainer(model, graph, epochs=1, forward=forward).evaluate()
        for forward in (None, lambda model, graph: model(graph.x, graph))
    )
    assert one == other
    return histories


@pytest.mark.parametrize("codec", [None, {"delay": 1, "bits": 8}], ids=["exact", "late"])
def test_checkpoints_go_on(tmp_path, codec):
    path = write_dataset(tmp_path / "graph.npz")
    straight, stopped = run_ranks(resumed, 2, path, tmp_path / "kept", codec)[0]
    assert straight == stopped
    assert straight[-1][0] < straight[0][0]


def test_a_guest_trains_on_the_groups_of_its_program(tmp_path):
    """A mesh of two groups of two ranks: each trains as one process does, and nothing is ended."""
    path = write_dataset(tmp_path / "graph.npz")
    expected = dense_history(path, lambda p: torch.optim.Adam(p, lr=0.05), 0.0)

    def program() -> None:
        dist = torch.distributed
        dist.init_process_group("gloo")
        mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        graph = spgnn.distribute(path, partition="random", group=mesh["b"])
        assert graph.comm.size == 2
        history = spgnn.Trainer(Mean(), graph, lr=0.05).fit(EPOCHS)
        found = [(one["loss"], one["val_acc"]) for one in history]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
        dist.barrier()
        dist.destroy_process_group()

    ended = on_their_own(program, tmp_path, 4)
    assert [end.status for end in ended] == [0] * 4, "\n".join(end.err for end in ended)


N, TRAIN = 40, 24
MADE = torch.Generator().manual_seed(0)
GRAPH = {
    "num_nodes": N,
    "x": torch.randn(N, 6, generator=MADE),
    "edge_index": torch.randint(0, N, (2, 160), generator=MADE),
    "train_mask": torch.arange(N) < TRAIN,
    "val_mask": (torch.arange(N) >= TRAIN) & (torch.arange(N) < 32),
    "test_mask": torch.arange(N) >= 32,
}
CLASSES = torch.randint(0, 3, (N,), generator=MADE)
REAL = torch.randn(N, generator=MADE)
BINARY = (torch.rand(N, 3, generator=MADE) < 0.4).float()
WEIGHT = torch.tensor([0.1, 1.0, 5.0])
# Rank 1 has no vertices, rank 2 none of training.
PARTS = {1: "block", 3: [0 if i < TRAIN or i % 2 else 2 for i in range(N)]}


def flat(out):
    return out.squeeze(-1)


def matrices(out):
    return out.reshape(-1, 2, 2)


def plain_loop(model, y, loss, optimizer, epochs=EPOCHS, schedule=None, clip=0.0):
    """Losses, of one process and torch alone; then the validation loss and the outputs."""
    steps, losses = optimizer(model.parameters()), []
    schedule = schedule and schedule(steps)
    masks = GRAPH["train_mask"], GRAPH["val_mask"]

    def of(mask):
        result = loss(model(GRAPH["x"], GRAPH["edge_index"])[mask], y[mask])
        return result[0] / result[1] if isinstance(result, tuple) else result

    for _ in range(epochs):
        steps.zero_grad()
        of(masks[0]).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        losses.append(float(of(masks[0]).detach()))
        steps.step()
        if schedule:
            schedule.step()
    with torch.no_grad():
        return losses, float(of(masks[1])), model(GRAPH["x"], GRAPH["edge_index"])


def accuracy(out, y):
    guess = out.argmax(1) if out.dim() > 1 and out.shape[1] > 1 else out.flatten() > 0
    return {"acc": (guess == y.flatten()).double().mean()}


def f1(out, y, threshold=0.0):
    out, y = (t.reshape(len(t), -1) for t in (out, y))
    guess, truth = out > threshold, y == 1
    right, wrong = (guess & truth).sum(0).double(), (guess ^ truth).sum(0)
    both = 2 * right.sum() / (2 * right.sum() + wrong.sum())
    return {"f1_micro": both, "f1_macro": (2 * right / (2 * right + wrong).clamp(min=1)).mean()}


def errors(out, y):
    off = (out - y).double().reshape(len(y), -1)
    spread = (y - y.double().mean(0)).reshape(len(y), -1).square().sum(0)
    r2 = (1 - off.square().sum(0) / spread).mean()
    return {"mae": off.abs().mean(), "rmse": off.square().mean().sqrt(), "r2": r2}


def both(*scores):
    return lambda out, y: {k: v for score in scores for k, v in score(out, y).items()}


def squeezed(out, y):
    return F.mse_loss(out.squeeze(-1), y)


def counts(out, y):
    return F.poisson_nll_loss(out, y.float() / 300)


def logistic(out, y):
    return F.binary_cross_entropy_with_logits(out, y.float())


def entropy(out, y):
    return F.cross_entropy(out, y.long())


def weighted(out, y):
    return F.cross_entropy(out, y, WEIGHT, reduction="sum"), WEIGHT[y].sum()


def gaussian(out, y):
    return F.gaussian_nll_loss(out[:, 0], y, out[:, 1].exp())


def nothing(out, y):
    return {}


COUNTS = torch.randint(0, 2, (N, 2), generator=MADE) * 45 + 255
TABLE = REAL[:, None, None] * WEIGHT[:2, None] + WEIGHT[1:]
POSITIVE = torch.nn.BCEWithLogitsLoss(pos_weight=WEIGHT)
SMOOTH = torch.nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1)
BCE, f1_of_shares = F.binary_cross_entropy_with_logits, partial(f1, threshold=0.5)
# y, what is done to the outputs and their number, the loss (and in plain torch), and the scores.
LABELLED = {
    "numbers": (REAL, None, 1, squeezed, None, lambda out, y: errors(flat(out), y)),
    "flat": (REAL, flat, 1, F.l1_loss, None, errors),
    "flat, named": (REAL, flat, 1, "l1", F.l1_loss, errors),
    "wide": (REAL.double() + 1.7e9, flat, 1, lambda out, y: squeezed(out, y - 1.7e9), None, errors),
    "matrices": (TABLE, matrices, 4, F.mse_loss, None, errors),
    "counts": (COUNTS, None, 2, counts, None, errors),
    "one logit": (CLASSES % 2, flat, 1, logistic, None, both(accuracy, f1)),
    "one logit of a column": (BINARY[:, :1], None, 1, logistic, None, both(accuracy, f1)),
    "several": (BINARY, None, 3, "auto", logistic, f1),
    "several of a function": (BINARY, None, 3, BCE, None, f1),
    "several of a module": (BINARY, None, 3, POSITIVE, None, f1),
    "several, true or false": (BINARY.bool(), None, 3, logistic, None, f1),
    "probabilities": (BINARY, torch.sigmoid, 3, F.binary_cross_entropy, None, f1_of_shares),
    "bytes": (CLASSES.byte(), None, 3, entropy, None, accuracy),
    "floating classes": (CLASSES.float(), None, 3, entropy, None, accuracy),
    "smoothed": (CLASSES, None, 3, smoothed, None, accuracy),
    "pair": (CLASSES, None, 3, weighted, None, accuracy),
    "weights": (CLASSES, None, 3, SMOOTH, None, accuracy),
    "ignored": (CLASSES, None, 3, torch.nn.NLLLoss(ignore_index=2), None, accuracy),
    "mean and deviation": (REAL, None, 2, gaussian, None, nothing),
}


def on_labels(rank, ranks):
    results = {}
    for name, (y, after, width, loss, _, _) in LABELLED.items():
        graph = spgnn.distribute(SimpleNamespace(y=y, **GRAPH), partition=PARTS[ranks])
        seen = []

        def noting(out, labels, loss=loss, seen=seen):
            seen.append(labels)
            return loss(out, labels)

        # Modules are taken as they are.
        plain = isinstance(loss, str | torch.nn.Module)
        model = Mean((6, width), after)
        trainer = spgnn.Trainer(model, graph, loss=loss if plain else noting, lr=0.05)
        assert "val_loss" in trainer.evaluate()  # before any epoch
        history = trainer.fit(2)
        for labels in seen:
            assert labels.dtype == y.dtype
            assert labels.shape[1:] == y.shape[1:]
            assert torch.isin(labels.double(), y.double()).all()
        results[name] = [r["loss"] for r in history], history[-1]
    return results


def test_losses_take_the_labels_of_the_graph_and_outputs_of_any_shape():
    ours = {ranks: run_ranks(on_labels, ranks, ranks) for ranks in (1, 3)}
    for name, (y, after, width, loss, theirs, scores) in LABELLED.items():
        losses, val_loss, out = plain_loop(
            Mean((6, width), after), y, theirs or loss, partial(torch.optim.Adam, lr=0.05), epochs=2
        )
        for found in (*ours[1], *ours[3]):
            assert found[name][0] == pytest.approx(losses, rel=1e-4), name
            last = dict(found[name][1])
            assert last.pop("val_loss") == pytest.approx(val_loss, rel=1e-4), name
            for split in ("train", "val", "test"):
                rows = GRAPH[f"{split}_mask"]
                for metric, value in scores(out[rows], y[rows]).items():
                    assert last.pop(f"{split}_{metric}") == pytest.approx(float(value), rel=1e-4), (
                        name
                    )
            assert last.keys() == {"epoch", "loss", "lr", "seconds"}, name


def focal(out, y):
    entropy = F.cross_entropy(out, y, reduction="none")
    return ((1 - (-entropy).exp()).square() * entropy).mean()


def focal_of_mean(out, y):
    return (1 - (-F.cross_entropy(out, y)).exp()).square() * F.cross_entropy(out, y)


def of_their_own_weights(out, y):
    return F.cross_entropy(out, y, len(y) / (3 * torch.bincount(y, minlength=3).clamp(min=1)))


def jaccard(out, y):
    p, truth = out.sigmoid(), F.one_hot(y, 3)
    return 1 - (p * truth).sum() / (p + truth - p * truth).sum()


def noisy(out, y):
    return F.cross_entropy(F.dropout(out, 0.5), y)


NO_MEAN, NO_SCALAR = "must return the mean over vertices of a loss of each", "a scalar, or"
LOSSES = [
    (focal, None),
    (noisy, None),
    (lambda out, y: logistic(out, F.one_hot(y, 3)), None),
    (partial(F.cross_entropy, weight=WEIGHT), NO_MEAN),
    (partial(F.cross_entropy, ignore_index=2), NO_MEAN),
    (torch.nn.CrossEntropyLoss(reduction="sum"), NO_MEAN),
    (lambda out, y: F.mse_loss(out, F.one_hot(y, 3).float()).sqrt(), NO_MEAN),
    (focal_of_mean, NO_MEAN),
    (of_their_own_weights, NO_MEAN),
    (jaccard, NO_MEAN),
    (lambda out, y: (F.cross_entropy(out, y), 1.0), NO_MEAN),
    (lambda out, y: (F.cross_entropy(out, y) * out.sum(), out.sum()), "use weight.detach()"),
    (torch.nn.CrossEntropyLoss(reduction="none"), NO_SCALAR),
    (lambda out, y: (out.sum(), 1, 2), NO_SCALAR),
    (lambda out, y: F.cross_entropy(out, y).detach(), "depends on the model's outputs"),
    (lambda out, y: (F.cross_entropy(out, y, reduction="none") * REAL[:TRAIN]).mean(), "any of"),
]


def refused_losses(rank, ranks):
    graph, said = spgnn.distribute(SimpleNamespace(y=CLASSES, **GRAPH), partition=PARTS[ranks]), []
    for zero in (False, True):  # outputs of which all are equal, too
        for loss, _ in LOSSES:
            model, state = Mean((6, 3)), torch.get_rng_state()
            for p in model.parameters():
                p.data *= 1 - zero
            try:
                spgnn.Trainer(model, graph, loss=loss).fit(1)
                said.append("")
            except InputError as error:
                said.append(str(error))
                assert torch.equal(torch.get_rng_state(), state)
    return said


@pytest.mark.filterwarnings("ignore:.*target size.*:UserWarning")
def test_losses_that_do_not_add_up_are_refused_on_any_number_of_ranks():
    for ranks in (1, 3):
        for said in run_ranks(refused_losses, ranks, ranks):
            for line, (_, words) in zip(said, LOSSES * 2, strict=True):
                assert words in line if words else not line, (line, words)


def stepping(schedule):
    """Callbacks that step a scheduler of the user's."""
    return [lambda record: schedule.step()]


def by_optimizers(rank, ranks):
    """Histories of some optimisers, and what is said of others."""
    graph = spgnn.distribute(SimpleNamespace(y=CLASSES, **GRAPH), partition=PARTS[ranks])

    def history(theirs, settings):
        model = Mean((6, 3))
        how = {"optimizer": theirs(model.parameters()), **settings}
        if "callbacks" in how:
            how["callbacks"] = stepping(how["callbacks"](how["optimizer"]))
        F.cross_entropy(model(GRAPH["x"], GRAPH["edge_index"]), CLASSES).backward()  # left over
        records = spgnn.Trainer(model, graph, **how).fit(EPOCHS)
        return [r["loss"] for r in records], [r["lr"] for r in records]

    return {name: history(*how[:2]) for name, how in OPTIMIZERS.items()}


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), **{"lr": 0.5, **settings})


rates = torch.optim.lr_scheduler
by_step = partial(rates.StepLR, step_size=2, gamma=0.1)
one_cycle = partial(rates.OneCycleLR, max_lr=0.5, total_steps=EPOCHS + 1)
cosine = partial(rates.CosineAnnealingLR, T_max=EPOCHS)
HALF, SCHEDULED = partial(SGD, lr=0.5), {"lr_schedule": "cosine", "epochs": EPOCHS}
# An optimiser, further settings of a trainer, and the same of torch alone.
OPTIMIZERS = {
    "instance": (HALF, {}, {}),
    "nothing": (partial(SGD, lr=0.0), {}, {}),
    "decays": (partial(ADAMW, lr=0.1, weight_decay=0.3), {}, {}),
    "class": (
        partial(SGD, lr=0.5, weight_decay=0.1),
        {"optimizer": SGD, "lr": 0.5, "weight_decay": 0.1},
        {},
    ),
    "class without settings": (partial(ADAMW, lr=0.01), {"optimizer": ADAMW}, {}),
    "clipped": (HALF, {"clip": 0.01}, {"clip": 0.01}),
    "schedule": (HALF, SCHEDULED, {"schedule": cosine}),
    "their schedule": (HALF, {"callbacks": by_step}, {"schedule": by_step}),
    "rates and momentum": (
        partial(torch.optim.Adam, lr=0.5),
        {"callbacks": one_cycle},
        {"schedule": one_cycle},
    ),
}


def test_an_optimizer_is_used_as_it_is():
    ours = {ranks: run_ranks(by_optimizers, ranks, ranks) for ranks in (1, 3)}
    for name, (optimizer, _, more) in OPTIMIZERS.items():
        losses, _, _ = plain_loop(Mean((6, 3)), CLASSES, F.cross_entropy, optimizer, **more)
        for found in (*ours[1], *ours[3]):
            assert found[name][0] == pytest.approx(losses, rel=1e-4), name
    rates = {name: found for name, (_, found) in ours[3][1].items()}
    assert rates["nothing"] == [0.0] * EPOCHS
    assert rates["their schedule"] == pytest.approx([0.5, 0.5, 0.05, 0.05, 0.005, 0.005])


@pytest.mark.parametrize("name", NAMED)
def test_named_optimizers_step_as_those_of_torch(name):
    theirs, steps = {"adam": torch.optim.Adam, "adamw": ADAMW, "sgd": SGD}[name], []
    models = Mean(), Mean()
    one, other = NAMED[name](models[0].parameters()), theirs(models[1].parameters(), fused=True)
    for step in range(6):
        if step == 4:
            one.register_step_post_hook(lambda *_: steps.append(1))
        for number, pair in enumerate(zip(*(m.parameters() for m in models), strict=True)):
            gradient = torch.randn_like(pair[0])
            for p in pair:
                p.grad = gradient.clone() if (number + step) % 3 else None
        one.step()
        other.step()
        assert all(map(torch.equal, *(m.state_dict().values() for m in models)))
    assert (len(steps), str(one.state.values())) == (2, str(other.state.values()))


class Counting:
    """A loss that changes with its calls, as annealing does."""

    calls = 0

    def __call__(self, out, y):
        self.calls += 1
        return F.cross_entropy(out, y) / self.calls


def test_losses_are_tried_aside_and_train_nothing_of_their_own():
    graph = spgnn.distribute(SimpleNamespace(y=CLASSES, **GRAPH))
    torch.manual_seed(0)
    model = Mean((6, 3))
    plain = spgnn.Trainer(copy.deepcopy(model), graph, loss=F.cross_entropy).fit(1)[0]["loss"]
    assert spgnn.Trainer(model, graph, loss=Counting()).fit(1)[0]["loss"] == plain
    weighted = torch.nn.CrossEntropyLoss()
    weighted.s = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(InputError, match="s of CrossEntropyLoss would not be trained"):
        spgnn.Trainer(model, graph, loss=weighted)


def refused_optimizers(rank):
    graph = spgnn.distribute(SimpleNamespace(y=CLASSES, **GRAPH))
    model = Mean((6, 4, 3))
    first, weights = list(model.parameters())[:1], model.parameters
    said = []
    for optimizer, settings, words in (
        (sgd(Mean((6, 3))), {}, "SGD has 2 parameters that the model has not"),
        (torch.optim.SGD(first, lr=0.1), {}, "SGD has no layers.0.bias, which the model trains"),
        (sgd(model), {"lr": 0.1}, "lr= does not reach the optimizer"),
        (lambda p: torch.optim.SGD(p, lr=0.1), {"lr": 0.01}, "lr= does not reach"),
        (partial(torch.optim.SGD, lr=0.1), {"weight_decay": 0.0}, "weight_decay= does not reach"),
        (sgd(model), {"options": Training(lr=0.5)}, "lr= does not reach"),
        (torch.optim.Rprop, {"weight_decay": 0.1}, "weight_decay=: Rprop knows none"),
        (torch.optim.LBFGS(weights()), {}, "LBFGS calls a closure"),
        (torch.optim.LBFGS, {}, "LBFGS calls a closure"),
        (lambda p: None, {}, "must make a torch optimizer, got NoneType"),
        (sgd(model, lr=0.1 + rank), {}, "the optimizer"),
        ("sgd", {"options": Training()}, "options has it; give one of both"),
        (None, {"options": Training(), "lr": 0.1}, "options has it; give one of both"),
        ("addam", {}, "Trainer(optimizer=…) addam: choose one of adam, adamw, sgd"),
        (None, {"loss": "cross_entropy"}, "Trainer(loss=…) cross_entropy: choose one of auto, "),
    ):
        with pytest.raises(InputError) as caught:
            spgnn.Trainer(model, graph, optimizer=optimizer, **settings)
        assert words in str(caught.value)
        said.append(str(caught.value))
    optimizer = sgd(model)
    with pytest.raises(InputError, match="a callback sets the optimizer's lr"):
        spgnn.Trainer(
            model,
            graph,
            optimizer=optimizer,
            warmup=2,
            callbacks=stepping(torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)),
        ).fit(4)
    return said


def test_optimizers_that_would_not_do_what_is_asked_for_are_refused():
    one, other = run_ranks(refused_optimizers, 2)
    assert len(one) == len(other)


def refused_models(rank):
    graph = spgnn.distribute(SimpleNamespace(y=CLASSES, **GRAPH), partition=[0] * (N - 1) + [1])
    for function, settings, words in (
        (lambda out: (out, out), {}, r"returns a tuple.*forward="),
        (lambda out: {"out": out}, {}, "returns a dict"),
        (lambda out: None, {}, "returns a NoneType"),
        (lambda out: out[:1, 0][0], {}, "a row for each own vertex"),
        (lambda out: out.argmax(1), {}, "floating numbers"),
        (lambda out: out[:, 0].squeeze(), {"loss": logistic}, r"squeeze\(-1\)"),
        (lambda out: out[:, :2], {}, r"and y has 3 classes \(vertex \d+ is of class 2"),
        (lambda out: out[:, 0], {}, "returns 1 number a vertex, and y has 3 classes"),
    ):
        with pytest.raises(InputError, match=words):
            spgnn.Trainer(Mean((6, 3), function), graph, **settings).fit(1)
    with pytest.raises(InputError, match="features of the graph are"):
        spgnn.Trainer(Mean((6, 3)), graph, dtype="float64")
    graph = spgnn.distribute(SimpleNamespace(y=REAL, **GRAPH), partition=[0] * (N - 1) + [1])
    for loss, words in (
        ("mse", "returns 3 numbers a vertex, and y has 1 columns"),
        (lambda out, y: F.mse_loss(out[:, :1], y), NO_MEAN),
        (F.mse_loss, r"fails with outputs \[rows, 3\] and y \[rows\]: The size"),
    ):
        with pytest.raises(InputError, match=words):
            spgnn.Trainer(Mean((6, 3)), graph, loss=loss).fit(1)
    with pytest.raises(InputError, match=r"squeeze\(-1\)"):
        spgnn.Trainer(Mean((6, 1)), graph, loss=F.mse_loss).fit(1)
    for y, loss, words in (
        (CLASSES * 2 - 4, "auto", r"vertex \d+ is smaller: give floating numbers"),
        (CLASSES * 3, F.cross_entropy, r"y of vertex \d+ is [36], no class in \[0, 3\)"),
        (CLASSES % 2 * 2 - 1, F.soft_margin_loss, "these are -1 and 1: give floating numbers"),
        (CLASSES[:, None] * WEIGHT.long(), "auto", "needs labels 0 and 1"),
    ):
        graph = spgnn.distribute(SimpleNamespace(y=y, **GRAPH), partition=[0] * (N - 1) + [1])
        with pytest.raises(InputError, match=words):
            spgnn.Trainer(Mean((6, 3)), graph, loss=loss).fit(1)
    graph.train_mask = graph.train_mask[rank:]  # of one rank alone
    with pytest.raises(InputError, match=r"train_mask must be bool \[1\] .* got bool \[0\]"):
        spgnn.Trainer(Mean((6, 3)), graph)


@pytest.mark.filterwarnings("ignore:Using a target size:UserWarning")
def test_outputs_and_labels_that_do_not_fit_are_refused():
    run_ranks(refused_models, 2)


class Nothing(Task):
    def loss(self, epoch):
        raise NotImplementedError


def test_refusals():
    graph = spgnn.distribute("rmat-5-4")
    model = torch.nn.Linear(2, 2)
    for arguments, options, words in (
        ((model,), {}, "give the graph that spgnn.distribute made"),
        ((model, graph), {}, "has no labels"),
        ((model, graph), {"loss": "sofmax"}, "did you mean 'softmax'"),
        ((model, graph), {"optimizer": "adamm"}, "did you mean 'adam'"),
        ((model, graph), {"epochs": 0}, "epochs"),
        ((model, graph), {"loss": None}, "loss=.* must be a name or a function, got None"),
        ((model, graph), {"loss": torch.nn.MSELoss}, "got the class MSELoss"),
        ((model, graph), {"optimizer": [1]}, "a torch optimizer, its class, a name or a function"),
        ((model, graph), {"optimizer": torch.nn.Linear}, "got the class Linear"),
        ((model, graph), {"forward": "x"}, "must be a function, got 'x'"),
        ((model, graph), {"callbacks": print}, "must be a list of functions"),
        ((model, graph), {"metrics": "accuracy"}, "must be a list of names and functions"),
        ((model, graph), {"metrics": ["accurate"]}, "did you mean 'accuracy'"),
        ((model, graph), {"patient": 5}, "patient=.* no such setting; did you mean patience.* lr"),
        ((model, graph), {"max_grad_norm": 5}, "did you mean clip[?] Choose one of clip, "),
        ((model, graph), {"learning_rate": 5}, "did you mean lr[?] Choose one of lr, "),
        ((model, graph), {"logger": 5}, "did you mean callbacks"),
        ((model, graph), {"early_stopping": 5}, "did you mean patience"),
        ((model, graph), {"runs": 5}, "runs=.* no such setting. Choose one of"),
        ((model, graph), {"lr_every": 5}, "lr_every=.* needs lr_schedule="),
        ((model, graph), {"checkpoint_every": 5}, "needs checkpoint="),
        ((Nothing(), graph), {}, "a Task takes no graph, target, loss, forward or metrics"),
        ((Nothing(),), {"metrics": ["mae"]}, "a Task takes no graph, target, loss, forward or"),
    ):
        with pytest.raises(InputError, match=words):
            spgnn.Trainer(*arguments, **options)
