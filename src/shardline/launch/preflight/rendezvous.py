"""The store through which ranks join before a training."""

import os
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta

import psutil
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from shardline.core.errors import LaunchError
from shardline.core.world import World
from shardline.launch.stores import NarrowStore, narrow_stores

# First bytes of the store's protocol in torch 2.13 (TCPStoreBackend.hpp): VALIDATE with its magic
# number, then PING with a number that is echoed. torch's own client waits forever if another
# program uses the port.
_PING = struct.Struct("=BIBI").pack(0, 0x3C85F7CE, 13, 0x53484152)
_PONG = struct.pack("=I", 0x53484152)
_PING_TIMEOUT_S = 5.0
_DECIDE = 0.9


class Rendezvous:
    """The store through which all ranks of a world join, at its master address and port.

    Rank 0 opens the store, unless torchrun's agent already has. The other ranks
    return only after rank 0 has closed the store, so that the next program to
    open this port finds a new store.
    """

    def __init__(self, world: World, deadline: float) -> None:
        """Open the store, or connect to it.

        Args:
            deadline: time.monotonic() at which to give up.

        Raises:
            LaunchError: no store answers at the address.
        """
        narrow_stores()  # also for the store of the process group that follows
        self._world, self.deadline = world, deadline
        # before the deadline, so that all ranks have read the decision by then
        self.decide_at = deadline - (1 - _DECIDE) * (deadline - time.monotonic())
        self._is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        self.others = world.world_size - 1  # ranks that the host waits for at the end
        self._line: socket.socket | None = None
        store = self._host() if world.rank == 0 and not self._is_agents else None
        self.is_host = store is not None
        if store is None:
            self._line = self._wait_for_store()
            store = self._connect(is_master=False)
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store: Store = PrefixStore(f"shardline/preflight/{attempt}", store)

    @property
    def is_coordinator(self) -> bool:
        """Whether this rank decides which ranks are members."""
        return self.is_host or (self._is_agents and self._world.rank == 0)

    def _host(self) -> NarrowStore | None:
        """Open the store; return None if another rank 0 has opened it."""
        with suppress(OSError):
            _ping(self._place, timeout_s=1.0).close()
            return None
        try:
            return self._connect(is_master=True)
        except dist.DistNetworkError as error:
            if "EADDRINUSE" in str(error):  # a program that did not answer the ping
                return None
            raise self._unreachable(str(error).partition("\n")[0]) from None

    def _connect(self, *, is_master: bool) -> NarrowStore:
        return NarrowStore(
            *self._place,
            is_master=is_master,
            wait_for_workers=False,
            timeout=timedelta(seconds=max(1.0, self.deadline - time.monotonic())),
        )

    @property
    def _place(self) -> tuple[str, int]:
        return self._world.master_addr, self._world.master_port

    def _wait_for_store(self) -> socket.socket:
        """Return an open connection to the store; rank 0 may start late, so retry until `decide_at`."""
        problem, looks = "no answer", pauses()
        while (left := self.decide_at - time.monotonic()) > 0:
            try:
                return _ping(self._place, timeout_s=min(left, _PING_TIMEOUT_S))
            except OSError as error:
                problem = error.strerror or str(error)
            time.sleep(min(next(looks), max(0.0, left)))
        raise self._unreachable(problem)

    def _unreachable(self, problem: str) -> LaunchError:
        address, port = self._place
        place, host = f"MASTER_ADDR={address} MASTER_PORT={port}", socket.gethostname()
        if self._world.rank == 0 and not self._is_agents:
            return LaunchError(
                f"rank 0 on host {host} cannot open the ranks' store at {place}: {problem}; check that "
                "MASTER_ADDR is a name of this host, and give the job a free MASTER_PORT"
            )
        mine = local_address(address)
        interface = f"interface {interface_of(mine)} ({mine})" if mine else "no interface"
        return LaunchError(
            f"rank {self._world.rank} on host {host} cannot reach rank 0 ({place_of(self._world, 0)}) at "
            f"{place} over {interface}: {problem}; check whether rank 0 has exited, correct "
            "MASTER_ADDR, open the port between the nodes, or set the right interface in "
            "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME"
        )

    def agree(self, key: str, value: str) -> str:
        """Set a value unless the key has one; return the key's value."""
        return str(self.store.compare_set(key, "", value).decode())

    def close(self, *, timeout_s: float, is_failed: bool = False) -> None:
        """Leave the store; the host closes it after the other ranks have left, and they wait for that.

        Args:
            timeout_s: longest wait, seconds.
            is_failed: whether this rank failed. Then only the host waits, until the
                other ranks have read the error.
        """
        store = self.store
        del self.store  # the store closes with its last reference
        limit = time.monotonic() + timeout_s
        with suppress(dist.DistError):  # the host may be gone
            # separate counts: a rank of another job that connected by mistake leaves as failed
            key, looks = "left in failure" if is_failed else "left", pauses()
            left = store.add(key, 0 if self.is_host else 1)
            while self.is_host and left < self.others and time.monotonic() < limit:
                time.sleep(next(looks))
                left = store.add(key, 0)
        del store
        if self._line is not None:
            with self._line, suppress(OSError):
                if not is_failed and not self._is_agents:
                    self._line.settimeout(timeout_s)
                    self._line.recv(1)  # the connection closes with the store


def _ping(place: tuple[str, int], timeout_s: float) -> socket.socket:
    line = socket.create_connection(place, timeout=timeout_s)
    try:
        line.sendall(_PING)
        answer = line.recv(len(_PONG), socket.MSG_WAITALL)
    except OSError:
        answer = b""
    if answer != _PONG:
        line.close()
        raise OSError("another program uses this port, or a firewall drops the traffic")
    return line


def pauses() -> Iterator[float]:
    """Yield seconds to wait between polls, increasing from 0.01 to 0.2."""
    pause = 0.01
    while True:
        yield pause
        pause = min(pause * 1.3, 0.2)


def local_address(peer: str) -> str:
    """Return this machine's address on the route to a peer; empty without a route."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as way:
            way.connect(address)  # a datagram socket chooses a route and sends nothing
            return str(way.getsockname()[0])
    except OSError:
        return ""


def gloo_address() -> str:
    """Return the address on which gloo listens if GLOO_SOCKET_IFNAME is not set.

    gloo uses the first address of this host's name that belongs to this machine,
    or else the loopback address.
    """
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(
            socket.gethostname(), None, type=socket.SOCK_STREAM
        ):
            with suppress(OSError), socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return str(address[0])
    return "127.0.0.1"


def interface_of(address: str) -> str:
    """Return the network interface that has an address; empty if none has it."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(entry.address.partition("%")[0] == address for entry in addresses):
            return name
    return ""


def place_of(world: World, rank: int, host: str = "") -> str:
    """Return the node of a rank and, if known, its host, as text."""
    node = rank // world.local_world_size
    host = host or (world.hosts[node] if node < len(world.hosts) else "")
    return f"node {node}, host {host}" if host else f"node {node}, unknown host"
