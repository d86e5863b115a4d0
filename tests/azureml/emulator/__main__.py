"""Runs a command on the submitting machine, by hand."""

import argparse
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.azureml.emulator.service import AzureMLEmulator
from tests.support.machines import MachineError


def main() -> int:
    """Run a command with the emulator up and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.azureml.emulator", description=__doc__)
    parser.add_argument("--nodes", type=int, default=4, help="of each compute")
    parser.add_argument("program", nargs="+")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with (
        tempfile.TemporaryDirectory(prefix="azureml-") as folder,
        AzureMLEmulator(Path(folder), nodes=options.nodes) as service,
    ):
        print(f"subscription {service.subscription}, resource group {service.resource_group},")
        print(f"workspace {service.workspace}, computes {service.compute} and", end=" ")
        print(f"{service.low_priority_compute}; set for the command:")
        for name, value in service.environment.items():
            print(f"  export {name}={shlex.quote(value)}", flush=True)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the command's
        code = subprocess.run(
            service.login.command("env", *_words(service), *options.program), check=False
        ).returncode
        for job in service.jobs.values():
            print(f"job {job.name}: {job.status} after {' '.join(s for s, _ in job.history)}")
        return code


def _words(service: AzureMLEmulator) -> list[str]:
    return [f"{name}={value}" for name, value in service.environment.items()]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except MachineError as error:
        sys.exit(str(error))
