"""Records of jobs: time, host, user, command and software."""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from getpass import getuser
from pathlib import Path
from typing import Any

from shardline.core.git import git_state
from shardline.core.redaction import MASK, is_secret, mask
from shardline.core.variables import recorded_variables
from shardline.environments.installed import image_digest, machine
from shardline.provenance.record import now, software
from shardline.records.jobs import Commit, JobRecord


@dataclass(frozen=True, kw_only=True)
class Action:
    """Running job; create it when the job starts, since it reads the time and the git state.

    Attributes:
        id: rule and key, such as `train/{run id}`; numbers name this id as their source.
        started: start time (UTC).
        git: git state of the project.
    """

    id: str
    started: str = field(default_factory=now)
    git: Mapping[str, Any] = field(default_factory=lambda: git_state(Path.cwd()))

    def record(self) -> JobRecord:
        """Return the record of this job, with the present time as its end.

        Only environment variables of a fixed list are recorded. Likely secrets in the command line are masked.
        """
        return JobRecord(
            id=self.id,
            rule=self.id.partition("/")[0],
            started=self.started,
            ended=now(),
            host=platform.node(),
            agent=_login_name(),
            command=_masked(sys.orig_argv),
            variables=recorded_variables(os.environ),
            software=software(),
            git=Commit(**self.git),
            image=image_digest(),
            **machine(),
        )


def _masked(command: Sequence[str]) -> list[str]:
    before = ("", *command)
    return [
        MASK if option.startswith("--") and is_secret(option[2:]) else mask(word)
        for option, word in zip(before, command, strict=False)
    ]


def _login_name() -> str:
    try:
        return getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return str(os.getuid())
