"""The emulator's place in the network: one port on the login machine, a proxy and a TLS server.

A client is told to use an HTTP proxy; it then asks the proxy for a tunnel to, for example,
management.azure.com. No tunnel is made: on the very connection that asked, TLS begins and the
application answers. Names other than Azure's are refused, so nothing leaves the computer.
"""

import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

from werkzeug.serving import ThreadedWSGIServer, WSGIRequestHandler

from tests.support.machines import Machine, in_network_of

HEAD_LIMIT_BYTES = 16384


class Handler(WSGIRequestHandler):
    """Keeps connections open between requests, as the service does; writes no log lines."""

    protocol_version = "HTTP/1.1"

    def log_request(self, *_: Any) -> None:
        """Leave logging to the application, which keeps whole requests."""

    def log_error(self, *_: Any) -> None:
        """Say nothing when a client goes away in the middle."""


class ProxyServer(ThreadedWSGIServer):
    """A proxy that is itself the server at the other end of each of its tunnels."""

    daemon_threads = True
    block_on_close = False

    def __init__(
        self,
        machine: Machine,
        address: str,
        application: Any,
        tls: ssl.SSLContext,
        serves: Callable[[str], bool],
    ) -> None:
        """Listen on a free port of an address of the machine.

        Args:
            machine: The machine whose network has the address.
            address: Address to listen on.
            application: A WSGI application.
            tls: The server's side of TLS.
            serves: Whether the application speaks for a host name.
        """
        listener = in_network_of(machine, lambda: socket.create_server((address, 0), backlog=128))
        self.tls = tls
        self.serves = serves
        self.url = f"http://{address}:{listener.getsockname()[1]}"  # what clients set as proxy
        super().__init__(address, 0, application, handler=Handler, fd=listener.fileno())
        listener.close()  # werkzeug works on a copy
        self._thread = threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Read the request for a tunnel, grant it, and answer what comes through."""
        try:
            host = self._asked_host(request)
            if not self.serves(host):
                request.sendall(b"HTTP/1.1 403 Only hosts of Azure\r\nContent-Length: 0\r\n\r\n")
                return
            request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with self.tls.wrap_socket(request, server_side=True) as secured:
                super().finish_request(secured, client_address)
        except OSError:
            return  # the client went away, or does not trust the certificate

    def stop(self) -> None:
        """Answer nothing any more."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    @staticmethod
    def _asked_host(request: socket.socket) -> str:
        # One byte at a time, so as not to read into the TLS that follows.
        head = b""
        while not head.endswith(b"\r\n\r\n") and len(head) < HEAD_LIMIT_BYTES:
            byte = request.recv(1)
            if not byte:
                raise ConnectionResetError
            head += byte
        words = head.split(None, 2)
        return words[1].decode("ascii", "replace").rpartition(":")[0] if len(words) == 3 else ""
