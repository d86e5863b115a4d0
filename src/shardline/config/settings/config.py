"""Settings of the config and of its table `runtime`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field

from shardline.config.settings import (
    Count,
    Mix,
    Name,
    Natural,
    NotNegative,
    Plain,
    Settings,
    Share,
    Text,
)
from shardline.config.settings.run_settings import Environment, RunSettings
from shardline.config.settings.source_settings import AnySource

VirtualPackage = Annotated[
    str, Meta(pattern="^__", extra={"words": "one of a virtual package, such as __cuda"})
]


class Conda(Settings, frozen=True, kw_only=True):
    """Conda environments of the stages. Changes no result."""

    folder: Text | UnsetType = UNSET
    """Folder of the environment and pin files. Default: `envs` of Shardline."""
    channels: Annotated[list[Text], Meta(min_length=1)] = field(
        default_factory=lambda: ["conda-forge"]
    )
    """Names or URLs (also `file://`) of conda channels, by priority."""
    names: dict[str, Text] = {}
    """Conda name of a package by its name in the lock, if the names differ and Shardline does not know
    the package."""
    virtual_packages: dict[VirtualPackage, Text] = field(
        default_factory=lambda: {"__unix": "0", "__linux": "4.18", "__glibc": "2.28"}
    )
    """Virtual packages of the machines that the pins are for. `__cuda`, the version of the driver,
    selects CUDA builds."""


class AzureML(Settings, frozen=True, kw_only=True):
    """Registration with Azure ML. Changes no result. Set it in the profile of Azure ML."""

    register_data: bool = False
    """Register the folder of each sealed dataset as a data asset of the workspace, with the identity
    as its version."""


class Image(Settings, frozen=True, kw_only=True):
    """Container image, built from `envs/Containerfile` and the lock. Changes no result. Set `base` in
    the config, and the other keys in a profile."""

    base: Text = "docker.io/library/python:3.11-slim"
    """Base image, with Python 3.11 or 3.12. Add its digest to get the same layers a year later
    (`python:3.11-slim@sha256:...`)."""
    tool: Literal["auto", "podman", "docker", "buildah"] = "auto"
    """Tool that builds, pushes and saves the image; `auto` uses the first that is installed."""
    build_args: list[str] = []
    """Further arguments for `build`, such as `--secret=id=pip.conf,src=/etc/pip.conf`."""
    push: str = ""
    """Registry and name to push the image to, `registry/name`, after `podman login`. Empty: no push."""
    push_args: list[str] = []
    """Further arguments for `push`, such as `--tls-verify=false`."""
    save: str = ""
    """File to save the image to, for Apptainer: an OCI archive (a Docker archive with `docker`).
    Empty: not saved."""
    run_with: Literal["auto", "podman", "docker", "apptainer"] = "auto"
    """Tool that runs the ranks with `runtime.environment=image`. `auto` uses the first that is
    installed, beginning with the tool that built the image."""
    run_args: list[str] = []
    """Further arguments for `run`, such as `--device=/dev/infiniband`."""
    container: str = ""
    """Container that Apptainer runs instead of the pushed image: a `.sif` file or an address."""


Host = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        extra={"words": "made of letters, digits and . _ - after a first letter or digit"},
    ),
]
Variable = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        extra={"words": "made of letters, digits and _ after a first letter or _"},
    ),
]
_UNIQUE = Meta(extra={"unique": True})


class RuntimeCheckpoint(Settings, frozen=True, kw_only=True):
    """When training checkpoints are saved, from which an interrupted training resumes: after a number
    of steps or minutes, whichever comes first."""

    every_steps: Natural = 200
    """Optimiser steps between two training checkpoints; 0 for never."""
    every_min: NotNegative = 10.0
    """Minutes between two training checkpoints; 0 for never."""
    keep: Count = 2
    """Number of training checkpoints to keep. If the newest is damaged, training resumes from the one
    before."""
    keep_best: Count = 1
    """Number of best weights to keep beside them."""
    asynchronous: bool = True
    """Write to the store while the training continues."""
    after_sealing: Literal["none", "last", "all"] = "last"
    """What the store keeps after the run is sealed. `last` keeps the newest training checkpoint and the
    best weights that it names: lost results are sealed again without training. `none` keeps
    nothing: lost results are trained again. `all` keeps everything. Milestones always stay."""
    keep_days: NotNegative = 0.0
    """Days after which training checkpoints of sealed runs are removed, milestones too; 0 for never."""
    keep_bytes: Natural = 0
    """Bytes that training checkpoints of all sealed runs may take together; the oldest are removed first. 0 for any
    number."""


class Runtime(Settings, frozen=True, kw_only=True):
    """How jobs run on this machine. Changes no result and does not count in identities. Set it in a
    profile."""

    store: Text = "store"
    """Root of bulky data (scratch disk, mounted datastore). The environment variable
    `SHARDLINE_STORE` overrides it."""
    launcher: Literal["torchrun", "srun", "mpirun", "azureml", "none"] = "torchrun"
    """Launcher of the ranks. `azureml` starts them on the nodes of an Azure ML job. `none` runs a
    single rank in the job itself, or each rank over `remote_shell` if there are `hosts`."""
    environment: Literal["job", "conda", "image"] = "job"
    """Environment of the ranks of a training. `job`: that of the job itself. `conda`: a prefix that
    `create_env` makes from `envs/train.linux-64.pin.txt`. `image`: the container image that
    `build_image` makes."""
    strict_env: Literal["error", "warn"] = "error"
    """Whether an installed package with another version than in the lock is an error or a warning, in
    the stages whose results depend on the package."""
    watch_reads: Literal["off", "warn", "error"] = "warn"
    """What happens if the code of a model, source or script reads a file that counts in no identity.
    `warn` names the file in the log; `error` ends the stage. Which reads by compiled code are
    detected: see Shardline's `docs/concepts/identity.md`."""
    check_sealed: Literal["error", "warn"] = "error"
    """What happens if a new model with the weights to seal gives other values for a validation batch
    than were recorded; `warn` seals them with a warning."""
    check: bool = True
    """Check models, transforms and this machine before any job starts, as `shardline check` does."""
    launcher_args: list[str] = []
    """Further arguments for the launcher, such as `--cpu-bind=cores` for srun."""
    hosts: Annotated[list[Host], _UNIQUE] = []
    """Machines to train on without a scheduler; the first is this machine. All must share the same
    folders."""
    remote_shell: Text = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15"
    """Command that starts a command on another of the `hosts`; host and command are appended."""
    interface: str = ""
    """Network interface between the machines (`ib0`) for gloo, NCCL and Open MPI. Empty: they choose."""
    variables: dict[str, str | int] = {}
    """Environment variables of every rank, such as `NCCL_IB_HCA`. Those of NCCL, gloo and MPI are
    recorded."""
    pass_env: Annotated[list[Variable], _UNIQUE] = []
    """Names of environment variables with secrets for your own code, such as `HF_TOKEN`. They are
    passed to the ranks, but never on a command line. A variable that is not set is an error. Their
    values are masked in all output."""
    not_secret: Annotated[list[Text], _UNIQUE] = []
    """Keys whose values look like credentials but are not, such as `model_args.revision`. These keys
    and all keys below them are accepted, and published as they are."""
    rendezvous_timeout_s: Count = 300
    """Seconds until the rendezvous of the ranks fails with an error that names the missing ranks."""
    stop_grace_s: Count = 25
    """Seconds that the ranks have to reach a step boundary and save after a stop signal (SIGTERM,
    SIGUSR1, Ctrl-C); then they are killed. Slurm kills 30 s after its SIGTERM (`KillWait`), or
    after the `GraceTime` of the partition."""
    stop_margin_s: Count = 120
    """Seconds before the time limit of a job at which a training saves and stops; at most a quarter of
    the limit."""
    walltime_min: Natural = 0
    """Time limit of the job of a training in minutes, if no scheduler can be asked for the limit. The
    training saves and stops before. 0: no limit. Ignored in a Slurm job, which asks Slurm."""
    hang_timeout_s: Natural = 600
    """Seconds without a heartbeat of a rank (a batch, a save) after which all ranks are stopped, with
    an error that names the rank that the others wait for. 0: never."""
    verify: Literal["off", "first", "always"] = "first"
    """When shards are verified against their checksums: `first` once per node, `always` at each read."""
    ledger: bool = False
    """Write the row ids that each global step consumed to `work/{run}/ledger/` in the store."""
    threads_per_rank: Natural = 0
    """CPU threads per rank; 0 divides the cores of the machine among its ranks."""
    oversubscribe: bool = False
    """Allow more CPU ranks than cores."""
    log_every_steps: Count = 10
    """Optimiser steps between two records in metrics.jsonl."""
    profiler: Literal["off", "simple", "advanced", "pytorch"] = "off"
    """Profiler of Lightning, which writes where the time of a training goes to `work/{run}/profiler/` in the
    store."""
    detect_anomaly: bool = False
    """Find the operation whose gradient is NaN; slow."""
    model_summary: bool = False
    """Print the layers of the model and their sizes at the start of a training."""
    checkpoint: RuntimeCheckpoint = RuntimeCheckpoint()
    callbacks: list[str | dict[str, Any]] = []
    """Further callbacks of each training, as `callbacks` of a run, that change no result. They do not
    count in identities. `shardline check` trains a few steps with and without them, and compares."""
    tracking: Annotated[list[Literal["csv", "mlflow", "tensorboard", "wandb"]], _UNIQUE] = []
    """Trackers that show each training live. They can neither stop nor slow a training. Where they
    write and how to browse them: see `docs/how-to/track-trainings.md`. `mlflow` writes to the server in
    `MLFLOW_TRACKING_URI`, which Azure ML sets in its jobs, else to a file in the store. `wandb` is
    offline without a key."""


class _BySeed(Settings, frozen=True, kw_only=True):
    """Keys of splits by hash."""

    group: Text | UnsetType = UNSET
    """Column with the group of each row, whole numbers or text, such as the patient of an image. All rows
    of a group are in one split: a hash of the group decides, not of the row id."""
    stratify: Text | UnsetType = UNSET
    """Column with the class of each row, such as the label: the rows of each class are divided evenly. For
    sources without files of columns, `labels`. Needs a pass over all rows; when rows are added, an old
    row may change its split."""
    seed: Annotated[int, Meta(ge=0, lt=2**48, extra={"legacy_value": 0})] = 0
    """Another number gives other splits or folds, as a dataset of its own."""


class Shares(_BySeed, frozen=True, kw_only=True):
    """Splits by shares of the rows."""

    others: ClassVar[frozenset[str]] = frozenset({"column", "files", "folds"})

    train: Share
    """Share of the rows to train on. A hash of the row id decides the split. The shares sum to 1."""
    validation: Share
    """Share of the rows for validation, which chooses the training checkpoint."""
    test: Share
    """Share of the rows held out for the evaluation."""
    time: Text | UnsetType = UNSET
    """Column with the time of each row, numbers or dates: the last rows are the test split, those before
    them the validation split. Rows of one time are in one split. Needs a pass over all rows, as
    `stratify`."""

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether neither folds nor a column nor files are named."""
        return table.keys().isdisjoint(cls.others)


Folds = Annotated[int, Meta(ge=2, le=1000)]


class _WithFolds(_BySeed, frozen=True, kw_only=True):
    """Keys of splits that may have folds."""

    folds: Folds | UnsetType = UNSET
    """Number of folds for cross-validation: a run tests on the fold in its setting `fold`, and trains on
    the others. A hash of the row id decides the fold. With `column` or `files`, their test rows are in
    no fold, and all other rows are in the folds."""
    balanced: Annotated[bool, Meta(extra={"legacy_value": False})] = False
    """With `folds`: folds of equal size, of whole groups if there is a `group`. Needs a pass over all rows,
    as `stratify`, which balances folds too."""
    validation: Annotated[float, Meta(gt=0, lt=1)] | UnsetType = UNSET
    """With `folds`: share of the rows of the other folds that validate, by another hash of the row id.
    Default: 0.1, or the share in `files.validation`."""


class SplitFolds(_WithFolds, frozen=True, kw_only=True):
    """Folds of all rows."""

    excluded: ClassVar[Mapping[str, str]] = {
        "train": "is given beside folds, of which all but one are trained on; drop it, and set validation",
        "test": "is given beside folds, which hold out each row once; drop it, or set column or files",
        "time": "is given beside folds, which have no order in time; drop one of them",
    }

    folds: Folds

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether there are folds, and no fixed test set."""
        return "folds" in table and table.keys().isdisjoint({"column", "files"})


class SplitColumn(_WithFolds, frozen=True, kw_only=True):
    """Splits by a column."""

    excluded: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("train", "test", "time"),
        "is given beside column, which names the split of each row; drop one of them",
    )

    column: Text
    """Instead of shares, for `csv`, `delta`, `hf`, `jsonl` and `parquet`: column with the split of each
    row: train, validation (val, valid, dev) or test."""

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether a column is named."""
        return "column" in table


class FilesOfSplits(Settings, frozen=True, kw_only=True):
    """The files of each split."""

    train: list[str]
    """Instead of shares, for all shipped types with `files`: patterns of the files to train on. Each
    file must be in exactly one split."""
    validation: list[str] | Annotated[float, Meta(gt=0, lt=1)]
    """Patterns, or the share of the rows of the train files to use instead, by a hash of the row id."""
    test: list[str]
    """Patterns of the held-out files."""


class SplitFiles(_WithFolds, frozen=True, kw_only=True):
    """Splits by file."""

    excluded: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("train", "test", "time"),
        "is given beside files, which decide the split of each row; drop one of them",
    )

    files: FilesOfSplits

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether files are listed."""
        return "files" in table


class DatasetSettings(Settings, frozen=True, kw_only=True):
    """An entry of `datasets`."""

    source: AnySource
    """Where the rows come from."""
    shards: Count | Literal["auto"]
    """Number of shards. `auto` chooses shards of about 64 MB. The number counts in the identity in both
    cases."""
    shards_per_job: Count = 64
    """Number of shards that one job writes. Does not change the dataset."""
    splits: Shares | SplitFolds | SplitColumn | SplitFiles = Shares(
        train=0.8, validation=0.1, test=0.1
    )
    """Split of the rows into train, validation and test."""


class StudySettings(Settings, frozen=True, kw_only=True):
    """An entry of `scaling`."""

    run: Text
    """Name of the run to train at each size."""
    sizes: list[str]
    """Two or more sizes, nodes x devices: `[1x1, 1x2, 2x4]`."""
    mode: Literal["strong", "weak"] = "strong"
    """`strong`: the same `global_batch` at every size. `weak`: `global_batch` grows with the number of
    ranks, from that of the run at the first size."""


class PredictionSettings(Settings, frozen=True, kw_only=True):
    """An entry of `predictions`."""

    run: Text
    """Name of the run whose model predicts. For a run with `fold: all`, its name without the fold: each row
    is predicted by the model that did not train on it, into one file."""
    dataset: Text | UnsetType = UNSET
    """Name of the dataset whose rows are predicted."""
    split: Literal["train", "validation", "test"] = "test"
    """Split of the dataset to predict."""
    files: list[Text] | UnsetType = UNSET
    """Instead of `dataset`: files or patterns, read like the dataset of the run. Labels are optional."""


class IdentitySettings(Settings, frozen=True, kw_only=True):
    """When earlier results are accepted automatically. Changes no digest."""

    environment: Literal["exact", "minor", "off"] = "exact"
    """If only locked packages differ: `exact` makes the result again. `minor` accepts the earlier result
    if Python is the same and packages differ only in their patch level. `off` always accepts it.
    Accepted results are recorded as by `shardline accept`."""


class Config(Settings, frozen=True, kw_only=True):
    """What is computed. Profiles in `profiles/` set where it is computed."""

    runs: str
    """Path of the run table, relative to the working directory."""
    lock: str | UnsetType = UNSET
    """Lock whose pins make the environment digest. Default: `requirements.lock` of Shardline."""
    defaults: RunSettings
    """Settings of all runs. A cell of the run table overrides a setting for its run."""
    scaling: dict[Name, StudySettings] = {}
    """Scaling studies by name."""
    datasets: Annotated[dict[Name, DatasetSettings], Meta(min_length=1)]
    """Source, shards and splits of each dataset, by name."""
    mixes: dict[Name, Mix] = {}
    """Weights of each mix of datasets, by name, such as `{web: 0.7, books: 0.3}`. The run table uses the
    names."""
    predictions: dict[Name, PredictionSettings] = {}
    """Predictions by name, written to `results/predictions/NAME.parquet`."""
    environments: dict[Name, Environment] = {}
    """Environments of training scripts, by name, for the setting `environment` of a run."""
    conda: Conda = Conda()
    azureml: AzureML = AzureML()
    image: Image = Image()
    identity: IdentitySettings = IdentitySettings()
    runtime: Runtime = Runtime()


class ReportSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """Settings in the identity document of a report."""

    scaling: dict[str, StudySettings] = {}
