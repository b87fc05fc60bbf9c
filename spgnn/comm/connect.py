"""Join the job this process was started in: where its ranks meet, and which backend they take."""

from __future__ import annotations

import fcntl
import importlib.util
import ipaddress
import os
import re
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, TypeVar
from weakref import ref

import torch.distributed as dist
from torch.distributed import DistError, FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from spgnn.comm.communicator import Communicator, SoloCommunicator
from spgnn.comm.failure import SETUP_SECONDS, Job, StartError, join, shown_ranks, world
from spgnn.comm.place import DEVICES, Place, choose, find_place, mpi_lacks_room, seconds
from spgnn.errors import InputError, check_choice
from spgnn.registry import BACKENDS
from spgnn.signals import END_SECONDS, die_with_torchrun

# From the first rank's start to the last one's.
START_SECONDS = 600.0
AGENT_SECONDS = 60.0
# What rank 0 takes to reach itself, and a name to be found.
REACH_SECONDS = 20.0
NAME_SECONDS = 20.0
# Who waits longer for other ranks says so.
NOTE_SECONDS = 20.0
# A rank that is refused gives rank 0 so long to say why.
LINGER_SECONDS = 2.0
LOCALHOST = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # the IPv4 address of an interface (netdevice(7))
_LONGEST_NAME = 15
# Below what systems give to outgoing connections.
_FIRST_PORT, _PORTS = 10000, 20000
_STORE_ERRORS = (RuntimeError, DistError)
Result = TypeVar("Result")


def connect(backend: str = "auto", device: str = "cpu", group: Any = None) -> Communicator:
    """Join the job this process was started in and return the communicator of all its ranks.

    Works under torchrun, the local launcher, mpiexec and srun. Where torch.distributed has a
    process group already, it is taken, as with ``group=torch.distributed.group.WORLD``. A process
    started by none of them, and without a group, is a job of one rank. A second call returns the
    same communicator, and refuses another device.

    From then on an exception that nothing catches ends all ranks with this rank's message, and a
    rank that comes to its end leaves the job by itself.

    Parameters
    ----------
    backend : {"auto", "shm", "gloo", "nccl", "mpi"}
        ``auto`` takes MPI under mpiexec, else NCCL if every rank has a GPU, else the memory of the
        machine that all ranks share, else gloo.
    device : {"cpu", "cuda", "auto"}
        Where tensors will live; ``communicator.device`` says which GPU is this rank's. ``auto``
        takes GPUs if every rank has its own.
    group : torch.distributed.ProcessGroup, DeviceMesh or mpi4py.MPI.Intracomm, optional
        Ranks that the calling program has made a group of: spgnn is its guest, starts nothing, and
        neither watches nor ends its ranks. Of a mesh of several axes, one: ``mesh["data"]``.
        Collective over the group; each call returns a communicator of its own.

    Raises
    ------
    InputError
        If a name is unknown, a package is not installed, the launcher's environment variables
        make no sense, there are too few GPUs, or the other ranks do not come.
    """
    if not isinstance(backend, str):
        raise InputError(
            f"connect(backend): must be a name, got {type(backend).__name__}: write "
            "connect(group=…)"
        )
    check_choice("--backend", backend, BACKENDS)
    check_choice("--device", device, DEVICES)
    comm = world()
    of_default = group is None and (comm is None or comm.size == 1)
    group = _existing_group() if of_default else group
    if group is not None:
        from spgnn.comm.guest import visit, visit_default

        if backend != "auto":
            raise InputError(f"backend={backend}: the group has its own; leave one of them out")
        return visit_default(group, device) if of_default else visit(group, device)
    if comm is None:
        comm = _connect(backend, device)
        join(comm)
    elif device not in ("cpu", "auto", comm.device.type):
        raise InputError(f"device {device}: these ranks are connected with {comm.device.type}")
    return comm


def _existing_group() -> Any:
    """All ranks of the program, if it has made a group of them, and no launcher of ours did."""
    if dist.is_initialized():
        place = find_place() if dist.get_world_size() == 1 else None
        if place is not None and place.size > 1:
            raise InputError(
                "torch.distributed has a group of one rank, but the launcher started "
                f"{place.size}: leave out init_process_group, or give it all ranks"
            )
        return dist.group.WORLD
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or find_place() is not None:
        return None
    return mpi.COMM_WORLD if mpi.COMM_WORLD.size > 1 else None


# torch's default group of the process that this one is a fork of.
inherited: list[ref[Any]] = []


def _note_inherited() -> None:
    if dist.is_initialized():
        inherited[:] = [ref(dist.group.WORLD)]


os.register_at_fork(after_in_child=_note_inherited)


def _connect(backend: str, device: str) -> Communicator:
    place = find_place()
    die_with_torchrun()
    # A rank has a connection to each of its peers: as many as the system lets it have.
    with suppress(ValueError, OSError):
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if place is None or place.size == 1:
        _, chosen = choose(backend, device, place, lambda share: share)
        return SoloCommunicator(Job(device=chosen))
    obstacle = mpi_lacks_room(place) if place.launcher == "mpi" else ""
    if backend == "auto" and obstacle:
        _note(place, f"does without MPI: {obstacle}")
    if backend == "mpi" or (backend == "auto" and not obstacle and _has_mpi(place)):
        if importlib.util.find_spec("mpi4py") is None:
            raise InputError("the MPI backend needs mpi4py: pip install 'spgnn[mpi]'")
        if obstacle:
            raise InputError(f"--backend mpi: {obstacle}; or use --backend gloo")
        from spgnn.comm.mpi import MPICommunicator

        return MPICommunicator.connect(place, backend, device)
    from spgnn.comm.torchdist import TorchCommunicator

    comm = TorchCommunicator.connect(place, backend, device)
    if backend not in ("auto", "shm") or comm.moves_cuda or place.local_size < place.size:
        if backend == "shm":
            raise InputError("--backend shm: the ranks are not all on one machine")
        return comm
    from spgnn.comm.shared import SharedCommunicator

    shared = SharedCommunicator.of(comm)
    if isinstance(shared, SharedCommunicator):
        return shared
    if backend == "shm":
        raise InputError(f"--backend shm: {shared}; use --backend gloo")
    _note(place, f"takes gloo: {shared}")
    return comm


def _note(place: Place, what: str) -> None:
    """Say what ``auto`` does, and why, where one would expect another backend."""
    if place.rank == 0:
        print(f"note: --backend auto {what}", file=sys.stderr, flush=True)


def _has_mpi(place: Place) -> bool:
    """True if mpi4py is of the MPI whose launcher has started this rank."""
    if place.launcher != "mpi" or importlib.util.find_spec("mpi4py") is None:
        return False
    from spgnn.comm.mpi import world_of

    with suppress(InputError):
        return world_of(place) is not None
    return False


@dataclass(frozen=True)
class Rendezvous:
    """A job's meeting place."""

    store: Any  # torch.distributed.Store
    host: str  # where rank 0 runs, in words or numbers that lead there from all ranks
    interface: str | None  # of the network through which other ranks reach this one, if known
    patience: float  # seconds until the launcher, if it does so, has ended a job that lost a rank


# The store of the local launcher that forked this process, if one did.
_launchers: list[Any] = []


def meet_in(file: int) -> None:
    """Meet the other ranks in a file without a name, which all of them inherit."""
    _launchers[:] = [_PromptStore(FileStore(f"/proc/self/fd/{file}"))]


class _PromptStore(Store):
    """A store in a file that is looked at more often than every 10 ms."""

    def __init__(self, file: FileStore) -> None:
        super().__init__()
        self._file, self._patience = file, timedelta(seconds=SETUP_SECONDS)

    def set(self, key: str, value: Any) -> None:
        self._file.set(key, value)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._file.get(key)

    def add(self, key: str, amount: int) -> int:
        return self._file.add(key, amount)

    def compare_set(self, key: str, expected: Any, value: Any) -> bytes:
        return self._file.compare_set(key, expected, value)

    def delete_key(self, key: str) -> bool:
        return self._file.delete_key(key)

    deleteKey = delete_key  # what torch calls it from C++

    def check(self, keys: list[str]) -> bool:
        return self._file.check(keys)

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        end = time.monotonic() + (timeout or self._patience).total_seconds()
        pause = 2e-4
        while not self._file.check(keys):
            if time.monotonic() > end:
                raise DistError(f"waited in vain for {', '.join(keys)}")
            time.sleep(pause)
            pause = min(1.5 * pause, 0.01)

    def set_timeout(self, timeout: timedelta) -> None:
        self._patience = timeout


def meet(place: Place, interface: str | None = None) -> Rendezvous:
    """Connect to the job's store, or on rank 0 make it, and wait until all ranks have come."""
    start = seconds("SPGNN_START_SECONDS", START_SECONDS)
    if _launchers:
        store, host = _launchers[0], LOCALHOST
    elif "MASTER_ADDR" in os.environ or place.launcher == "torch":
        host, port = _master()
        store, host = _meet_at(place, [host], port, start)
    elif place.launcher == "slurm":
        store, host = _meet_at(place, step_hosts(place), step_port(), start)
    elif importlib.util.find_spec("mpi4py") is not None and not mpi_lacks_room(place):
        store, host = _meet_by_mpi(place, start)
    elif place.local_size == place.size:
        # The process that started all of them, and that no other job has.
        store, host = _meet_at(place, [LOCALHOST], _FIRST_PORT + os.getppid() % _PORTS, start)
    else:
        raise InputError(
            "ranks on several nodes need mpi4py to find each other, or MASTER_ADDR and MASTER_PORT "
            "in the environment"
        )
    # Attempts after a restart by torchrun must not read what the one before has left.
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"spgnn/{attempt}", store)
    missing = interface is not None and not has_address(interface)
    if missing:
        _refuse(
            store,
            f"GLOO_SOCKET_IFNAME={interface} names no interface with an address on the "
            f"node of rank {place.rank} ({socket.gethostname()}); unset it or name another",
        )
    address = local_address(host)
    if address is not None and not _is_loopback(address):
        store.set("outside", address)
    _wait_for_all(store, place, start)
    if address is not None and _is_loopback(address) and store.check(["outside"]):
        # The name of this node leads to itself by way of the loopback, which others cannot use.
        address = local_address(store.get("outside").decode())
    if place.rank == 0:
        store.set("host", address or host)
    host = store.get("host").decode()
    store.set_timeout(timedelta(seconds=SETUP_SECONDS))
    supervised = "TORCHELASTIC_USE_AGENT_STORE" in os.environ or place.launcher == "mpi"
    # The local launcher gives ranks that are asked to end some seconds, in which others are lost.
    patience = END_SECONDS + 1.0 if _launchers else 3.0 if supervised else 0.5
    return Rendezvous(store, host, None if address is None else interface_of(address), patience)


def local_address(host: str) -> str | None:
    """The address of this machine from which packets to another one leave; none is sent."""
    with suppress(OSError):
        for family, kind, _, _, where in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, kind) as probe, suppress(OSError):
                probe.connect(where)
                return str(probe.getsockname()[0])
    return None


def addresses() -> list[tuple[str, str]]:
    """Network interfaces of this machine, each with its first IPv4 and all its IPv6 addresses."""
    listed = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:_LONGEST_NAME])
            with suppress(OSError):
                number = fcntl.ioctl(line, _SIOCGIFADDR, request)[20:24]
                listed.append((name, socket.inet_ntoa(number)))
    with suppress(OSError):
        for entry in Path("/proc/net/if_inet6").read_text().splitlines():
            digits, *_, name = entry.split()
            listed.append((name, str(ipaddress.IPv6Address(int(digits, 16)))))
    return listed


def interface_of(address: str) -> str | None:
    """The network interface that has an address, or is the loopback."""
    numeric = LOCALHOST if _is_loopback(address) else address.partition("%")[0]
    return next((name for name, one in addresses() if one == numeric), None)


def has_address(interfaces: str) -> bool:
    """True if each of some network interfaces, with commas between them, has an address."""
    return set(interfaces.split(",")) <= {name for name, _ in addresses()}


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def least(store: Any, size: int, name: str) -> Callable[[int], int]:
    """A collective over the ranks at a store: the least of their numbers in {0, 1, 2}."""

    def agree(number: int) -> int:
        for level in range(number + 1, 3):
            store.set(f"{name}/below {level}", "1")
        if store.add(f"{name}/came", 1) == size:
            store.set(f"{name}/all", "1")
        store.wait([f"{name}/all"])
        return sum(not store.check([f"{name}/below {level}"]) for level in (1, 2))

    return agree


def expand_nodes(nodes: str) -> list[str]:
    """Names of the nodes of SLURM's ``rack[1-2]node[03,07-9],login``."""
    names = []
    for pattern in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", nodes):
        choices = []
        for number, piece in enumerate(re.split(r"\[(.*?)\]", pattern)):
            ranges = [one.partition("-") for one in piece.split(",")] if number % 2 else []
            choices.append(
                [
                    f"{value:0{len(first)}}"
                    for first, _, last in ranges
                    for value in range(int(first), int(last or first) + 1)
                ]
                or [piece]
            )
        names += ["".join(choice) for choice in product(*choices)]
    return names


def step_hosts(place: Place) -> list[str]:
    """Nodes of this step of SLURM where rank 0 may be; most often there is one."""
    nodes = os.environ.get("SLURM_STEP_NODELIST") or os.environ.get("SLURM_JOB_NODELIST", "")
    try:
        names = expand_nodes(nodes)
    except ValueError:
        names = []
    if not names:
        raise InputError(f"SLURM_STEP_NODELIST={nodes} in the environment: should name the nodes")
    if place.rank == 0 and os.environ.get("SLURMD_NODENAME") in names:
        return [os.environ["SLURMD_NODENAME"]]
    mixed = "SLURM_HET_SIZE" in os.environ or "SLURM_PACK_SIZE" in os.environ
    return names if mixed or os.environ.get("SLURM_DISTRIBUTION") == "arbitrary" else names[:1]


def step_port() -> int:
    """A port for this step of this SLURM job; those of two jobs or steps on a node differ."""
    names = ("SLURM_JOB_ID", "SLURM_STEP_ID")
    step = ".".join(os.environ.get(name, "0") for name in names)
    return _FIRST_PORT + zlib.crc32(step.encode()) % _PORTS


def _master() -> tuple[str, int]:
    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 2**16:
        raise InputError(
            f"MASTER_ADDR={host or ''} and MASTER_PORT={port} in the environment must say where "
            "rank 0 listens"
        )
    return host, int(port)


def _meet_at(place: Place, hosts: list[str], port: int, start: float) -> tuple[Any, str]:
    hosts, agent = [_resolvable(host, place) for host in hosts], _has_agent()
    # The launcher's store is there before any rank is, or never again.
    start = min(start, AGENT_SECONDS) if agent else start
    return _store(place, hosts, port, place.rank == 0 and not agent, start)


def _has_agent() -> bool:
    """True if torchrun keeps the store."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _resolvable(host: str, place: Place) -> str:
    """A name as it is, or the address that SLURM has for it; new machines' may need some time."""
    end, reason = time.monotonic() + NAME_SECONDS, ""
    while (left := end - time.monotonic()) > 0:
        try:
            _within(left, lambda: socket.getaddrinfo(host, None))
            return host
        except TimeoutError:
            reason = "no name server answers"
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "no name of a machine"
            if place.launcher == "slurm" and (address := _node_address(host)):
                return address
            time.sleep(0.2)
    source = "MASTER_ADDR" if "MASTER_ADDR" in os.environ else "SLURM_STEP_NODELIST"
    remedy = "set MASTER_ADDR to its name or number"
    if "TORCHELASTIC_RUN_ID" in os.environ:
        remedy = "there, give torchrun the address as --local-addr"
    raise StartError(
        f"{host}, where rank 0 should be according to {source}, leads to no address "
        f"({reason}); {remedy}"
    )


def _node_address(node: str) -> str:
    """The address at which SLURM's daemons reach a node (``NodeAddr``); empty if unknown."""
    command = ["scontrol", "--oneliner", "show", "node", node]
    with suppress(OSError, subprocess.TimeoutExpired):
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
        match = re.search(r"\bNodeAddr=(\S+)", answer.stdout)
        return match[1] if match and match[1] != node else ""
    return ""


def _within(seconds: float, work: Callable[[], Result]) -> Result:
    """Do something on a thread, for C++ and name servers neither notice Ctrl-C nor give up."""
    done: list[Result] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            done.append(work())
        except (OSError, UnicodeError, *_STORE_ERRORS) as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if done:
        return done[0]
    raise failed[0] if failed else TimeoutError


def _meet_by_mpi(place: Place, start: float) -> tuple[Any, str]:
    """Rank 0 takes any free port, and tells the others through MPI."""
    from spgnn.comm.mpi import world_of

    world = world_of(place)
    if place.rank != 0:
        hosts, port = world.bcast(None)
        return _store(place, hosts, port, False, start)
    hosts = [LOCALHOST]
    if place.local_size < place.size:
        # Other nodes may not know this one's name, which here may lead to the loopback.
        others = [address for _, address in addresses() if not _is_loopback(address)]
        hosts = [socket.gethostname(), *(one for one in others if not one.startswith("fe80"))]
    store, host = _store(place, hosts, 0, True, start)
    world.bcast((hosts, store.port))
    return store, host


def _store(
    place: Place, hosts: list[str], port: int, serves: bool, start: float
) -> tuple[Any, str]:
    """The store at a port of one of some hosts, and which: on rank 0 a new one if it `serves`."""
    if serves:
        with _listen(port, 2 * place.size) as listener:
            port = listener.getsockname()[1]
            patience = min(start, REACH_SECONDS) / len(hosts)
            host = next((one for one in hosts if _leads_to(listener, one, patience)), None)
            if host is None:
                raise StartError(
                    f"rank 0 listens on port {port}, but {hosts[0]}:{port} leads elsewhere or "
                    "nowhere; set MASTER_ADDR to the machine of rank 0"
                )
            return _connected(host, port, start, listener.detach()), host
    patience = min(start, REACH_SECONDS) if _has_agent() else start
    end = time.monotonic() + patience
    noted = "" if _has_agent() or place.local_rank else f"rank {place.rank} waits for rank 0 at"
    try:
        line, host = _reach(hosts, port, end, noted)
        line.close()
        return _connected(host, port, max(end - time.monotonic(), 0.1) + start - patience), host
    except (OSError, *_STORE_ERRORS):
        raise StartError(
            f"rank {place.rank} did not reach rank 0's store at {', '.join(hosts)}:{port} within "
            f"{patience:g} s"
        ) from None


def _connected(host: str, port: int, patience: float, listener: int | None = None) -> TCPStore:
    """A client of the store at a port, and the store itself if there is a socket for it."""
    # A longer time-out than anybody waits: the store's own complaint is a page long.
    span = timedelta(seconds=patience + 60.0)
    hosts = listener is not None
    return _within(
        patience,
        lambda: TCPStore(
            host, port, None, hosts, span, wait_for_workers=False, master_listen_fd=listener
        ),
    )


def _listen(port: int, backlog: int) -> socket.socket:
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    try:
        return socket.create_server(("", port), family=family, backlog=backlog, dualstack_ipv6=dual)
    except OSError as error:
        raise StartError(
            f"rank 0 cannot listen on port {port}: is another job there? "
            f"Set MASTER_PORT ({error.strerror})"
        ) from None


def _leads_to(listener: socket.socket, host: str, patience: float) -> bool:
    """True if a connection to this port of that host comes out at a socket of ours."""
    end = time.monotonic() + patience
    with suppress(OSError), _reach([host], listener.getsockname()[1], end)[0] as probe:
        while (left := end - time.monotonic()) > 0:
            listener.settimeout(left)
            # Ranks that came early may be first; they try again.
            line, peer = listener.accept()
            line.close()
            if peer[1] == probe.getsockname()[1]:
                listener.setblocking(True)
                return True
    return False


def _reach(hosts: list[str], port: int, end: float, note: str = "") -> tuple[socket.socket, str]:
    """Connect as soon as somebody listens on one of the hosts, and say which."""
    noted_at = time.monotonic() + NOTE_SECONDS
    while True:
        for host in hosts:
            left = max(end - time.monotonic(), 0.1)
            try:
                return socket.create_connection((host, port), min(left, REACH_SECONDS)), host
            except OSError as error:
                failure = error
        if time.monotonic() > end:
            raise failure
        if note and time.monotonic() > noted_at:
            _say_note(f"{note} {', '.join(hosts)}:{port} ({failure.strerror or failure})", end)
            note = ""
        time.sleep(0.1)


def _say_note(what: str, end: float) -> None:
    left = max(end - time.monotonic(), 0.0)
    print(f"note: {what}, for {left:.0f} s more", file=sys.stderr, flush=True)


def _refuse(store: Any, why: str) -> None:
    """Tell all ranks why they do not start, those too that wait for others to come."""
    store.compare_set("refused", "", why)
    store.set("all came", "1")


def _wait_for_all(store: Any, place: Place, start: float) -> None:
    try:
        size = store.compare_set("size", "", str(place.size)).decode()
        if size != str(place.size):
            _refuse(store, f"rank {place.rank} was told of {place.size} ranks, others of {size}")
        if store.add(f"came/{place.rank}", 1) > 1:
            _refuse(store, f"two processes were told to be rank {place.rank} of {place.size}")
        if store.add("came", 1) == place.size:
            store.set("all came", "1")
        end, pause = time.monotonic() + start, 0.005
        noted_at = time.monotonic() + NOTE_SECONDS if place.rank == 0 else end
        while not store.check(["all came"]):
            if time.monotonic() > end:
                raise StartError(
                    f"rank {place.rank} waited {start:g} s for all {place.size} ranks to start"
                )
            if time.monotonic() > noted_at:
                ranks = range(place.size)
                missing = [rank for rank in ranks if not store.check([f"came/{rank}"])]
                _say_note(f"rank 0 waits for {shown_ranks(missing or ranks)} to start", end)
                noted_at = end
            time.sleep(pause)
            pause = min(1.5 * pause, 0.25)
        if not store.check(["refused"]):
            return
        why = store.get("refused").decode()
        store.add("read", 1)
        # Rank 0 speaks. It may keep the store, and a launcher ends all when one of them ends.
        end = time.monotonic() + LINGER_SECONDS / (2 if place.rank == 0 else 1)
        while time.monotonic() < end:
            time.sleep(0.02)
            if place.rank == 0 and store.add("read", 0) >= place.size:
                break
    except _STORE_ERRORS:
        raise StartError(f"rank {place.rank} lost contact with rank 0 at the start") from None
    raise InputError(why)
