"""A guest of a program that has made process groups: what it does there, and what it leaves."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import os
import pickle
import resource
import signal
import sys
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import spgnn
from spgnn import InputError, memory
from spgnn.comm import CommunicationError, connect
from spgnn.comm.failure import guests, world
from spgnn.torch_internals import groups_made, store_of, timeout_of, unlisted_group
from tests import products
from tests.comm.jobs import Ended, names_of_threads, on_their_own

N = 50
MEETING = importlib.import_module("spgnn.comm.guest")


def data() -> SimpleNamespace:
    torch.manual_seed(0)
    y, train = torch.randint(3, (N,)), torch.rand(N) < 0.5
    edges = torch.randint(N, (2, 4 * N))
    return SimpleNamespace(x=torch.rand(N, 4), edge_index=edges, num_nodes=N, y=y, train_mask=train)


def all_well(ended: list[Ended]) -> None:
    assert [end.status for end in ended] == [0] * len(ended), "\n".join(end.err for end in ended)


def mesh_of(*sizes: int) -> dist.DeviceMesh:
    names = ("model", "data", "more")[: len(sizes)]
    return dist.device_mesh.init_device_mesh("cpu", sizes, mesh_dim_names=names)


def files() -> set[str]:
    """Those that are open: sockets, pipes, files."""
    gc.collect()
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this directory
            found.add(os.readlink(fd))
    return found


def state() -> dict[str, object]:
    """All that a process shares with whatever else runs in it."""
    gc.collect()
    parent_died = torch.zeros(1, dtype=torch.int32)
    ctypes.CDLL(None).prctl(2, ctypes.c_void_p(parent_died.data_ptr()))
    return {
        "threads": sorted(names_of_threads()),
        "torch's threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "limit of files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "environment": dict(os.environ),
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "end of the parent": int(parent_died),
        "excepthook": sys.excepthook,
        "at exit": atexit._ncallbacks(),
        "groups": groups_made(),
        "guests": len(guests),
        "world": world(),
    }


def test_nothing_is_left_of_a_guest(tmp_path, monkeypatch):
    """Of graphs, a trainer, subgroups."""
    check_nothing_is_left(tmp_path, monkeypatch)


def check_nothing_is_left(tmp_path, monkeypatch, work=lambda comm: True) -> None:
    def program() -> None:
        dist.init_process_group("gloo")
        x = torch.randn(300, 300, requires_grad=True)
        (x @ x).sum().backward()  # threads of torch
        dist.barrier()  # all connections are made
        before, opened = state(), files()
        monkeypatch.setattr(memory, "_libc", lambda: pytest.fail("nobody sets the allocator"))
        for options in ({}, {"algo": "1.5d", "c": 2}):
            group = dist.group.WORLD
            graph = spgnn.distribute(data(), partition="random", group=group, **options)
            trainer = spgnn.Trainer(spgnn.nn.GCN(-1, 4, 2, 3), graph, lr=0.05)
            assert len(trainer.fit(2)) == 2
            graph.comm.settled()
            assert graph.comm.job.timeout == 1800  # torch's own
            assert work(graph.comm)
            if options:
                A = graph.matrix("sym")
                assert pickle.loads(pickle.dumps(A)).mesh is A.mesh
                during = state()
                more = [name for name in before if during[name] != before[name]]
                assert more == ["threads", "guests"]
                assert files() - opened
                del A
            del graph, trainer, group
            assert (state(), files() - opened) == (before, set())
        dist.destroy_process_group()

    all_well(on_their_own(program, tmp_path, 4))


def test_on_groups_and_meshes(tmp_path):
    """Several at once; groups of the program are called as they would be, before and after."""

    def program() -> None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        assert products.check_all(connect(group=dist.group.WORLD), every=20) > 0
        odd = dist.new_group([1, 3])
        if rank % 2:
            comm = connect(group=odd)
            assert (comm.rank, comm.size, comm.agree(rank)) == (rank // 2, 2, 3)
            assert comm.apart().agree(1, "sum") == 2
            assert products.check_all(comm, every=20) > 0
            again = connect(group=odd)
            del comm
            assert again.agree(rank, "sum") == 4
        else:
            with pytest.raises(InputError, match="no member of the group"):
                connect(group=odd)
        mesh = mesh_of(2, 2)
        whole = connect(group=dist.group.WORLD)
        graphs = [
            spgnn.distribute(data(), partition="random", group=group)
            for group in (mesh["data"], mesh["model"], mesh.get_group("data"))
        ]
        assert whole.subgroup([[0, 1, 2], [3]]).agree(1, "sum") == (1 if rank == 3 else 3)
        for graph in graphs[::-1]:
            ones = torch.ones(graph.own_rows, 1)
            assert int(graph.sum(ones)) == graph.num_nodes == N
        if rank % 2:  # torch calls it after its ranks and the number of groups: the same on both
            dist.barrier(dist.new_group([1, 3], use_local_synchronization=True))
        dist.barrier()
        dist.destroy_process_group()

    all_well(on_their_own(program, tmp_path, 4))


@pytest.mark.parametrize("described", [False, True], ids=["spawned", "torchrun"])
def test_a_group_that_exists_is_never_overlooked(tmp_path, described):
    """Nor one that was made, or ended and made again, after this process was a job of one rank."""

    def program() -> None:
        rank = int(os.environ["RANK"])
        if not described:  # as of mp.spawn
            for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                del os.environ[name]
            assert connect().size == 1
        for turn in range(2):
            # A file each: at one port, an early rank would meet the store of the turn before.
            meeting = f"file://{tmp_path}/turn-{turn}"
            dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=3)
            comm = connect()
            assert (comm.rank, comm.size, comm.job.is_guest) == (rank, 3, True)
            assert connect() is comm
            graph = spgnn.distribute(data(), partition="random")
            assert graph.comm is comm
            assert int(graph.sum(torch.ones(graph.own_rows, 1))) == N
            edges = torch.stack([torch.arange(3), torch.full((3,), rank)])
            assert len(spgnn.Halo.build(edges, torch.arange(3))(torch.ones(1, 1))) == 3
            with pytest.raises(InputError, match="backend=gloo: the group has its own"):
                connect("gloo")
            comm.leave()
            assert connect().agree(1, "sum") == 3
            dist.barrier()
            dist.destroy_process_group()
            with pytest.raises(InputError, match="the process group has ended"):
                graph.sum(torch.ones(graph.own_rows, 1))
        for size in (1, 2):
            dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
            if size == 1 and not described:
                assert connect().size == 1
            else:
                alone = "group of one rank, but the launcher started 3"
                with pytest.raises(InputError, match=alone if size == 1 else "backend is cpu:fake"):
                    connect()
            dist.destroy_process_group()
        if not described:
            assert connect().size == 1

    all_well(on_their_own(program, tmp_path, 3))


def test_a_group_that_moves_no_tensors_of_the_host(tmp_path):
    """NCCL alone, whose part another backend plays here: the host has a group of ours."""

    def backend(store: object, rank: int, size: int, timeout: timedelta) -> object:
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    def program() -> None:
        dist.Backend.register_backend("notnccl", backend, devices=["cuda"])
        dist.init_process_group("cuda:notnccl")
        with pytest.raises(RuntimeError, match="No backend type associated with device type cpu"):
            dist.all_reduce(torch.ones(1))
        connect(group=dist.group.WORLD).barrier()
        before, opened = state(), files()
        graph = spgnn.distribute(data(), partition="random", group=dist.group.WORLD)
        assert graph.comm.moves_cuda
        assert int(graph.sum(torch.ones(graph.own_rows, 1))) == N
        history = spgnn.Trainer(spgnn.nn.GCN(-1, 4, 2, 3), graph, lr=0.05).fit(3)
        assert history[-1]["loss"] < history[0]["loss"]
        assert graph.comm.apart().agree(1, "sum") == 2
        assert len(state()["threads"]) > len(before["threads"])
        comm = graph.comm
        comm.leave()
        with pytest.raises(InputError, match=r"leave\(\) was called"):
            comm.barrier()
        del graph, comm
        assert (state(), files() - opened) == (before, set())
        dist.destroy_process_group()

    all_well(on_their_own(program, tmp_path, 2))


def test_a_group_of_both_devices_that_torch_does_not_list(tmp_path, monkeypatch):
    """As a grid on GPUs has them; a stand-in has the constructor of NCCL."""

    class Options:
        _timeout: timedelta

    def nccl(store: object, rank: int, size: int, options: Options) -> object:
        return dist.ProcessGroupGloo(store, rank, size, options._timeout)

    nccl.Options = Options  # type: ignore[attr-defined]
    monkeypatch.setattr(dist, "ProcessGroupNCCL", nccl, raising=False)

    def program() -> None:
        dist.init_process_group("gloo")
        store, listed = store_of(dist.group.WORLD), groups_made()
        rank, span = dist.get_rank(), timedelta(seconds=60)
        group = unlisted_group(dist.PrefixStore("here", store), rank, 2, "here", span, True)
        ones = torch.ones(3)
        group.allreduce([ones], dist.AllreduceOptions()).wait()
        assert ones.tolist() == [2, 2, 2]
        devices = sorted(device.type for device in group._device_types)
        assert (devices, groups_made()) == (["cpu", "cuda"], listed)
        assert timeout_of(group, torch.device("cuda")) == span
        dist.destroy_process_group()

    all_well(on_their_own(program, tmp_path, 2))


def test_groups_that_differ_between_ranks(tmp_path, monkeypatch):
    """A line on every rank that waits, and a program that goes on afterwards."""
    monkeypatch.setattr(MEETING, "_SUSPICIOUS_SECONDS", 0.2)

    def program() -> None:
        dist.init_process_group("gloo")
        rank = dist.get_rank()
        twins = [dist.new_group([0, 1, 2]) for _ in range(2)]
        pairs = [dist.new_group(sorted([one, (one + 1) % 3])) for one in range(3)]
        short = dist.new_group([0, 1, 2], timeout=timedelta(seconds=1))
        square = mesh_of(1, 3)
        for given, words in (
            (twins[rank % 2], "wait for each other in different groups: rank"),
            (pairs[rank], "wait for each other in different groups: rank"),
            (square if rank == 1 else twins[0], r'mesh has 2 axes; give one of them, as mesh\["da'),
            (
                8 if rank == 2 else twins[0],
                "must be a ProcessGroup, a DeviceMesh of one axis or an MPI communicator, got int",
            ),
        ):
            with pytest.raises(InputError, match=words):
                connect(group=given)
            dist.barrier()
        if rank:
            with pytest.raises(InputError, match="waited 1 s for rank 0 to call with"):
                connect(group=short)
        dist.barrier()
        if rank == 1:  # refused for another group than that in which others wait for it
            with pytest.raises(InputError, match='device="cuda": no CUDA device'):
                connect(device="cuda", group=short)
            time.sleep(1)
        for given in (*twins, square["data"], square["model"]):
            assert connect(group=given).agree(rank) in (2, rank)
        comm = connect(group=dist.new_group([0, 1, 2], timeout=timedelta(seconds=3)))
        if rank == 0:
            with pytest.raises(CommunicationError, match="waited 3 s in all_reduce"):
                comm.barrier()
        dist.barrier()
        outer = dist.DeviceMesh("cpu", torch.tensor([0, 2]))
        if rank == 1:
            with pytest.raises(InputError, match="no member of the group"):
                connect(group=outer)
        else:
            assert connect(group=outer).agree(rank) == 2
        with pytest.raises(InputError, match="backend=gloo: the group has its own"):
            connect("gloo", group=twins[0])
        with pytest.raises(InputError, match='device="cuda": no CUDA device'):
            connect(device="cuda", group=twins[0])
        dist.barrier()
        with pytest.raises(InputError, match="comm= and group="):
            spgnn.distribute(data(), comm=connect(group=twins[0]), group=twins[0])
        dist.barrier()
        dist.destroy_process_group()
        with pytest.raises(InputError, match="has no process group, or no longer"):
            connect(group=twins[0])

    all_well(on_their_own(program, tmp_path, 3))


def test_a_group_that_ended_while_it_was_used(tmp_path):
    """Said at once by whatever needs it: of the world, and of a group that the program holds."""

    def program() -> None:
        dist.init_process_group("gloo")
        part = dist.new_group([0, 1])
        graphs = [
            spgnn.distribute(data(), partition="random", group=group, algo="1.5d", c=c)
            for group in (dist.group.WORLD, part)
            for c in (1, 2)
        ]
        matrices = [graph.matrix("sym") for graph in graphs]
        x = [torch.ones(graph.own_rows, 1) for graph in graphs]
        edges = torch.stack([torch.arange(2), torch.full((2,), dist.get_rank())])
        halo = spgnn.Halo.build(edges, torch.arange(2), part)
        assert len(halo(torch.ones(1, 1))) == 2
        assert all(len(A @ H) == len(H) for A, H in zip(matrices, x, strict=True))
        dist.destroy_process_group(part)
        for use in (halo, halo.adjoint, lambda x: halo.rebuild(edges)):
            with pytest.raises(InputError, match="the process group has ended"):
                use(torch.ones(2 if use == halo.adjoint else 1, 1))
        assert len(matrices[0] @ x[0]) == len(x[0])
        for A, H in zip(matrices[2:], x[2:], strict=True):
            with pytest.raises(InputError, match="the process group has ended"):
                A @ H
        dist.destroy_process_group()
        for A, H in zip(matrices, x, strict=True):
            with pytest.raises(InputError, match="the process group has ended"):
                A @ H

    all_well(on_their_own(program, tmp_path, 2))


def test_a_model_of_another_graph(tmp_path):
    """Its gradients are averaged over the ranks of the graph that it was given to last."""

    def program() -> None:
        dist.init_process_group("gloo")
        model = torch.nn.Linear(1, 1, bias=False)
        for group in (dist.group.WORLD, mesh_of(2, 2)["data"]):
            graph = spgnn.distribute(data(), partition="random", group=group, model=model)
            model.zero_grad()
            out = model(torch.full((1, 1), float(graph.comm.rank)))
            out.backward(torch.ones(1, 1))  # no loss, which all ranks would have to share
            assert model.weight.grad == (graph.comm.size - 1) / 2
            del graph
            gc.collect()
        dist.barrier()
        dist.destroy_process_group()

    all_well(on_their_own(program, tmp_path, 4))
