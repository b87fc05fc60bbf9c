"""Checkpoints with a few bytes, tensors or numbers changed: all is resumed, or nothing is."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from spgnn import InputError
from spgnn.train import checkpoint
from tests.train.checkpoints import HISTORY, contents, load, make, rewrite, save

ODD = [-2, -1, 0, 1, 3, 10**9, 10**400, 0.5, 1e308, -0.0, True, None, "", "x" * 5000, [], {}]
ODD += [[[]], [None], {"epoch": 0}, [HISTORY[0], HISTORY[0]], float("nan"), float("inf")]
DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.uint8, torch.bool]


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


def odd_tensor(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of another shape, dtype or contents."""
    match rng.randrange(4):
        case 0:
            return tensor.reshape(rng.choice([tensor.shape[::-1], (-1,), (1, *tensor.shape)]))
        case 1:
            return torch.zeros(tensor.shape, dtype=rng.choice(DTYPES))
        case 2:
            changed = tensor.clone()
            value = rng.choice([float("nan"), float("inf"), -float("inf"), -1, 3, 1e30])
            changed.reshape(-1)[rng.randrange(tensor.numel())] = value
            return changed
        case _:
            return torch.zeros(rng.choice([(), (0,), (1,), (4, 3, 2)]), dtype=tensor.dtype)


def odd_progress(rng: random.Random, progress: dict) -> str:
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
            return damage_bytes(json.dumps(progress).encode(), rng).decode("latin-1")
    return json.dumps(changed)


def in_contents(path: Path, rng: random.Random) -> None:
    """A whole file, with the right digest, of tensors that are not right."""
    tensors, told = contents(path)
    name = rng.choice(list(tensors))
    match rng.randrange(5):
        case 0:
            rewrite(path, {name: None})
        case 1:
            rewrite(path, {rng.choice(["more", "weight/", "optimizer/9/step"]): tensors[name]})
        case 2:
            rewrite(path, {}, odd_progress(rng, json.loads(told)))
        case _:
            rewrite(path, {name: odd_tensor(rng, tensors[name])})


def in_bytes(path: Path, rng: random.Random) -> None:
    path.write_bytes(damage_bytes(path.read_bytes(), rng))


def snapshot(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    state = checkpoint._training_state(model, optimizer)
    return {name: tensor.clone() for name, tensor in state.items()}


def check_many(directory: Path, count: int, damage: Callable[[Path, random.Random], None]) -> int:
    """Damage a checkpoint in many ways; returns how often it could still be resumed."""
    saved, its_optimizer = save(directory)
    path = directory / checkpoint.FILE
    whole = path.read_bytes()
    model, optimizer = make()
    before = snapshot(model, optimizer)
    resumed = 0
    for seed in range(count):
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
            # The digest tells of every byte that matters.
            after = snapshot(saved, its_optimizer) if damage is in_bytes else contents(path)[0]
        found = snapshot(model, optimizer)
        assert found.keys() == after.keys(), seed
        assert all(torch.equal(found[name], after[name]) for name in found), seed
        with torch.no_grad():
            for name, tensor in checkpoint._training_state(model, optimizer).items():
                tensor.copy_(before[name])
    return resumed


@pytest.mark.parametrize("count", [200, pytest.param(5000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("damage", [in_bytes, in_contents])
def test_damaged_checkpoints(tmp_path, damage, count):
    resumed = check_many(tmp_path, count, damage)
    # Some of it changes nothing that counts, or makes another checkpoint that is right.
    assert resumed < count / 2
    assert resumed or damage is in_bytes
