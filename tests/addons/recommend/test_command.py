"""The program and its documented commands: reports, and embeddings under the user's own ids."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from spgnn.addons.recommend import RecommendConfig, open_interactions, train
from spgnn.addons.recommend.interactions import make_up
from spgnn.addons.recommend.recommendation import Recommendation
from spgnn.comm import connect
from spgnn.errors import InputError
from tests.docs.pages import ROOT, printed

PROGRAM = ROOT / "experiments" / "lightgcn.py"
SMALL = {"dim": 4, "epochs": 2, "batch_size": 50, "layers": 2, "eval_every": 1}


def write(path: Path, line: str, head: str = "", *, users: int = 12, items: int = 9) -> Path:
    """A file of interactions."""
    data = make_up(users, items, users * items // 3, seed=1).tocoo()
    rows = [line.format(u=u, i=i) for u, i in zip(data.row, data.col, strict=True)]
    path.write_text("\n".join(filter(None, [head, *rows, ""])))
    return path


def embeddings(path: Path) -> dict[tuple[str, object], np.ndarray]:
    """By side and the ids of the file, of one rank."""
    config = RecommendConfig.of(dataset=str(path), **SMALL)
    task, data = Recommendation(config, connect()), open_interactions(str(path))
    for epoch in range(config.training.epochs):
        task.lr = config.training.lr
        task.loss(epoch)
    rows = np.empty((sum(data.shape), config.model.dim), np.float32)
    rows[task.vertex_ids] = task.propagation.forward(task.rows).numpy()
    assert data.users is not None
    assert data.items is not None
    names = [("user", user) for user in data.users] + [("item", item) for item in data.items]
    return dict(zip(names, rows, strict=True))


def best(path: Path, rows: dict[tuple[str, object], np.ndarray], k: int) -> list[tuple]:
    """User, item and score of the best items that users do not train on, by brute force."""
    data, result = open_interactions(str(path)), []
    sides = data.sides()
    items = np.array([rows["item", item] for item in sides["item"].tolist()], np.float64)
    for user, own in zip(sides["user"].tolist(), data.train.toarray(), strict=True):
        scores = (items @ rows["user", user].astype(np.float64)).astype(np.float32)
        order = [i for i in np.lexsort((np.arange(len(items)), -scores)) if not own[i]]
        result += [(user, sides["item"].tolist()[i], scores[i]) for i in order[:k]]
    return result


def check_best(table: dict[str, list], truth: list[tuple]) -> None:
    assert list(table) == ["user", "item", "score"]
    for name, column in zip(table, zip(*truth, strict=True), strict=True):
        if name == "score":
            np.testing.assert_array_equal(np.float32(table[name]), np.float32(column))
        else:
            assert table[name] == list(column)


def test_the_program_writes_a_report_and_embeddings_by_the_users_ids(tmp_path: Path) -> None:
    path = write(tmp_path / "likes.csv", "user-{u},song {i},4", "user,item,rating")
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    report, predictions = tmp_path / "report.json", tmp_path / "embeddings.npz"
    flags += ["--dataset", path, "--nproc", "2", "--json", report, "--predictions", predictions]
    flags += ["--top-k", tmp_path / "best.npz", "--k", "7"]
    done = subprocess.run(
        [sys.executable, PROGRAM, *flags], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "12 users, 9 items" in done.stdout
    assert "test recall@7" in done.stdout
    assert "random interactions" in done.stdout
    written = json.loads(report.read_text())
    assert written["world_size"] == 2
    assert [record["epoch"] for record in written["history"]] == [0, 1]
    assert written["graph"]["users"] == 12
    assert written["graph"]["split"] == "random"
    assert written["failure"] is None
    truth = embeddings(path)
    with np.load(predictions) as arrays:
        ids = list(zip(arrays["side"].tolist(), arrays["id"].tolist(), strict=True))
        found = arrays["embedding"]
    assert ids == list(truth)
    np.testing.assert_allclose(found, list(truth.values()), atol=1e-6)
    with np.load(tmp_path / "best.npz") as arrays:
        table = {name: arrays[name].tolist() for name in arrays}
    truth = best(path, dict(zip(ids, found, strict=True)), 7)
    assert len(truth) < 7 * 12  # some users have fewer new items
    check_best(table, truth)


def test_tables_of_embeddings_and_best_items_have_integer_ids(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = write(tmp_path / "likes.txt", "1{u:07} 9{i:08}")
    target, items = tmp_path / "embeddings.parquet", tmp_path / "best.parquet"
    written = {"predictions": str(target), "top_k": str(items), "k": 4}
    train(RecommendConfig.of(dataset=str(path), **written, **SMALL), connect())
    table = parquet.read_table(target)
    truth = embeddings(path)
    ids = zip(table["side"].to_pylist(), table["id"].to_pylist(), strict=True)
    assert list(ids) == list(truth)
    rows = table["embedding"].to_pylist()
    np.testing.assert_allclose(rows, list(truth.values()), atol=1e-6)
    exact = {vertex: np.array(row) for vertex, row in zip(truth, rows, strict=True)}
    check_best(parquet.read_table(items).to_pydict(), best(path, exact, 4))


REFUSED = [
    ({"spill": "there", "loss": "in-batch"}, "--loss bpr or softmax"),
    ({"spill": "there", "cover": "minimum"}, "--cover column"),
    ({"spill": "there", "checkpoint": "there"}, "no --checkpoint"),
    ({"spill": "there", "dim": 10**8}, "memory"),
    ({"lr_schedule": "plateau"}, "no validation loss"),
    ({"clip": 1.0}, "lightgcn.py knows 0.0 only"),
    ({"device": "cuda"}, "lightgcn.py knows auto only"),
    ({"loss": "in-batch", "negatives": 2}, "--negatives"),
    ({"temperature": 0.5}, "--loss softmax or in-batch"),
    ({"weights": "1,2"}, "4 numbers"),
    ({"c": 2}, "--c 2"),
    ({"top_k": "best.csv"}, "--top-k best.csv: its name must end in .npz or .parquet"),
    ({"top_k": "nowhere/best.npz"}, "its directory does not exist"),
    ({"split": "temporal"}, "has no times for --split temporal"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_cannot_work_is_refused_in_one_line(
    options: dict[str, object], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as error:
        train(RecommendConfig.of(**options), connect())
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def documented() -> list[str]:
    """Commands of the page and of the program itself."""
    text = (ROOT / "docs" / "recommend.md").read_text() + PROGRAM.read_text()
    text = text.replace("\\\n", " ")
    commands = re.findall(r"^.*?((?:\S*python|torchrun|mpiexec) .*lightgcn\.py .*)$", text, re.M)
    assert len(commands) > 6
    return list(dict.fromkeys(" ".join(command.split()) for command in commands))


@pytest.mark.slow
@pytest.mark.parametrize("command", documented())
def test_documented_commands(command: str, tmp_path: Path) -> None:
    words = [{"python": sys.executable}.get(Path(w).name, w) for w in shlex.split(command)]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if shutil.which(words[0], path=path) is None:
        pytest.skip(f"there is no {words[0]}")
    (tmp_path / "experiments").symlink_to(PROGRAM.parent)
    write(tmp_path / "train.csv", "{u},{i}")
    write(tmp_path / "ratings.csv", "{u},{i},5", "user,item,rating")
    (tmp_path / "gowalla").mkdir()
    lists = {"train": "0 1 2 3 4 5\n1 2 3 4 5 6 0\n", "test": "0 6\n1 1\n"}
    for name, text in lists.items():
        (tmp_path / "gowalla" / f"{name}.txt").write_text(text)
    printed([*words, "--epochs", "2", "--json", "out.json"], tmp_path, PYTHONPATH=str(ROOT))
    assert len(json.loads((tmp_path / "out.json").read_text())["history"]) == 2
