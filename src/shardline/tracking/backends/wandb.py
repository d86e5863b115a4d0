"""Weights & Biases tracker: https://docs.wandb.ai/ref/python."""

import io
import netrc
import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import UNSET

from shardline.records.metrics import MetricLine
from shardline.records.tracking import TrackingContext
from shardline.tracking.logged_files import numbered, png_of
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
    "WANDB_ERROR_REPORTING": "false",  # reports of errors of the client to W&B
    "WANDB_PROJECT": _PROJECT,
}
# By default W&B also sends the command line, the git remote, code, machine data and printed
# output, all of which may contain secrets.
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
    """Tracker that shows a training as a W&B run, with an id made from the run's id.

    Without a key, or if W&B does not answer, each start of a training writes the run to `{store}/wandb`
    again, and `wandb sync` can send it. W&B's client uses its own process, which ends with this process.
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
        for name in ("CACHE", "DATA"):  # a home folder may have little space
            os.environ.setdefault(f"WANDB_{name}_DIR", str(folder / f".{name.lower()}"))
        if not os.environ.get("WANDB_MODE"):
            os.environ["WANDB_MODE"] = "online" if has_key(os.environ) else "offline"
        links.write(where={"id": self._id})

    @property
    def place(self) -> str:
        """Id of the run, and the command that sends an offline run."""
        if self._run is None or not self._run.offline:
            return f"run {self._id}"
        return f"run {self._id} (offline; to send it, run `{self._sync}`)"

    @property
    def _sync(self) -> str:
        assert self._run is not None
        return f"wandb sync {Path(self._run.dir).parent}"

    def open(self) -> int:
        """Start or resume the run, and return the last step that W&B has."""
        import wandb

        run, self._run = self._run, None
        if run:  # of a failed attempt; finishing may fail, too, but only once
            run.finish(exit_code=1)
        try:
            self._run = self._init()
        except wandb.Error as error:
            if os.environ["WANDB_MODE"] == "offline":
                raise
            self.warning = f"W&B cannot be reached, so the run is written offline: {shorten(error)}"
            os.environ["WANDB_MODE"] = "offline"
            wandb.teardown()  # its process still uses the id for the failed run
            self._run = self._init()
        self.files = []
        self.closing = f"the rest of the run (to send it, run `{self._sync}`)"
        return int(self._run.step) - 1

    def _init(self) -> "Run":
        import wandb

        if os.environ["WANDB_MODE"] == "offline":
            for folder in Path(self._context.store, "wandb").glob(f"offline-run-*-{self._id}"):
                if not list(folder.glob("*.synced")):  # metrics.jsonl contains the same values
                    shutil.rmtree(folder)
        return wandb.init(
            id=self._id,
            resume="allow",
            name=self._context.name,
            group=self._context.group or None,
            dir=self._context.store,
            config={**self._context.params, **self._context.tags},
            # the client reads the variable only once
            settings=wandb.Settings(**_SILENT, mode=os.environ["WANDB_MODE"]),
        )

    def send(self, batch: MetricBatch, started: float | None) -> None:
        """Log one row per step; `close` waits until W&B has received all rows."""
        assert self._run is not None
        rows: dict[int, dict[str, Any]] = {
            int(row.pop("step") or 0): {**row} for row in batch.rows()
        }
        for line in batch.logged:
            row = rows.setdefault(line.step, {"wall_s": line.wall_s})
            row |= _shown(line)
        for step, row in sorted(rows.items()):
            if started is not None and row["wall_s"] is not None:
                row["_timestamp"] = started + row["wall_s"]
            self._run.log(row, step=step)

    def upload(self, file: Path, folder: str = "") -> None:
        """Log the sealed model without a copy, since it never changes."""
        import wandb

        assert self._run is not None
        model = wandb.Artifact(self._id, type="model", metadata=dict(self._context.tags))
        model.add_file(str(file), policy="immutable", skip_cache=True)
        self._run.log_artifact(model)
        self.files.append(file.name)

    def close(self, how: str) -> None:
        """Record how the training ended, and wait until W&B has all values."""
        import wandb

        if self._run:
            self._run.finish(exit_code=0 if how == "sealed" else 1)
            wandb.teardown()


def _shown(line: MetricLine) -> dict[str, Any]:
    """Return images, tables and texts of a line as W&B shows them, by name."""
    import wandb

    shown: dict[str, Any] = {}
    has_pillow = find_spec("PIL") is not None  # which W&B needs for images
    for name, one in numbered(line):
        if not one.png:
            rows = [[one.text]] if one.rows is UNSET else one.rows
            columns = ["text"] if one.rows is UNSET else one.columns
            shown[name] = wandb.Table(columns=columns, data=rows, allow_mixed_types=True)
        elif has_pillow:
            from PIL import Image

            image = wandb.Image(Image.open(io.BytesIO(png_of(one))), caption=one.caption or None)
            shown.setdefault(one.name, []).append(image)
        else:
            shown[one.name] = "an image; pip install pillow to see it here"
    return shown


def has_key(env: Mapping[str, str]) -> bool:
    """Return whether W&B's client finds a key without asking the user."""
    if env.get("WANDB_API_KEY") or env.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    host = urlsplit(env.get("WANDB_BASE_URL") or "https://api.wandb.ai").hostname or ""
    try:
        logins = netrc.netrc(env.get("NETRC") or Path("~/.netrc").expanduser())
    except (OSError, RuntimeError, netrc.NetrcParseError):  # RuntimeError: the user has no HOME
        return False
    return logins.authenticators(host) is not None
