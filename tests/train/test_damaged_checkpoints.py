"""Checkpoints with a few bytes, arrays or numbers changed: all of it is resumed, or nothing is."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from spgnn import InputError
from spgnn.train import checkpoint
from tests.train.checkpoints import HISTORY, load, make, rewrite, save

ODD = [-2, -1, 0, 1, 3, 10**9, 10**400, 0.5, 1e308, -0.0, True, None, "", "x" * 5000, [], {}]
ODD += [[[]], [None], {"epoch": 0}, [HISTORY[0], HISTORY[0]], float("nan"), float("inf")]
DTYPES = ["f4", "f8", "f2", "c8", ">f4", "i4", "i8", "u1", "?", "U3", "S4", "M8[s]", "O"]


def damage_bytes(whole: bytes, rng: random.Random) -> bytes:
    """Flipped, cut, doubled, moved or overwritten."""
    data = bytearray(whole)
    for _ in range(rng.choice([1, 1, 1, 2, 8])):
        at, length = rng.randrange(len(data)), rng.choice([1, 1, 2, 4, 16, 200])
        piece = bytes(data[at : at + length])
        match rng.randrange(7):
            case 0:
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                data[at : at + length] = rng.randbytes(len(piece))
            case 2:
                data[at : at + length] = bytes([rng.choice([0, 255, 32, 57])]) * len(piece)
            case 3:
                del data[at : at + length]
            case 4:
                data[at:at] = piece
            case 5:
                to = rng.randrange(len(data))
                data[to : to + length] = piece
            case 6:
                del data[max(at, 1) :]
    return bytes(data)


def odd_array(rng: random.Random, array: np.ndarray) -> np.ndarray:
    """An array of another shape, dtype or contents."""
    match rng.randrange(4):
        case 0:
            return array.reshape(rng.choice([array.shape[::-1], (-1,), (1, *array.shape)]))
        case 1:
            with np.errstate(all="ignore"):
                return np.zeros(array.shape).astype(np.int64).astype(rng.choice(DTYPES))
        case 2:
            changed = array.copy()
            value = rng.choice([np.nan, np.inf, -np.inf, -1, 3, 1e30])
            changed.reshape(-1)[rng.randrange(array.size)] = value
            return changed
        case _:
            return np.zeros(rng.choice([(), (0,), (1,), (4, 3, 2)]), array.dtype)


def odd_progress(rng: random.Random, progress: dict) -> dict | bytes:
    """A description with a value, a name or a few characters changed."""
    changed = copy.deepcopy(progress)
    place = rng.choice([changed, changed["signature"], changed["history"][0]])
    name = rng.choice([*place, "more"])
    match rng.randrange(3):
        case 0:
            place[name] = rng.choice(ODD)
        case 1:
            place.pop(name, None)
        case _:
            return damage_bytes(json.dumps(progress).encode(), rng)
    return changed


def damage_contents(path: Path, rng: random.Random) -> None:
    """A whole archive, with sums that are right, of arrays that are not."""
    with np.load(path) as loaded:
        arrays = dict(loaded)
    progress = json.loads(arrays.pop("progress").tobytes())
    name = rng.choice(list(arrays))
    match rng.randrange(5):
        case 0:
            rewrite(path, {name: None})
        case 1:
            rewrite(path, {rng.choice(["more", "weight/", "optimizer/9/step"]): arrays[name]})
        case 2:
            rewrite(path, {"progress": odd_progress(rng, progress)})
        case _:
            rewrite(path, {name: odd_array(rng, arrays[name])})


def check_many(directory: Path, count: int, damage: Callable[[Path, random.Random], None]) -> int:
    """Damage a checkpoint in many ways; returns how often it could still be resumed."""
    saved, its_optimizer = save(directory)
    whole = (directory / checkpoint.FILE).read_bytes()
    model, optimizer = make()
    before = snapshot(model, optimizer)
    resumed = 0
    for seed in range(count):
        path = directory / checkpoint.FILE
        path.write_bytes(whole)
        damage(path, random.Random(seed))
        said = None
        try:
            load(directory, model, optimizer)
        except InputError as error:
            said, after = str(error), before
            assert str(path) in said, seed
            assert "\n" not in said
            assert len(said) <= 300
        if said is None:
            resumed += 1
            # Sums tell of every byte that matters.
            after = snapshot(saved, its_optimizer) if damage is in_bytes else contents(path)
        found = snapshot(model, optimizer)
        assert found.keys() == after.keys(), seed
        assert all(torch.equal(found[name], after[name]) for name in found), seed
        restore(model, optimizer, before)
    return resumed


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = checkpoint._state(model, optimizer)
    return {name: tensor.clone() for name, tensor in state.items()}


def restore(model, optimizer, state: dict[str, torch.Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in checkpoint._state(model, optimizer).items():
            tensor.copy_(state[name])


def contents(path: Path) -> dict[str, torch.Tensor]:
    with np.load(path) as loaded:
        arrays = dict(loaded)
    del arrays["progress"]
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def in_bytes(path: Path, rng: random.Random) -> None:
    path.write_bytes(damage_bytes(path.read_bytes(), rng))


@pytest.mark.parametrize("damage", [in_bytes, damage_contents])
def test_damaged_checkpoints(tmp_path, damage):
    resumed = check_many(tmp_path, 200, damage)
    # Some of it changes nothing that counts, or makes another checkpoint that is right.
    assert 0 < resumed < 100


@pytest.mark.slow
@pytest.mark.parametrize("damage", [in_bytes, damage_contents])
def test_many_damaged_checkpoints(tmp_path, damage):
    assert check_many(tmp_path, 5000, damage) > 0
