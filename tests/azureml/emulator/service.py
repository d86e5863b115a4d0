"""The emulated service: its machines, its web application and what tests ask of it."""

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tests.azureml.azurite import ACCOUNT as STORAGE_ACCOUNT
from tests.azureml.azurite import Azurite, find_azurite
from tests.azureml.emulator import constants
from tests.azureml.emulator.certificates import make_server_context
from tests.azureml.emulator.faults import Fault, Faults
from tests.azureml.emulator.jobs import Job
from tests.azureml.emulator.network import ProxyServer
from tests.azureml.emulator.node import Image, Node
from tests.azureml.emulator.scheduler import Scheduler, Ways
from tests.azureml.emulator.web import Request, make_application
from tests.azureml.emulator.workspace import Workspace
from tests.support.machines import Machine, require_programs

REPOSITORY = Path(__file__).parents[3]
# What a checkout holds of its user's own work.
OWN_WORK = ("results", "store", "logs", ".snakemake")
INSTALL = "apt-get install -y --no-install-recommends iproute2 util-linux"
PROGRAMS = ["unshare", "nsenter", "ip", "mount"]
# The addresses are those of the recorded environments in tests/data/environments.
LOGIN_ADDRESS = "10.0.0.254"
FIRST_NODE = 4
MOST_NODES = 200


class AzureMLEmulator:
    """A context manager: one workspace with two computes, and a machine to submit from.

    Attributes:
        login: The submitting machine.
        environment: What a client there must have set.
        ways: How jobs are run; may be changed at any time.
        requests: Every request so far, in the order in which they were answered.
        node_environment: Variables of every process of every job, as a managed identity is
            there on a node of Azure's; empty it to see what a job lacks without.
        blob_storage: Azurite; None where it is not installed or not wanted.
    """

    subscription = constants.SUBSCRIPTION
    resource_group = constants.RESOURCE_GROUP
    workspace = constants.WORKSPACE
    compute = constants.COMPUTE
    low_priority_compute = constants.LOW_PRIORITY_COMPUTE
    default_datastore = constants.DATASTORE
    credential = "tests.azureml.emulator.credential:make_credential"
    credential_variable = "SNAKEMAKE_AZUREML_CREDENTIAL"

    login: Machine

    def __init__(
        self,
        folder: Path,
        nodes: int = 4,
        python: str = sys.executable,
        *,
        azurite: bool | None = None,
        hidden: Sequence[Path] = (),
        visible: Sequence[Path] = (),
    ) -> None:
        """Prepare; nothing runs before the block is entered.

        Args:
            folder: Empty folder for all that the service keeps.
            nodes: Count of nodes of each compute.
            python: The interpreter that `python` is on a node.
            azurite: Whether to run blob storage; None: where it is installed.
            hidden: Further folders that are empty on a node, such as the tests' own. The
                folder for temporary files always is.
            visible: Further folders that a node sees though they lie below a hidden one.
        """
        self.folder = folder.resolve()
        self.ways = Ways(nodes)
        self.requests: list[Request] = []
        self.node_environment: dict[str, str] = {}
        self.blob_storage: Azurite | None = None
        self._azurite = azurite
        self._faults = Faults()
        self._ending = ExitStack()
        self._python = Path(python)
        prefixes = [self._python.parents[1], self._python.resolve().parents[1]]
        own_work = [REPOSITORY / name for name in OWN_WORK]
        temporary = Path(tempfile.gettempdir()).resolve()
        self._hidden = (self.folder, temporary, Path("/mnt"), *own_work, *hidden)
        self._visible = (REPOSITORY, *prefixes, *visible)
        self._scheduler = Scheduler(
            ways=self.ways,
            start_node=self._start_node,
            address_of=_address_of,
            faults=self._faults,
        )
        self._server: ProxyServer | None = None
        self.state = Workspace(self.folder, self._scheduler)

    def __enter__(self) -> Self:
        """Start the submitting machine and the service on it.

        Raises:
            MachineError: a program is missing, or a machine did not start.
        """
        require_programs(PROGRAMS, install=INSTALL)
        with ExitStack() as ending:
            names = [f"{LOGIN_ADDRESS} login", "127.0.0.1 localhost"]
            names += [f"{_address_of(place)} {_host(place)}" for place in range(MOST_NODES)]
            hosts = self.folder / "hosts"
            hosts.write_text("\n".join(names) + "\n")
            (self.folder / "home").mkdir()
            (self.folder / "tls").mkdir()
            self.login = ending.enter_context(Machine("login", {hosts: "/etc/hosts"}))
            for words in (
                ("link", "add", "switch0", "type", "bridge"),
                ("address", "add", f"{LOGIN_ADDRESS}/24", "dev", "switch0"),
                ("link", "set", "switch0", "up"),
            ):
                self.login.run("ip", *words)
            tls = make_server_context(self.folder / "tls", constants.CERTIFICATE_HOSTS)
            application = make_application(self.state, self._faults, self.requests)
            self._server = ProxyServer(
                self.login, LOGIN_ADDRESS, application, tls, constants.is_served
            )
            ending.callback(self._server.stop)
            ending.callback(self._scheduler.stop)
            if self._azurite or (self._azurite is None and find_azurite()):
                storage = Azurite(self.login, LOGIN_ADDRESS, self.folder / "azurite")
                self.blob_storage = ending.enter_context(storage)
                self.node_environment["AZURITE_CONNECTION_STRING"] = storage.connection_string
            self._ending = ending.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.close()

    # For clients

    @property
    def environment(self) -> dict[str, str]:
        """What a client on the submitting machine must have set."""
        storage = self.blob_storage
        blobs = {
            "AZURITE_CONNECTION_STRING": storage.connection_string,
            "SNAKEMAKE_STORAGE_AZURE_ACCOUNT_NAME": STORAGE_ACCOUNT,
        } if storage else {}  # fmt: skip
        certificate = str(self.folder / "tls/ca.pem")
        return {
            **self._network,
            "SSL_CERT_FILE": certificate,
            "REQUESTS_CA_BUNDLE": certificate,
            "CURL_CA_BUNDLE": certificate,
            "HOME": str(self.folder / "home"),
            "PYTHONPATH": str(REPOSITORY),
            "PATH": f"{self._python.parent}:{os.environ.get('PATH', '')}",
            self.credential_variable: self.credential,
            **blobs,
        }

    # What happened

    @property
    def jobs(self) -> Mapping[str, Job]:
        """Name -> job, of every job so far, in the order of submission."""
        return self.state.jobs

    def wait_for(self, name: str, *statuses: str, timeout_s: float = 120) -> Job:
        """Wait until there is a job and it is in one of some statuses, or over; return it.

        Raises:
            TimeoutError: the time is over; the message holds the job's history and logs.
        """
        self.wait_until(
            lambda: (
                (found := self.jobs.get(name)) is not None
                and (found.status in statuses or found.is_over)
            ),
            lambda: f"job {name}: {(job := self.jobs.get(name)) and (job.history, job.logs)}",
            timeout_s=timeout_s,
        )
        return self.jobs[name]

    @staticmethod
    def wait_until(
        condition: Callable[[], bool], what: Callable[[], str], *, timeout_s: float = 120
    ) -> None:
        """Wait until something holds.

        Raises:
            TimeoutError: it did not in time; the message is what `what` returns then.
        """
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(what())
            time.sleep(0.03)

    # What is there

    def datastore(self, name: str = constants.DATASTORE) -> Path:
        """Return the folder that is a datastore, which jobs see where they mount it."""
        return self.state.datastore(name)

    def container(self, name: str) -> str:
        """Create a blob container in Azurite and return its name."""
        assert self.blob_storage is not None, "Azurite does not run here"
        self.blob_storage.make_container(name)
        return name

    # What goes wrong

    def fail(self, match: str, kind: str, times: int = 1, **options: Any) -> None:
        """Let something go wrong; see tests/azureml/emulator/faults.py for the kinds.

        Args:
            match: Regular expression, searched in `METHOD URL`, or in the name of a job.
            kind: What goes wrong, such as `429`, `drop` or `preempt`.
            times: How often.
            options: Such as `retry_after=2`.
        """
        self._faults.add(match, kind, times, options)

    def faults_left(self) -> list[Fault]:
        """Return the faults that have not happened as often as they were to."""
        return self._faults.left()

    def mend(self) -> None:
        """Let nothing more go wrong."""
        self._faults.mend()

    def preempt(self, name: str) -> None:
        """Take the nodes of a job on the low-priority compute away.

        Raises:
            ValueError: the job's compute is not one that is preempted.
        """
        job = self.jobs[name]
        if constants.COMPUTES[job.spec.compute] != "LowPriority":
            raise ValueError(f"{name} runs on {job.spec.compute}, which nobody preempts")
        job.preempting.set()

    # Parts

    @property
    def _network(self) -> dict[str, str]:
        assert self._server is not None, "the emulator is not running"
        here = f"127.0.0.1,localhost,{LOGIN_ADDRESS}"
        proxies = dict.fromkeys(("HTTPS_PROXY", "https_proxy"), self._server.url)
        return {**proxies, "NO_PROXY": here, "no_proxy": here}

    def _start_node(self, job: Job, number: int, place: int) -> Node:
        environment = {**self._network, **self.node_environment}
        return Node(
            job.spec,
            number=number,
            host=_host(place),
            address=f"{_address_of(place)}/24",
            folder=self.folder / "nodes" / job.name / str(job.attempts) / str(number),
            login=self.login,
            hosts_file=self.folder / "hosts",
            datastores=self.state.datastores,
            image=Image(self._python, self._hidden, self._visible, environment),
            authority=self.folder / "tls/ca.pem",
        )


def _host(place: int) -> str:
    return f"node{place}"


def _address_of(place: int) -> str:
    return f"10.0.0.{FIRST_NODE + place}"
