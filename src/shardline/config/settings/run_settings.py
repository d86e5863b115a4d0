"""Settings of a run, and their defaults."""

from functools import cache
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, to_builtins

from shardline.config.settings import (
    Count,
    Mix,
    Natural,
    NotNegative,
    Positive,
    RowName,
    Settings,
    Text,
)
from shardline.core.nested import flatten

Direction = Literal["min", "max"]


class Pack(Settings, frozen=True, kw_only=True, rename={"with_": "with"}):
    """Samples of one length, made of rows of many lengths."""

    column: Text
    """Varying column whose values are put together."""
    length: Count
    """Values of a sample."""
    method: Literal["concat", "best_fit"] = "concat"
    """`concat` cuts the rows, one behind the other, into blocks; `best_fit` puts whole rows
    together so that little is filled up."""
    with_: Annotated[list[Text], Meta(extra={"unique": True})] = []
    """Varying columns that go along, such as a loss mask beside tokens: a row has as many values of
    each as of `column`."""


class Pad(Settings, frozen=True, kw_only=True):
    """How varying columns are filled up with zeros."""

    type: Literal["pad"]
    """What makes it a table, and not a text."""
    lengths: dict[str, Count] = {}
    """By column, what samples are filled up to; any other to the longest of the global batch."""
    multiple: Count = 1
    """What any other length is rounded up to a multiple of."""


class Data(Settings, frozen=True, kw_only=True):
    """How samples reach the model."""

    normalize: Literal["standard", "global", "none"] = "standard"
    """`standard` subtracts the train split's mean and divides by its deviation, per feature
    (tables); `global` does so with one mean and deviation over all features (images, whose border
    pixels hardly vary)."""
    window_bytes: Count = 268435456
    """Bytes of samples in memory at a time (and as many being read ahead); rows are shuffled within
    a window."""
    streams: Count = 1
    """Sequences of shards that each global batch takes equal shares of. 1: every rank reads every
    shard (one copy in memory per node); as many as ranks: each rank reads its own shards only
    (several nodes, remote storage)."""
    epoch: Literal["pass", "partition"] = "pass"
    """`pass` visits the whole train split in an epoch, `partition` `data.partition_shards` shards
    in turn, to validate more often."""
    partition_shards: Count = 1
    """Shards of an epoch under `data.epoch=partition`."""
    last_batch: Literal["drop", "pad"] = "drop"
    """An epoch's last, partial global batch: `drop` leaves its rows out of this epoch, other rows
    in each epoch, `pad` fills it up and gives each batch a third part, weights (0 for what fills
    up)."""
    transform: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """What is done to each training sample: a shipped transform, a class by import path
    (`mypkg.data:Augment`), a table `{type: mypkg.data:Augment, size: 224}` whose other keys are the
    constructor's arguments, or a list of these, done in turn."""
    eval_transform: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """What is done to each sample of a held-out split; has no chance."""
    collate: str | Pad | None = None
    """How samples make a batch: `pad` (as where it is empty) fills up varying columns, `{type: pad,
    lengths: {boxes: 64}, multiple: 8}` to these lengths; `nested` makes nested tensors of them; or
    a function by import path (`mypkg.data:collate`)."""
    pack: Pack | None = None
    """`{column: tokens, length: 1024, method: concat, with: [mask]}` makes samples of one length of
    rows of many."""
    class_weights: str | dict[str, Positive] | None = None
    """`balanced` draws each class equally often, `{class: weight}` by its weight and no other; in
    the train split alone."""
    epoch_samples: Count | None = None
    """Training samples of an epoch of a mix, or under `data.class_weights`; left out, as many as
    the train splits have rows."""
    workers: str | Natural = "auto"
    """What transforms samples beside the training: `auto` (measured at the start), 0 (nothing), a
    number of threads, `threads:n` or `processes:n`. Counts in no identity."""


class Optim(Settings, frozen=True, kw_only=True):
    """The optimiser, for models without a `configure_optimizers` of their own."""

    name: Literal["sgd", "adam", "adamw"] = "adam"
    """Optimiser."""
    lr: Positive = 0.001
    """Learning rate, before any scaling."""
    weight_decay: NotNegative = 0.0
    """L2 penalty (decoupled for adamw)."""
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9
    """Momentum of sgd; the others ignore it."""
    scale_lr: bool = False
    """Multiply `optim.lr` by the world size (linear scaling rule, Goyal et al. 2017)."""


class Schedule(Settings, frozen=True, kw_only=True):
    """The learning rate over time."""

    name: Literal["constant", "linear", "cosine"] = "constant"
    """Course after the warm-up; `linear` and `cosine` end at zero."""
    warmup_steps: Natural = 0
    """Optimiser steps of linear warm-up."""


class Trainer(Settings, frozen=True, kw_only=True):
    """How long and how to train."""

    max_epochs: Count = 20
    """Passes over the train split at most."""
    accumulate: Count = 1
    """Parts into which a rank splits its share of a global batch (gradient accumulation)."""
    gradient_clip: NotNegative = 0.0
    """Largest gradient norm; 0 turns clipping off."""
    validate_every_epochs: Count = 1
    """Epochs between two validations."""


class Ddp(Settings, frozen=True, kw_only=True):
    """How `strategy: ddp` sums gradients over several ranks."""

    find_unused_parameters: bool = False
    """Allow steps that give some parameters no gradient, as a GAN's do. Costs a walk over the graph
    of each step. Left out, such a step is an error that names the parameters. Has no effect under
    `strategy: fsdp`."""


class EarlyStopping(Settings, frozen=True, kw_only=True):
    """When to stop before `trainer.max_epochs`."""

    monitor: Text = "val_loss"
    """Logged metric to watch."""
    mode: Direction = "min"
    """Whether lower or higher is better."""
    patience: Natural = 5
    """Validations without improvement before stopping; 0 turns early stopping off."""
    min_delta: NotNegative = 0.0
    """Smallest change that counts as an improvement."""
    stopping_threshold: float | None = None
    """Stop as soon as the metric is better than this."""


class Checkpoint(Settings, frozen=True, kw_only=True):
    """Which training checkpoint gives the sealed weights."""

    monitor: Text = "val_loss"
    """Logged metric that decides which weights are sealed."""
    mode: Direction = "min"
    """Whether lower or higher is better."""


class Divergence(Settings, frozen=True, kw_only=True):
    """What is done about a training loss that is NaN, infinite or too large."""

    policy: Literal["stop", "skip", "lower"] = "stop"
    """`stop` ends the training with an error; `skip` goes back to the last good training checkpoint
    and leaves out the updates of the last `divergence.window_steps` steps; `lower` goes back
    likewise and multiplies the learning rate by `divergence.factor` from there on."""
    max_loss: float | None = None
    """A training loss above it counts as diverged."""
    window_steps: Count = 1
    """Optimiser steps, the bad one the last of them, that are left out or from which the learning
    rate is lowered."""
    factor: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """What `lower` multiplies the learning rate by, each time."""
    limit: Count = 3
    """Interventions before the training ends with an error."""


class Headline(Settings, frozen=True, kw_only=True):
    """The held-out metric that ranks a run."""

    metric: Text
    """A metric of the evaluation."""
    mode: Direction
    """Whether lower or higher is better."""


class Evaluation(Settings, frozen=True, kw_only=True):
    """How the sealed model is evaluated; changing it evaluates again and retrains nothing."""

    split: Literal["test", "validation"] = "test"
    """Held-out split."""
    batch: Count = 1024
    """Samples per forward pass."""
    headline: Headline | None = None
    """`{metric: perplexity, mode: min}` ranks the run by this metric; left out, by accuracy, mse or,
    of what the model logs, `checkpoint.monitor`, else the first metric."""
    metrics: list[str | dict[str, Any]] | None = None
    """Further metrics of `forward`'s outputs and the labels, for a model without a `test_step`:
    classes of torchmetrics (`CohenKappa`), import paths, or tables `{type:
    torchmetrics.classification:MulticlassF1Score, num_classes: 10}` whose other keys are the
    constructor's arguments but for `name`, what the metric is called."""


class Environment(Settings, frozen=True, kw_only=True):
    """What a training script runs in, in the place of Shardline's own environment: one of `venv`,
    `conda`, `image` and `python`."""

    venv: Text | UnsetType = UNSET
    """Lock (requirements with a version for every package) of a virtual environment."""
    conda: Text | UnsetType = UNSET
    """Pin file (`@EXPLICIT`, URLs with SHA-256) of a conda environment."""
    image: Text | UnsetType = UNSET
    """Container image by its digest, `registry/name@sha256:...`, which has Python and NumPy."""
    python: Text | UnsetType = UNSET
    """Interpreter of an environment that is there; what is installed in it counts. Beside `venv`
    the Python version, such as `3.12`; left out, Shardline's own."""


class RunSettings(Settings, frozen=True, kw_only=True):
    """What a run computes: `defaults` of the config, and further columns of the run table."""

    nodes: Count = 1
    """Machines that train together."""
    devices: Count = 2
    """Ranks per machine, one device each (GPUs; CPU processes where there is no GPU)."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Device type; `auto` takes GPUs where there are any."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How ranks share the model; `ddp` copies it, `fsdp` shards it (FSDP2, on CPUs too; see
    docs/how-to/shard-large-models.md)."""
    ddp: Ddp = Ddp()
    elastic: bool = False
    """Where fewer ranks can be had than planned, go on with those that share the planned parts of a
    global batch evenly; the result then differs by the order of sums."""
    precision: Literal["64-true", "32-true", "bf16-mixed", "16-mixed"] = "32-true"
    """Number format of weights and compute, in Lightning's names."""
    deterministic: bool = True
    """Use only algorithms that give the same bits each time."""
    seed: Annotated[int, Meta(ge=0, le=4294967295)] = 1
    """Seed of all randomness, initial weights and sample order among it."""
    global_batch: Count = 64
    """Samples per optimiser step, over all ranks."""
    data: Data = Data()
    model_args: dict[str, Any] = {}
    """Keyword arguments of the model's constructor, such as `model_args.hidden`."""
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    trainer: Trainer = Trainer()
    early_stopping: EarlyStopping = EarlyStopping()
    checkpoint: Checkpoint = Checkpoint()
    divergence: Divergence = Divergence()
    code_files: str = ""
    """Files and patterns that the model's code reads and does not name by a literal path beside
    itself, separated by spaces (`conf/*.yaml data/vocab.txt`); their bytes count in the
    identity."""
    uncounted_args: str = ""
    """Keys of `model_args`, separated by spaces (`cache_dir data_root`), whose values may be paths and do
    not count by what lies there. Counts in no identity."""
    environment: str | Environment = ""
    """Environment of a training script: a key of `environments`, or a table such as `{venv:
    requirements.lock}`; empty: Shardline's own. Its packages count in the identity, and no path."""
    evaluation: Evaluation = Evaluation()


class FixedColumns(Settings, frozen=True, kw_only=True):
    """The columns that every run table has; any further one is a dotted key of the settings."""

    name: RowName
    """Name of the run; a grid appends its varying keys."""
    dataset: Text | Mix
    """A key of `datasets` or of `mixes` in config.yaml, or the weights of a mix, `{web: 0.7, books:
    0.3}`."""
    model: Text
    """A shipped model (`linear`, `mlp`, `cnn`, `resnet`, `gpt`, `unet`, `hf:...`; see
    docs/how-to/use-a-shipped-model.md), a LightningModule by import path (`mypkg.models:Net`), or
    any training program (`script: path/to/train.py args...`)."""


@cache
def default_settings() -> dict[str, object]:
    """Return the defaults of a run's settings by dotted key."""
    return flatten(to_builtins(RunSettings()))
