"""TCP stores of torch that listen on one address only, and torchrun's agent with such stores.

torch's own stores listen on all interfaces and accept commands from every client.

`python -m shardline.launch.stores ARGUMENTS` is torchrun with the arguments.
"""

import errno
import ipaddress
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from shardline.launch.locks import DESCRIPTORS


class NarrowStore(dist.TCPStore):  # type: ignore[name-defined, misc]  # torch's stubs lack it
    """A TCPStore whose master listens on its own address only, if the address is a number.

    A host name may mean other addresses on other nodes, so such a store listens on all interfaces.
    """

    def __init__(
        self, host_name: str, port: int, world_size: int | None = None, is_master: bool = False,
        *args: Any, **options: Any,
    ) -> None:  # fmt: skip
        try:
            door = _listen(host_name, port) if is_master else None
        except OSError as error:
            # torch would try all interfaces; with multi_tenant it first looks for a store of its own
            if error.errno == errno.EADDRINUSE and not options.get("multi_tenant"):
                raise dist.DistNetworkError(
                    f"EADDRINUSE: {host_name}:{port}: {error.strerror}"
                ) from None
            door = None  # also for an address that is translated (NAT) between the nodes
        if door is not None:
            # the store closes the descriptor
            options |= {"master_listen_fd": door.detach()}
        super().__init__(host_name, port, world_size, is_master, *args, **options)


def _listen(host: str, port: int) -> socket.socket | None:
    """Listen on the address of a store; return None for a host name."""
    address = "127.0.0.1" if host.split(".")[0] == "localhost" else host
    try:
        version = ipaddress.ip_address(address).version
    except ValueError:
        return None
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    return socket.create_server((address, port), family=family, backlog=4096)


def narrow_stores() -> None:
    """Make torch use `NarrowStore` in this process."""
    for module in (dist, sys.modules[rendezvous.__module__]):
        module.__dict__["TCPStore"] = NarrowStore


def share_locks() -> None:
    """Make torchrun's ranks inherit the locks on their devices, so that a device is locked while a rank uses it."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    given = [int(one) for one in os.environ.get(DESCRIPTORS, "").split(",") if _is_open(one)]
    names = vars(subprocess_handler)
    names["Popen"] = partial(names["Popen"], pass_fds=given)


def _is_open(descriptor: str) -> bool:
    """Return whether this process has a descriptor; in a container it may not."""
    with suppress(OSError, ValueError):
        os.fstat(int(descriptor))
        return True
    return False


def main() -> None:
    """Run torchrun's agent."""
    narrow_stores()
    share_locks()
    from torch.distributed.run import main as run  # imports the stores by name

    # torchrun never removes its folder of logs; a later --log-dir of the user's takes precedence
    with TemporaryDirectory(prefix="torchelastic_") as folder:
        sys.argv.insert(1, f"--log-dir={folder}")
        run()


if __name__ == "__main__":
    main()
