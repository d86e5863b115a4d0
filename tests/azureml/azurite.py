"""Azurite, the emulator of Azure Blob storage that Microsoft publishes as an npm package."""

import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from tests.support.machines import Machine, MachineError, in_network_of, kill_group

HERE = Path(__file__).parent
INSTALL = f"npm ci --prefix {HERE.relative_to(HERE.parents[1])}"
# A folder with `node_modules`, for those who keep it elsewhere.
FOLDER_VARIABLE = "AZURITE_FOLDER"
PORT = 10000
ACCOUNT = "devstoreaccount1"
# The account key that Azurite's documentation gives to everybody.
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
START_S = 180.0


def find_azurite() -> Path | None:
    """Return Azurite's program for blobs; None if it is not installed."""
    folder = Path(os.environ.get(FOLDER_VARIABLE, HERE))
    program = folder / "node_modules/.bin/azurite-blob"
    return program if program.exists() else None


class Azurite:
    """Blob storage on a machine; it ends with the block."""

    def __init__(self, machine: Machine, address: str, folder: Path) -> None:
        """Prepare.

        Args:
            machine: Where it runs.
            address: The machine's address on which it listens.
            folder: Empty or missing folder for its data and log.
        """
        self._machine = machine
        self._address = address
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    @property
    def connection_string(self) -> str:
        """What clients need to reach it."""
        endpoint = f"http://{self._address}:{PORT}/{ACCOUNT}"
        return (
            f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={endpoint};"
        )

    def container_client(self, name: str) -> Any:
        """Return azure-storage-blob's client of a container; use it in the machine's network."""
        from azure.storage.blob import ContainerClient

        # No proxy: the container is on the machine itself.
        return ContainerClient.from_connection_string(
            self.connection_string, name, use_env_settings=False
        )

    def make_container(self, name: str) -> None:
        """Create a blob container."""
        in_network_of(self._machine, lambda: self.container_client(name).create_container())

    def read(self, container: str, name: str) -> bytes:
        """Return what a blob holds."""

        def ask() -> bytes:
            content: bytes = self.container_client(container).download_blob(name).readall()
            return content

        return in_network_of(self._machine, ask)

    def blobs(self, container: str) -> dict[str, int]:
        """Return name -> size in bytes of every blob of a container."""

        def ask() -> dict[str, int]:
            return {blob.name: blob.size for blob in self.container_client(container).list_blobs()}

        return in_network_of(self._machine, ask)

    def __enter__(self) -> Self:
        """Start it and wait until it answers.

        Raises:
            MachineError: it is not installed, or did not start; the message says what to do.
        """
        program = find_azurite()
        if program is None:
            raise MachineError(f"azurite-blob not found; run: {INSTALL}")
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "azurite.log"
        with log.open("w") as output:
            self._process = self._machine.popen(
                str(program), "--blobHost", self._address, "--blobPort", str(PORT),
                "--location", str(self._folder / "data"), "--silent", "--skipApiVersionCheck",
                "--disableTelemetry", stdout=output,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end()
                raise MachineError(f"azurite-blob did not start; its log: {log.read_text()}")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _answers(self) -> bool:
        def connect() -> bool:
            try:
                socket.create_connection((self._address, PORT), timeout=1).close()
            except OSError:
                time.sleep(0.05)  # a port gives no sign before it is open
                return False
            return True

        return in_network_of(self._machine, connect)

    def _end(self) -> None:
        if self._process is not None:
            kill_group(self._process, signal.SIGKILL)  # what it keeps ends with the test
            self._process.wait()
