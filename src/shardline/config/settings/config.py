"""Settings of the config and of its table `runtime`."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, UnsetType, field

from shardline.config.settings import Count, Mix, Name, Natural, NotNegative, Settings, Share, Text
from shardline.config.settings.run_settings import Environment, RunSettings
from shardline.config.settings.source_settings import AnySource

VirtualPackage = Annotated[
    str, Meta(pattern="^__", extra={"words": "one of a virtual package, such as __cuda"})
]


class Conda(Settings, frozen=True, kw_only=True):
    """What the conda environments of the stages are written to and solved with; changes no
    result."""

    folder: Text | UnsetType = UNSET
    """Folder of the environment and pin files; left out, Shardline's own `envs`."""
    channels: Annotated[list[Text], Meta(min_length=1)] = field(
        default_factory=lambda: ["conda-forge"]
    )
    """Names or URLs (`file://` too) of conda channels, the first before the others."""
    names: dict[str, Text] = {}
    """Conda's name of a package by its name in the lock, where they differ and Shardline does not
    know it."""
    virtual_packages: dict[VirtualPackage, Text] = field(
        default_factory=lambda: {"__unix": "0", "__linux": "4.18", "__glibc": "2.28"}
    )
    """What the machines have that the pins are for; `__cuda`, the driver's version, asks for CUDA
    builds."""


class AzureML(Settings, frozen=True, kw_only=True):
    """What Azure ML gets besides its jobs; changes no result. Its profile sets it."""

    register_data: bool = False
    """Register each sealed dataset's folder in the store as a data asset of the workspace, its
    version being the identity."""


class Image(Settings, frozen=True, kw_only=True):
    """The container image, built from `envs/Containerfile` and the lock; changes no result. `base`
    belongs into the config, the others into a profile."""

    base: Text = "docker.io/library/python:3.11-slim"
    """Image to build on, with Python 3.11 or 3.12; for the same layers a year later, with its
    digest (`python:3.11-slim@sha256:...`)."""
    tool: Literal["auto", "podman", "docker", "buildah"] = "auto"
    """What builds, pushes and saves the image; `auto` is the first that is here."""
    build_args: list[str] = []
    """The site's own arguments for `build`, such as `--secret=id=pip.conf,src=/etc/pip.conf`."""
    push: str = ""
    """Where the image is pushed to, `registry/name`, after `podman login`; empty keeps it here."""
    push_args: list[str] = []
    """The site's own arguments for `push`, such as `--tls-verify=false`."""
    save: str = ""
    """File that the image is saved to, an OCI archive (Docker's own with `docker`), from which
    Apptainer builds; empty saves nothing."""
    run_with: Literal["auto", "podman", "docker", "apptainer"] = "auto"
    """What the ranks run in with `runtime.environment=image`; `auto` is the first that is here,
    beginning with what built the image."""
    run_args: list[str] = []
    """The site's own arguments for `run`, such as `--device=/dev/infiniband`."""
    container: str = ""
    """What Apptainer is to run, a `.sif` or an address, in the place of the image that was
    pushed."""


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
    """When the state that a killed training resumes from is saved; by steps or by time, whichever
    comes first."""

    every_steps: Natural = 200
    """Optimiser steps between two training checkpoints; 0 for never."""
    every_min: NotNegative = 10.0
    """Minutes between two training checkpoints; 0 for never."""
    keep: Count = 2
    """Training checkpoints that stay; a damaged newest one falls back to the one before it."""
    keep_best: Count = 1
    """Best weights kept beside them."""
    asynchronous: bool = True
    """Write to the store while the training continues."""
    after_sealing: Literal["none", "last", "all"] = "last"
    """What stays in the store once the run is sealed. `last` keeps the newest training checkpoint and
    the best weights that it names, from which lost results are sealed again without a step; `none`
    keeps nothing, and lost results are trained again; `all` keeps everything."""


class Runtime(Settings, frozen=True, kw_only=True):
    """How the work is done on this machine; changes no result and counts in no identity. Profiles
    set it."""

    store: Text = "store"
    """Root of bulky data (scratch disk, mounted datastore); the environment variable
    `SHARDLINE_STORE` goes before it."""
    launcher: Literal["torchrun", "srun", "mpirun", "azureml", "none"] = "torchrun"
    """What starts the ranks; `azureml` does so on the nodes of an Azure ML job, and `none` runs a
    single rank in the job itself, or each rank over `remote_shell` where there are `hosts`."""
    environment: Literal["job", "conda", "image"] = "job"
    """What the ranks of a training run in; `job` is the environment of the job itself, `conda` a
    prefix that `create_env` makes from `envs/train.linux-64.pin.txt`, `image` the container image
    that `build_image` makes."""
    strict_env: Literal["error", "warn"] = "error"
    """What a package is that is installed in another version than the lock's, in the stages whose
    results depend on it."""
    watch_reads: Literal["off", "warn", "error"] = "warn"
    """What a file is that the code of a model, source or script reads and no identity holds; `warn`
    names it in the log, `error` ends the stage where it is read. Which reads by compiled code are
    seen is in Shardline's `docs/concepts/identity.md`."""
    check_sealed: Literal["error", "warn"] = "error"
    """What it is where a fresh model with the weights that are to be sealed gives other values for a
    batch of their validation than were recorded; `warn` seals them with a warning."""
    check: bool = True
    """Check models, transforms and this machine before anything is built, as `shardline check` does."""
    launcher_args: list[str] = []
    """The site's own arguments for the launcher, such as `--cpu-bind=cores` for srun."""
    hosts: Annotated[list[Host], _UNIQUE] = []
    """Machines to train on where there is no scheduler; the first is this one. All see the same
    folders."""
    remote_shell: Text = "ssh -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15"
    """Starts a command on another of the `hosts`; the host and the command follow it."""
    interface: str = ""
    """Network interface between the machines (`ib0`) for gloo, NCCL and Open MPI; empty leaves it
    to them."""
    variables: dict[str, str | int] = {}
    """Environment of every rank, such as `NCCL_IB_HCA`; those of NCCL, gloo and MPI are
    recorded."""
    pass_env: Annotated[list[Variable], _UNIQUE] = []
    """Names of environment variables that hold secrets for the user's own code, such as `HF_TOKEN`.
    The ranks get them, by name and in no command line; one that is not set is an error, and their
    values are masked wherever they turn up."""
    not_secret: Annotated[list[Text], _UNIQUE] = []
    """Keys, such as `model_args.revision`, whose values look like credentials and are none; they
    and all keys below them are read, and published as they are."""
    rendezvous_timeout_s: Count = 300
    """Seconds that the ranks have to find one another before the missing ones are named."""
    stop_grace_s: Count = 25
    """Seconds that the ranks have to reach a step boundary and save when a job is asked to stop
    (SIGTERM, SIGUSR1, Ctrl-C); then they are ended. Slurm kills 30 s after its SIGTERM
    (`KillWait`), or after the partition's `GraceTime`."""
    stop_margin_s: Count = 120
    """Seconds before a job's known end at which a training saves and stops; at most a quarter of
    the job's time."""
    walltime_min: Natural = 0
    """Minutes after which a training's job is ended by something that cannot be asked; it saves and
    stops before. 0 is none. In a Slurm job the controller is asked instead."""
    hang_timeout_s: Natural = 600
    """Seconds without a heartbeat of a rank (a batch, a save) after which all ranks are ended and
    the rank that the others wait for is named; 0 is never."""
    verify: Literal["off", "first", "always"] = "first"
    """When a shard is verified against its checksum; `first` is once per node, `always` each time it is
    read."""
    ledger: bool = False
    """Write which row ids each global step consumed, to `work/{run}/ledger/` in the store."""
    threads_per_rank: Natural = 0
    """CPU threads per rank; 0 divides the machine's cores among its ranks."""
    oversubscribe: bool = False
    """Allow more CPU ranks than cores."""
    log_every_steps: Count = 10
    """Optimiser steps between two records in metrics.jsonl."""
    checkpoint: RuntimeCheckpoint = RuntimeCheckpoint()
    tracking: Annotated[list[Literal["csv", "mlflow", "tensorboard", "wandb"]], _UNIQUE] = []
    """Trackers that show each training as it goes, which they can neither stop nor slow; where they
    write, and how to browse them, is in `docs/how-to/track-trainings.md`. `mlflow` goes to the server that the
    variable `MLFLOW_TRACKING_URI` names, which Azure ML sets in its jobs, and else to a file in the
    store; `wandb` is offline where no key is given."""


class Shares(Settings, frozen=True, kw_only=True):
    """Splits by shares of the rows."""

    others: ClassVar[frozenset[str]] = frozenset({"column", "files"})

    train: Share
    """Share to train on. Shares of the rows, decided by a hash of each row's id; they sum to 1."""
    validation: Share
    """Share to choose training checkpoints by."""
    test: Share
    """Share held out for the evaluation."""

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether neither a column is named nor files are listed."""
        return table.keys().isdisjoint(cls.others)


class SplitColumn(Settings, frozen=True, kw_only=True):
    """Splits by a column."""

    column: Text
    """In place of shares, `csv`, `delta`, `hf`, `jsonl`, `parquet`: column that holds train,
    validation (val, valid, dev) or test."""

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether a column is named."""
        return "column" in table


class FilesOfSplits(Settings, frozen=True, kw_only=True):
    """The files of each split."""

    train: list[str]
    """In place of shares, of all types that have `files` but your own: patterns of the files to
    train on. Each file is in one split."""
    validation: list[str] | Annotated[float, Meta(gt=0, lt=1)]
    """Patterns, or the share of the train files' rows to take in their place, by a hash of the
    row's id."""
    test: list[str]
    """Patterns of the files held out."""


class SplitFiles(Settings, frozen=True, kw_only=True):
    """Splits by file."""

    files: FilesOfSplits

    @classmethod
    def fits(cls, table: Mapping[str, Any]) -> bool:
        """Return whether files are listed."""
        return "files" in table


class DatasetSettings(Settings, frozen=True, kw_only=True):
    """An entry of `datasets`."""

    source: AnySource
    """Where the rows come from."""
    shards: Count | Literal["auto"]
    """Files that the dataset is cut into; `auto` takes as many as make files of about 64 MB. The
    number counts, however it is found."""
    shards_per_job: Count = 64
    """Shards that one job writes; does not change the dataset."""
    splits: Shares | SplitColumn | SplitFiles = Shares(train=0.8, validation=0.1, test=0.1)
    """What is trained on, what chooses training checkpoints and what is held out."""


class StudySettings(Settings, frozen=True, kw_only=True):
    """An entry of `scaling`."""

    run: Text
    """Name of the run that is trained at each size."""
    sizes: list[str]
    """Nodes x devices of each, `[1x1, 1x2, 2x4]`; two or more."""
    mode: Literal["strong", "weak"] = "strong"
    """`strong`: `global_batch` is the run's own at every size. `weak`: it grows with the number of
    ranks, from the run's own at the first size."""


class PredictionSettings(Settings, frozen=True, kw_only=True):
    """An entry of `predictions`."""

    run: Text
    """Name of the run whose model predicts."""
    dataset: Text | UnsetType = UNSET
    """Name of the dataset whose rows are predicted."""
    split: Literal["train", "validation", "test"] = "test"
    """Which rows of the dataset."""
    files: list[Text] | UnsetType = UNSET
    """In place of `dataset`, files or patterns, read as the run's dataset is; they need no labels."""


class IdentitySettings(Settings, frozen=True, kw_only=True):
    """How closely an earlier result must fit to be taken over by itself; changes no digest."""

    environment: Literal["exact", "minor", "off"] = "exact"
    """Where locked packages alone differ: `exact` makes the result again; `minor` takes the earlier
    one over if Python is the same and no package differs by more than its patch level; `off`
    whatever they are. What is taken over is recorded as by `shardline accept`."""


class Config(Settings, frozen=True, kw_only=True):
    """What is computed. Where it is computed stands in profiles/."""

    runs: str
    """Path of the run table, from the working directory."""
    lock: str | UnsetType = UNSET
    """Lock whose pins make the environment digest; left out, Shardline's own requirements.lock."""
    defaults: RunSettings
    """Every setting; a cell of the run table overrides it for that run."""
    scaling: dict[Name, StudySettings] = {}
    """Name to scaling study."""
    datasets: Annotated[dict[Name, DatasetSettings], Meta(min_length=1)]
    """Name to source and shard settings."""
    mixes: dict[Name, Mix] = {}
    """Name to the weights of a mix of datasets, `{web: 0.7, books: 0.3}`, for cells of the run
    table."""
    predictions: dict[Name, PredictionSettings] = {}
    """Name to the rows that a run's model predicts; `results/predictions/NAME.parquet` holds them."""
    environments: dict[Name, Environment] = {}
    """Name to an environment for training scripts, for the setting `environment` of a run."""
    conda: Conda = Conda()
    azureml: AzureML = AzureML()
    image: Image = Image()
    identity: IdentitySettings = IdentitySettings()
    runtime: Runtime = Runtime()


class ReportSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What the identity document of a report holds of the config."""

    scaling: dict[str, StudySettings] = {}
