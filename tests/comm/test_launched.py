"""What the variables of each launcher say, and what is said of those that make no sense."""

from __future__ import annotations

import pytest

from spgnn import InputError
from spgnn.comm.connect import first_host, meet, step_port
from spgnn.comm.place import Place, find_place, seconds
from tests.comm.jobs import Forked
from tests.train.command import check_refused

pytestmark = pytest.mark.usefixtures("clean_environment")

BATCH = {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "6", "SLURM_LOCALID": "0"}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1(x2)",
    "SLURM_NODEID": "1",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
}
TWO_TASKS = {
    **STEP,
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
ELASTIC = {"TORCHELASTIC_RUN_ID": "7", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}
TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
HYDRA = {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_RANK": "2",
}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, None),
        (TORCHRUN, Place(5, 8, 1, 4, "torch")),
        ({"RANK": "3", "WORLD_SIZE": "8"}, Place(3, 8, 3, 8, "torch")),
        ({"RANK": "3"}, None),
        (HYDRA, Place(3, 4, 1, 2, "mpi")),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, Place(1, 4, 1, 4, "mpi")),
        (OPEN_MPI, Place(2, 4, 0, 2, "mpi")),
        (STEP, Place(3, 6, 1, 2, "slurm")),
        (STEP | {"SLURM_NODEID": "2", "SLURM_LOCALID": "0"}, Place(3, 6, 0, 1, "slurm")),
        (STEP | {"PMIX_RANK": "3"}, Place(3, 6, 1, 2, "mpi")),
        # A batch script that srun has not started, and a shell that salloc has.
        (BATCH, None),
        (BATCH | {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, None),
        # A shell on a compute node: SLURM describes it, but it is one process.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, None),
        # torchrun and mpiexec inside an allocation.
        (STEP | TORCHRUN, Place(5, 8, 1, 4, "torch")),
        (TWO_TASKS | TORCHRUN | ELASTIC, Place(5, 8, 1, 4, "torch")),
        (TWO_TASKS | {"PMI_RANK": "1", "PMI_SIZE": "2"}, Place(1, 2, 0, 1, "mpi")),
        # torchrun under mpiexec, or in a job of one process.
        ({"PMI_RANK": "1", "PMI_SIZE": "2"} | TORCHRUN | ELASTIC, Place(5, 8, 1, 4, "torch")),
        ({"PMI_RANK": "0", "PMI_SIZE": "1"} | TORCHRUN | ELASTIC, Place(5, 8, 1, 4, "torch")),
        # mpiexec starts its own helpers by srun, one on each node.
        (TWO_TASKS | HYDRA, Place(3, 4, 1, 2, "mpi")),
        # Variables that say the same, as scripts set them for torch.
        (HYDRA | {"RANK": "3", "WORLD_SIZE": "4"}, Place(3, 4, 1, 2, "torch")),
        (STEP | {"RANK": "3", "WORLD_SIZE": "6"}, Place(3, 6, 1, 2, "torch")),
        # What another job has left of its nodes does not matter.
        (HYDRA | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, Place(3, 4, 1, 2, "mpi")),
        (STEP | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, Place(3, 6, 1, 2, "slurm")),
        (STEP | {"MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, Place(3, 6, 1, 2, "slurm")),
        (BATCH | HYDRA, Place(3, 4, 1, 2, "mpi")),
    ],
)
def test_place(monkeypatch, environment, place):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert find_place() == place


NONSENSE = [
    ({"RANK": "foo", "WORLD_SIZE": "2"}, "RANK=foo"),
    ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE= "),
    ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK=2 .* \[0, 1\]"),
    ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1"),
    ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
    ({"RANK": "0", "WORLD_SIZE": "9" * 5000}, "WORLD_SIZE=9"),
    (TORCHRUN | {"LOCAL_RANK": "four"}, "LOCAL_RANK=four"),
    (TORCHRUN | {"LOCAL_RANK": "4"}, r"LOCAL_RANK=4 .* \[0, 3\]"),
    ({"PMI_RANK": "x", "PMI_SIZE": "2"}, "PMI_RANK=x"),
    (STEP | {"SLURM_PROCID": "a"}, "SLURM_PROCID=a"),
    (STEP | {"SLURM_STEP_NUM_TASKS": "many"}, "SLURM_STEP_NUM_TASKS=many"),
    (STEP | {"SLURM_STEP_TASKS_PER_NODE": "2(x"}, r"SLURM_STEP_TASKS_PER_NODE=2\(x .*2\(x3\),1"),
    (STEP | {"SLURM_NODEID": "9"}, r"SLURM_NODEID=9 .* \[0, 3\]"),
]


@pytest.mark.parametrize(("environment", "words"), NONSENSE)
def test_nonsense_is_named(monkeypatch, environment, words):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=words) as caught:
        find_place()
    assert len(str(caught.value)) <= 300


ALONE = {"RANK": "0", "WORLD_SIZE": "1"}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        (HYDRA | ALONE, "RANK=0 WORLD_SIZE=1 and PMI_RANK=3 PMI_SIZE=4 "),
        (HYDRA | ALONE | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}, "WORLD_SIZE=1 and PMI"),
        (HYDRA | {"RANK": "2", "WORLD_SIZE": "4"}, "RANK=2 WORLD_SIZE=4 and PMI_RANK=3"),
        (OPEN_MPI | ALONE, "WORLD_SIZE=1 and OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4"),
        (STEP | ALONE, "WORLD_SIZE=1 and SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=6"),
        # One agent of torchrun for each rank of mpiexec, or for each task.
        (HYDRA | ALONE | ELASTIC, "GROUP_WORLD_SIZE=2 and PMI_RANK=3 PMI_SIZE=4"),
        (STEP | TORCHRUN | ELASTIC, "GROUP_WORLD_SIZE=2 and SLURM_PROCID=3"),
        # Two MPIs, of which either may be the one that is left.
        (OPEN_MPI | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "PMI_SIZE=1 and OMPI_COMM_WORLD_RANK=2"),
        (STEP | {"PMI_RANK": "0", "PMI_SIZE": "1"}, "PMI_SIZE=1 and SLURM_PROCID=3"),
        (STEP | {"PMIX_RANK": "0"}, "PMIX_RANK=0 and SLURM_PROCID=3"),
    ],
)
def test_launchers_that_contradict_each_other(monkeypatch, environment, words):
    """Or P jobs of one rank would end well."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{words}.* contradict each other: unset"):
        find_place()


@pytest.mark.parametrize("text", ["soon", "", "0", "-1", "nan", "inf", "1e400"])
def test_times_must_be_numbers(monkeypatch, text):
    monkeypatch.setenv("SPGNN_TIMEOUT_SECONDS", text)
    with pytest.raises(InputError, match=r"SPGNN_TIMEOUT_SECONDS=.*: must be seconds in"):
        seconds("SPGNN_TIMEOUT_SECONDS", 1.0)


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "foo", "WORLD_SIZE": "2"},
        {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "x"},
        {"RANK": "0", "WORLD_SIZE": "2"},
        {"SPGNN_SETUP_SECONDS": "long"},
    ],
)
def test_the_command_says_so_in_one_line(tmp_path, environment):
    from spgnn.train import main

    ended = Forked(lambda: main(["--dataset", "sbm"]), tmp_path, environment).wait()
    name = next(name for name in (*environment, "MASTER_PORT") if name in ended.err)
    check_refused(ended, name, "in the environment")


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node7", "node7"),
        ("login,node[1-3]", "login"),
        ("node[001-003,7],gpu1", "node001"),
        ("node[4,6]", "node4"),
        ("rack[1-2]node[03,07-9],login", "rack1node03"),
        ("a[0-1].cluster.edu,b", "a0.cluster.edu"),
    ],
)
def test_first_host(nodes, first):
    assert first_host(nodes) == first


@pytest.mark.parametrize("nodes", ["", ",a", "[", "]"])
def test_no_first_host(nodes):
    with pytest.raises(InputError, match="should name the nodes"):
        first_host(nodes)


def test_steps_of_a_job_meet_at_different_ports(monkeypatch):
    ports = set()
    for job in ("7", "8"):
        for step in ("0", "1"):
            monkeypatch.setenv("SLURM_JOB_ID", job)
            monkeypatch.setenv("SLURM_STEP_ID", step)
            ports.add(step_port())
    assert len(ports) == 4
    assert all(1024 < port < 32768 for port in ports)


def test_several_nodes_without_mpi4py_must_be_told_where(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"need mpi4py .* or MASTER_ADDR and MASTER_PORT"):
        meet(Place(0, 4, 0, 2, "mpi"))
