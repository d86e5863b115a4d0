"""A training as a run of Weights & Biases: https://docs.wandb.ai/ref/python."""

import netrc
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from shardline.records.tracking import TrackingContext
from shardline.tracking.metric_batches import MetricBatch
from shardline.tracking.run_links import RunLinks
from shardline.tracking.tracker import Tracker, shorten

if TYPE_CHECKING:
    from wandb import Run

_PROJECT = "shardline"
_ID_CHARACTERS = 64
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_CLIENT = {
    "WANDB_INIT_TIMEOUT": "30",  # seconds
    "WANDB_ERROR_REPORTING": "false",  # to W&B, of its own errors
    "WANDB_PROJECT": _PROJECT,
}
# What W&B would send besides what it is given: the command line, the git remote, code, the
# machine, and all that is printed. Secrets may stand there.
_SILENT = {
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_machine_info": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbRun(Tracker):
    """The run of W&B that shows a training, by an id that is the run's own.

    Without a key, and where W&B does not answer, each start of a training writes the run to
    `{store}/wandb` again, for `wandb sync` to send. W&B's client hands all to a process of its own,
    which ends with ours.
    """

    label = "W&B"
    takes_model = True

    def __init__(self, context: TrackingContext, links: RunLinks) -> None:
        super().__init__(context, links)
        self._id = _FORBIDDEN.sub("-", context.run)[-_ID_CHARACTERS:]
        self._run: Run | None = None
        for name, value in _CLIENT.items():
            os.environ.setdefault(name, value)
        folder = Path(context.store, "wandb").absolute()
        for name in ("CACHE", "DATA"):  # a home may have little room
            os.environ.setdefault(f"WANDB_{name}_DIR", str(folder / f".{name.lower()}"))
        if not os.environ.get("WANDB_MODE"):
            os.environ["WANDB_MODE"] = "online" if has_key(os.environ) else "offline"
        links.write(where={"id": self._id})

    @property
    def place(self) -> str:
        """The run, and its folder where it is yet to be sent."""
        if self._run is None or not self._run.offline:
            return f"run {self._id}"
        return f"run {self._id} (offline: `{self._sync}` sends it)"

    @property
    def _sync(self) -> str:
        assert self._run is not None
        return f"wandb sync {Path(self._run.dir).parent}"

    def open(self) -> int:
        """Start the run, or resume it where W&B has it."""
        import wandb

        run, self._run = self._run, None
        if run:  # of an attempt that failed, as may its end, but only once
            run.finish(exit_code=1)
        try:
            self._run = self._init()
        except wandb.Error as error:
            if os.environ["WANDB_MODE"] == "offline":
                raise
            self.warning = f"W&B cannot be reached, so the run is written offline: {shorten(error)}"
            os.environ["WANDB_MODE"] = "offline"
            wandb.teardown()  # its process holds the run's id for the one that has failed
            self._run = self._init()
        self.files = []
        self.closing = f"what `{self._sync}` sends"
        return int(self._run.step) - 1

    def _init(self) -> "Run":
        import wandb

        if os.environ["WANDB_MODE"] == "offline":
            for folder in Path(self._context.store, "wandb").glob(f"offline-run-*-{self._id}"):
                if not list(folder.glob("*.synced")):  # metrics.jsonl has all that is in it
                    shutil.rmtree(folder)
        return wandb.init(
            id=self._id,
            resume="allow",
            name=self._context.name,
            dir=self._context.store,
            config={**self._context.params, **self._context.tags},
            # the client reads the variable only once
            settings=wandb.Settings(**_SILENT, mode=os.environ["WANDB_MODE"]),
        )

    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Hand over a row per step; W&B refuses none, and `close` waits until they have arrived."""
        assert self._run is not None
        for row in batch.rows():
            step, wall_s = row.pop("step"), row["wall_s"]
            if started is not None and wall_s is not None:
                row["_timestamp"] = started + wall_s
            self._run.log(row, step=step)

    def upload(self, file: Path, folder: str = "") -> None:
        """Hand over the sealed model, which never changes, so W&B need not copy it."""
        import wandb

        assert self._run is not None
        model = wandb.Artifact(self._id, type="model", metadata=dict(self._context.tags))
        model.add_file(str(file), policy="immutable", skip_cache=True)
        self._run.log_artifact(model)
        self.files.append(file.name)

    def close(self, how: str) -> None:
        """Record how the training has ended, and wait until W&B has all values."""
        import wandb

        if self._run:
            self._run.finish(exit_code=0 if how == "sealed" else 1)
            wandb.teardown()


def has_key(env: Mapping[str, str]) -> bool:
    """Return whether W&B's client finds a key, so that it would not ask for one."""
    if env.get("WANDB_API_KEY") or env.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(env.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        logins = netrc.netrc(env.get("NETRC") or Path("~/.netrc").expanduser())
    except (OSError, RuntimeError, netrc.NetrcParseError):  # RuntimeError: a user without HOME
        return False
    return logins.authenticators(host) is not None
