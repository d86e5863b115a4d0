"""One node of one job: a machine that sees its working folder, the mounts asked for, no more."""

import re
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.azureml.emulator.jobs import JobSpec, Mount, Process
from tests.support.machines import Machine, kill_group, plug_in

# As the service has them on its nodes.
ROOT = Path("/mnt/azureml/cr/j")
WORKING_FOLDER = ROOT / "exe/wd"
DATA_FOLDER = ROOT / "cap/data-capability/wd"
HOME = ROOT / "home"
AUTHORITY = HOME / ".ca.pem"

# Sources are held first, since the masks may lie over them; then masks and what is kept visible,
# parents before children; then the sources find their places. Arguments: the size of shared
# memory, then one operation each: hold NUMBER SOURCE, mask FOLDER, place NUMBER TARGET [ro].
SET_UP = """
set -e
mount -o "remount,size=$1" /dev/shm
mkdir -m 700 /run/held
shift
while [ $# -gt 0 ]; do
  operation=($1)
  shift
  case ${operation[0]} in
    hold) mkdir "/run/held/${operation[1]}"
          mount --bind "$1" "/run/held/${operation[1]}" ;;
    mask) if [ -d "$1" ]; then mount -t tmpfs tmpfs "$1"; fi ;;
    place) mkdir -p "$1"
           mount --bind "/run/held/${operation[1]}" "$1"
           if [ "${operation[2]:-}" = ro ]; then mount -o remount,bind,ro "$1"; fi
           umount "/run/held/${operation[1]}" ;;
  esac
  shift
done
rm -r /run/held
"""


@dataclass(frozen=True)
class Image:
    """What a node's processes find of the computer that plays its part.

    Attributes:
        python: The interpreter that `python` is.
        hidden: Folders that are empty on a node.
        visible: Folders that are there all the same, though they lie below a hidden one.
        environment: Variables that every process has, such as what a managed identity stands for.
    """

    python: Path
    hidden: tuple[Path, ...]
    visible: tuple[Path, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    def operations(self) -> Iterator[tuple[str, Path]]:
        """Yield what to mask and what to keep visible, parents before children."""
        kept = [path for path in self.visible if any(path.is_relative_to(h) for h in self.hidden)]
        steps = [("mask", path) for path in self.hidden] + [("keep", path) for path in kept]
        return iter(sorted(set(steps), key=lambda step: (len(step[1].parts), step)))


class Node:
    """A node that is up, and the processes of its job on it."""

    def __init__(
        self,
        spec: JobSpec,
        *,
        number: int,
        host: str,
        address: str,
        folder: Path,
        login: Machine,
        hosts_file: Path,
        datastores: Mapping[str, Path],
        image: Image,
        authority: Path,
    ) -> None:
        """Switch the node on.

        Args:
            spec: The job.
            number: The node's place among the job's nodes.
            host: Host name.
            address: Address with prefix length.
            folder: A folder of the node alone; it is made.
            login: The machine with the bridge.
            hosts_file: What the node has as /etc/hosts.
            datastores: Name -> folder of each datastore.
            image: What the node sees of this computer.
            authority: File with the certificate authority to trust.
        """
        self.number = number
        self.host = host
        self.running: list[tuple[Process, subprocess.Popen[str]]] = []
        self._is_on = True
        self._spec = spec
        self._login = login
        self._image = image
        self._uploads: list[tuple[Path, Path]] = []
        self._working = folder / "wd"
        _unpack(spec.code, self._working)
        for name in ("outputs", "logs"):
            (self._working / name).mkdir(exist_ok=True)
        (folder / "home").mkdir()
        shutil.copy(authority, folder / "home" / AUTHORITY.name)
        places = [(folder / "home", HOME, ""), (self._working, WORKING_FOLDER, "")]
        places += [
            self._prepare(mount, folder, datastores) for mount in spec.mounts if _is_placed(mount)
        ]
        self.machine = Machine(host, {hosts_file: "/etc/hosts"})
        try:
            self.machine.run("bash", "-c", SET_UP, "set-up", spec.shm_size, *self._steps(places))
            plug_in(login, self.machine, address=address)
        except BaseException:
            self.switch_off()
            raise

    def start(self, local_rank: int, variables: Mapping[str, str], log: Path) -> None:
        """Start one process of the job; its output goes to the log."""
        environment = {
            "PATH": f"{self._image.python.parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(HOME),
            "LANG": "C.UTF-8",
            **self._image.environment,
            "SSL_CERT_FILE": str(AUTHORITY),
            "REQUESTS_CA_BUNDLE": str(AUTHORITY),
            **self._spec.environment,
            **{mount.variable: self.path_of(mount) for mount in self._spec.mounts},
            **variables,
        }
        command = self._spec.command
        for mount in self._spec.mounts:
            # Not the beginning of a longer name.
            pattern = re.escape(mount.reference) + r"(?!\w)"
            command = re.sub(pattern, self.path_of(mount).replace("\\", r"\\"), command)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as output:
            # A clean environment: nothing of the submitter's reaches a node but by the job.
            words = [f"{name}={value}" for name, value in environment.items()]
            process = self.machine.popen(
                "env", "--ignore-environment", *words, "bash", "-c", command,
                cwd=WORKING_FOLDER, stdout=output,
            )  # fmt: skip
        record = Process(self.number, self.host, local_rank, log)
        self.running.append((record, process))

    def poll(self) -> None:
        """Note the exit codes of processes that have ended."""
        for record, process in self.running:
            record.exit_code = process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to every process of the job that still runs."""
        for _, process in self.running:
            kill_group(process, number)

    def collect(self, artifacts: Path) -> None:
        """Give the service what the job left in `outputs/` and `logs/`, and its uploads."""
        if not self._is_on:
            return
        for name in ("outputs", "logs"):
            shutil.copytree(self._working / name, artifacts / name, dirs_exist_ok=True)
        for source, target in self._uploads:
            shutil.copytree(source, target, dirs_exist_ok=True)

    def switch_off(self) -> None:
        """End the node and everything on it, without warning."""
        if not self._is_on:
            return
        self._is_on = False
        # The network's end is deleted by name: the kernel would do it some time later.
        self._login.run("ip", "link", "delete", self.host, check=False)
        self.machine.switch_off()
        for _, process in self.running:
            process.wait()
        self.poll()

    def path_of(self, mount: Mount) -> str:
        """Return what a mount's variable and reference stand for on the node."""
        if mount.mode == "Direct":
            return f"azureml://datastores/{mount.datastore}/paths/{mount.path}"
        folder = DATA_FOLDER / mount.name
        return str(folder / Path(mount.path).name if mount.is_file else folder)

    def _prepare(
        self, mount: Mount, folder: Path, datastores: Mapping[str, Path]
    ) -> tuple[Path, Path, str]:
        """Return the source on this computer, the target on the node and the mount's options."""
        stored = datastores[mount.datastore] / mount.path
        if mount.is_file:
            stored = stored.parent
        source = folder / "data" / mount.name
        if mount.mode == "Download":
            shutil.copytree(stored, source)
        elif mount.mode == "Upload":
            source.mkdir(parents=True)
            self._uploads.append((source, stored))
        else:
            stored.mkdir(parents=True, exist_ok=True)
            source = stored
        return source, DATA_FOLDER / mount.name, "ro" * (mount.mode == "ReadOnlyMount")

    def _steps(self, places: Sequence[tuple[Path, Path, str]]) -> list[str]:
        """Return the arguments of SET_UP."""
        holds: list[str] = []
        later: list[str] = []
        for operation, path in self._image.operations():
            if operation == "mask":
                later += ["mask", str(path)]
            else:
                number = len(holds) // 2
                holds += [f"hold {number}", str(path)]
                later += [f"place {number}", str(path)]
        for source, target, option in places:
            number = len(holds) // 2
            holds += [f"hold {number}", str(source)]
            later += [f"place {number} {option}", str(target)]
        return [*holds, *later]


def _is_placed(mount: Mount) -> bool:
    return mount.mode != "Direct"


def _unpack(code: Mapping[str, Path], folder: Path) -> None:
    """Write the code snapshot; as with the service's, no file is executable."""
    folder.mkdir(parents=True)
    for relative, content in code.items():
        target = folder / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(content, target)
