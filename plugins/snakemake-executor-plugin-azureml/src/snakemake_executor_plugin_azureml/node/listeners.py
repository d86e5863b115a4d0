"""The sockets on which the leader listens."""

import ipaddress
import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from snakemake_executor_plugin_azureml.node.errors import NodeError
from snakemake_executor_plugin_azureml.node.place import Place
from snakemake_executor_plugin_azureml.node.process import log

_LONGEST_UNIX_PATH = 100


def short_folder() -> Path:
    """Make a folder for a socket, whose path may not be long."""
    folder = tempfile.gettempdir()
    if len(folder) > _LONGEST_UNIX_PATH - 40:
        folder = "/tmp"
    return Path(tempfile.mkdtemp(prefix="snakemake-azureml-", dir=folder))


def listen_locally(path: str) -> socket.socket:
    """Listen for the launches of this node."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen()
    return listener


def listen(place: Place) -> socket.socket:
    """Listen for followers, on no other address than the one at which they look for the leader.

    Raises:
        NodeError: all ports that follow from the job are taken.
    """
    address = _own_address(place.addresses)
    for port in place.ports:
        try:
            return _server(address, port)
        except OSError as error:
            log(
                f"port {port} cannot be used on {socket.gethostname()}: "
                f"{os.strerror(error.errno or 0)}; trying the next port"
            )
    raise NodeError(
        f"ports {', '.join(map(str, place.ports))} are all taken on {socket.gethostname()}; "
        "end the programs that use them (`ss -ltnp`)"
    )


def _server(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, port), family=family, backlog=1024)


def _own_address(addresses: tuple[str, ...]) -> str:
    """Return the first address that is this node's own.

    Names may mean something else on another node; with names alone it is all interfaces (empty).
    """
    for address in addresses:
        with suppress(ValueError, OSError):
            version = ipaddress.ip_address(address).version
            with socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6) as probe:
                probe.bind((address, 0))  # succeeds for this node's own addresses alone
                return address
    return ""
