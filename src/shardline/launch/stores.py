"""TCP stores of torch that listen at the narrowest address, and torchrun's agent with them.

torch's own listen on all interfaces whatever their address is, and obey everybody who connects.

`python -m shardline.launch.stores ARGUMENTS` is torchrun with the arguments.
"""

import errno
import ipaddress
import socket
import sys
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous


class NarrowStore(dist.TCPStore):  # type: ignore[name-defined, misc]  # torch's stubs lack it
    """A TCPStore that, where it is the master, listens at its own address alone if that is a number.

    A name of a node may mean another address on other nodes: a store of that name listens on all interfaces.
    """

    def __init__(
        self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
        *args: Any, **options: Any,
    ) -> None:  # fmt: skip
        try:
            door = _listen(host_name, port) if is_master else None
        except OSError as error:
            # torch would try all interfaces; with multi_tenant it first looks for its own store
            if error.errno == errno.EADDRINUSE and not options.get("multi_tenant"):
                raise dist.DistNetworkError(
                    f"EADDRINUSE: {host_name}:{port}: {error.strerror}"
                ) from None
            door = None  # also of an address that is translated on the way here
        if door is not None:
            # the store closes the descriptor
            options |= {"master_listen_fd": door.detach()}
        super().__init__(host_name, port, world_size, is_master, *args, **options)


def _listen(host: str, port: int) -> socket.socket | None:
    """Listen at the address of a store; None: it is a name."""
    address = "127.0.0.1" if host.split(".")[0] == "localhost" else host
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return None
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return socket.create_server((address, port), family=family, backlog=4096)


def narrow_stores() -> None:
    """Have torch make its stores so, from now on, in this process."""
    for module in (dist, sys.modules[rendezvous.__module__]):
        module.__dict__["TCPStore"] = NarrowStore


def main() -> None:
    """Be torchrun's agent."""
    narrow_stores()
    from torch.distributed.run import main as run  # imports the stores by name

    run()


if __name__ == "__main__":
    main()
