"""Settings of a run, and their defaults."""

from functools import cache
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType, to_builtins

from shardline.config.settings import (
    Count,
    Mix,
    Natural,
    NotNegative,
    Plain,
    Positive,
    RowName,
    Settings,
    Text,
)
from shardline.config.settings.optim_settings import Optim, Schedule
from shardline.core.nested import flatten

Direction = Literal["min", "max"]


class Pack(Settings, frozen=True, kw_only=True, rename={"with_": "with"}):
    """Packing: samples of one length, made from rows of different lengths."""

    column: Text
    """Column of varying length whose values are packed."""
    length: Count
    """Number of values in a sample."""
    method: Literal["concat", "best_fit"] = "concat"
    """`concat` concatenates the rows and cuts them into blocks. `best_fit` keeps rows whole and
    combines them so that little padding is needed."""
    with_: Annotated[list[Text], Meta(extra={"unique": True})] = []
    """Further columns that are packed the same way, such as a loss mask beside tokens. Each must have
    as many values per row as `column`."""


class Pad(Settings, frozen=True, kw_only=True):
    """How columns of varying length are padded with zeros."""

    type: Literal["pad"]
    """Always `pad`."""
    lengths: dict[str, Count] = {}
    """Padded length by column. Other columns are padded to the longest sample of the global batch."""
    multiple: Count = 1
    """Round all other lengths up to a multiple of this number."""

    @classmethod
    def fits(cls, table: Plain) -> bool:
        """Return whether the table is of padding, and not of an object."""
        return table.get("type") == "pad"


class Data(Settings, frozen=True, kw_only=True):
    """How samples reach the model."""

    normalize: Literal["standard", "global", "none", "raw"] = "standard"
    """`standard` subtracts the mean of the train split and divides by its standard deviation, per
    feature (for tables). `global` uses one mean and deviation for all features (for images, whose
    border pixels hardly vary). `none` gives the model the features as floating point numbers. `raw` does the same,
    but leaves integers, such as tokens, in their type."""
    window_bytes: Count = 268435456
    """Size in bytes of the window of samples in memory; the next window is read ahead. Rows are
    shuffled within a window."""
    streams: Count = 1
    """Number of shard sequences; each global batch takes equal shares of them. 1: every rank reads
    every shard (one copy in memory per node). The number of ranks: each rank reads only its own
    shards (for several nodes or remote storage)."""
    epoch: Literal["pass", "partition"] = "pass"
    """`pass`: an epoch is a pass over the train split. `partition`: an epoch is the next
    `data.partition_shards` shards, to validate more often."""
    partition_shards: Count = 1
    """Number of shards in an epoch with `data.epoch=partition`."""
    last_batch: Literal["drop", "pad"] = "drop"
    """What happens to the last, partial global batch of an epoch. `drop` skips its rows, which differ
    from epoch to epoch. `pad` fills the batch up and adds weights to each batch as its third part
    (0 for padding)."""
    transform: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """Transform of each training sample: a shipped transform, a class by import path
    (`mypkg.data:Augment`), or a table `{type: mypkg.data:Augment, size: 224}` with arguments of the
    constructor. A list of these is applied in order."""
    eval_transform: str | dict[str, Any] | list[str | dict[str, Any]] | None = None
    """Transform of each sample of a held-out split, without randomness."""
    collate: str | Annotated[dict[str, Any], Meta(extra={"tables": (Pad,)})] | None = None
    """How samples become a batch. `pad` (the default) pads columns of varying length, `{type: pad,
    lengths: {boxes: 64}, multiple: 8}` pads them to given lengths, and `nested` makes nested
    tensors. `tuple` gives the model a tuple of the columns in order instead of a dict. Or a function
    by import path (`mypkg.data:collate`), or a table `{type: mypkg.data:Collate, length: 64}` of a class
    whose object is called."""
    pack: Pack | None = None
    """Packs rows of different lengths into samples of one length, for example `{column: tokens,
    length: 1024, method: concat, with: [mask]}`."""
    class_weights: str | dict[str, Positive] | None = None
    """`balanced` draws each class equally often. `{class: weight}` draws the listed classes by weight,
    and no others. Only for the train split."""
    epoch_samples: Count | None = None
    """Number of training samples in an epoch of a mix, or with `data.class_weights`. Default: the
    number of rows of the train splits."""
    workers: str | Natural = "auto"
    """Workers that transform samples during training: `auto` (measured at the start), 0 (none), a
    number of threads, `threads:n` or `processes:n`. Does not count in the identity."""


Limit = Annotated[
    Annotated[int, Meta(gt=0)] | Annotated[float, Meta(gt=0)], Meta(extra={"legacy_value": 1.0})
]
_Off = Annotated[bool, Meta(extra={"legacy_value": False})]


class Compile(Settings, frozen=True, kw_only=True):
    """Arguments of `torch.compile`."""

    mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
        | UnsetType
    ) = UNSET
    """What the compiler optimises for."""
    dynamic: bool | UnsetType = UNSET
    """Compile for shapes that vary. Default: once a second shape was seen."""
    fullgraph: bool | UnsetType = UNSET
    """Reject a model that cannot be compiled whole."""
    backend: Text | UnsetType = UNSET
    """Compiler, such as `eager`. Default: `inductor`."""


class Trainer(Settings, frozen=True, kw_only=True):
    """How long and how to train."""

    max_epochs: Annotated[int, Meta(ge=-1)] = 20
    """Maximum number of passes over the train split; -1: no maximum, with `trainer.max_steps`."""
    min_epochs: Annotated[Natural, Meta(extra={"legacy_value": 0})] = 0
    """Number of epochs before which neither early stopping nor the model ends the training."""
    max_steps: Annotated[int, Meta(ge=-1, extra={"legacy_value": -1})] = -1
    """Optimiser step at which the training ends, with a validation; -1: after `trainer.max_epochs`."""
    min_steps: Annotated[Natural, Meta(extra={"legacy_value": 0})] = 0
    """Number of optimiser steps before which neither early stopping nor the model ends the training."""
    accumulate: Count = 1
    """Parts into which a rank splits its share of a global batch (gradient accumulation)."""
    gradient_clip: NotNegative = 0.0
    """Maximum gradient norm or value; 0 disables clipping."""
    gradient_clip_algorithm: Annotated[
        Literal["norm", "value"], Meta(extra={"legacy_value": "norm"})
    ] = "norm"
    """Whether `trainer.gradient_clip` limits the norm of all gradients or each value."""
    validate_every_epochs: Count = 1
    """Number of epochs between two validations."""
    val_check_interval: Limit = 1.0
    """Optimiser steps between two validations within an epoch, or a share of the epoch such as 0.25."""
    limit_train_batches: Limit = 1.0
    """Optimiser steps of an epoch, or a share of them such as 0.1. Each epoch begins as without a limit."""
    limit_val_batches: Limit = 1.0
    """Part of the validation split that a validation reads, from its first row: a number of batches of
    `global_batch` rows, or a share such as 0.1."""
    overfit_batches: Annotated[
        Natural | Annotated[float, Meta(ge=0)], Meta(extra={"legacy_value": 0})
    ] = 0
    """For debugging: train on the same first steps in each epoch, and validate on as many batches. A
    number, or a share such as 0.01; 0 turns it off."""
    sync_batchnorm: _Off = False
    """Compute the statistics of batch norms over all ranks. Needs GPUs and `strategy: ddp`."""
    benchmark: _Off = False
    """Let cuDNN choose its algorithms by measuring them. Needs `deterministic: false`."""
    inference_mode: Annotated[bool, Meta(extra={"legacy_value": True})] = True
    """Evaluate without the records of autograd. Turn it off if `validation_step` or `test_step` computes
    gradients."""
    compile: Annotated[bool | Compile, Meta(extra={"legacy_value": False})] = False
    """Compile the model with `torch.compile`: true, or a table such as `{mode: max-autotune}`."""


class Ddp(Settings, frozen=True, kw_only=True):
    """How `strategy: ddp` sums gradients over several ranks."""

    find_unused_parameters: bool = False
    """Allow steps that give some parameters no gradient, as in a GAN. Costs a walk over the graph in
    each step. Without it, such a step is an error that names the parameters. Has no effect with
    `strategy: fsdp`."""
    static_graph: _Off = False
    """Promise that each step uses the same parameters, for models that checkpoint activations more than
    once. Has no effect with `strategy: fsdp`."""


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


class Milestones(Settings, frozen=True, kw_only=True):
    """Optimiser steps after which training checkpoints stay."""

    steps: list[Count]
    """Numbers of optimiser steps, such as `[1000, 2000]`."""


class Checkpoint(Settings, frozen=True, kw_only=True):
    """Choice of the training checkpoint whose weights are sealed, and of those that stay."""

    monitor: Text = "val_loss"
    """Logged metric that decides which weights are sealed."""
    mode: Direction = "min"
    """Whether lower or higher is better."""
    milestones: Annotated[list[Count] | Milestones, Meta(extra={"legacy_value": []})] = []
    """Epochs after which the training checkpoint stays, such as `[10, 20]`, or a table `{steps: [1000, 2000]}`. Other
    runs may begin from them. Does not count in the identity."""
    keep_last: _Off = False
    """Keep the last training checkpoint of the sealed run, whatever `runtime.checkpoint.after_sealing` says. Does not
    count in the identity."""


class Divergence(Settings, frozen=True, kw_only=True):
    """Response to a training loss that is NaN, infinite or too large."""

    policy: Literal["stop", "skip", "lower"] = "stop"
    """`stop` ends the training with an error. `skip` returns to the last good training checkpoint and
    skips the updates of the last `divergence.window_steps` steps. `lower` also returns to it, and
    multiplies the learning rate by `divergence.factor` from there on."""
    max_loss: float | None = None
    """Training losses above this value count as diverged."""
    window_steps: Count = 1
    """Number of optimiser steps, up to and including the bad one, that `skip` skips or at which
    `lower` begins."""
    factor: Annotated[float, Meta(gt=0, lt=1)] = 0.5
    """Factor by which `lower` multiplies the learning rate each time."""
    limit: Count = 3
    """Number of interventions before the training ends with an error."""


class Headline(Settings, frozen=True, kw_only=True):
    """The held-out metric that ranks a run."""

    metric: Text
    """A metric of the evaluation."""
    mode: Direction
    """Whether lower or higher is better."""


class Evaluation(Settings, frozen=True, kw_only=True):
    """Evaluation of the sealed model. A change evaluates again, without training again."""

    split: Literal["test", "validation"] = "test"
    """Held-out split to evaluate on."""
    batch: Count = 1024
    """Samples per forward pass."""
    limit_test_batches: Limit = 1.0
    """Part of the split to evaluate on, from its first row: a number of batches of `evaluation.batch`
    rows, or a share such as 0.1. For debugging."""
    headline: Headline | None = None
    """Metric that ranks the run, such as `{metric: perplexity, mode: min}`. Default: accuracy, mse, r2 of
    several numbers or f1_macro of flags, or of the metrics that the model logs `checkpoint.monitor`, else
    the first."""
    metrics: list[str | dict[str, Any]] | None = None
    """Further metrics of the outputs of `forward` and the labels, for a model without a `test_step`:
    classes of torchmetrics (`CohenKappa`), import paths, or tables such as `{type:
    torchmetrics.classification:MulticlassF1Score, num_classes: 10}`. Keys beside `type` are
    arguments of the constructor, except `name`, the name of the metric."""


class Init(Settings, frozen=True, kw_only=True):
    """How the weights of `init_from` become those of the model."""

    rename: Annotated[dict[str, str] | None, Meta(extra={"legacy_value": None})] = None
    """New beginnings of names by old ones, such as `{"encoder.": "backbone."}`."""
    ignore: Annotated[list[Text], Meta(extra={"legacy_value": [], "unique": True})] = []
    """Patterns of names of the model that keep their initial values, such as `["head.*"]`."""
    strict: Annotated[bool, Meta(extra={"legacy_value": True})] = True
    """Reject weights that are missing, unexpected or of another shape. `false` lists them in log and record."""
    part: Annotated[str, Meta(extra={"legacy_value": ""})] = ""
    """Key of the weights in a checkpoint that has several sets of weights, such as `model_ema`."""


class Environment(Settings, frozen=True, kw_only=True):
    """Environment of a training script, instead of Shardline's own: one of `venv`, `conda`, `image` and
    `python`."""

    venv: Text | UnsetType = UNSET
    """Lock file of a virtual environment: requirements with a version for every package."""
    conda: Text | UnsetType = UNSET
    """Pin file (`@EXPLICIT`, URLs with SHA-256) of a conda environment."""
    image: Text | UnsetType = UNSET
    """Container image by digest, `registry/name@sha256:...`. It must contain Python and NumPy."""
    python: Text | UnsetType = UNSET
    """Interpreter of an existing environment, whose installed packages count. Beside `venv`: the Python
    version, such as `3.12`; default: that of Shardline."""


class Average(Settings, frozen=True, kw_only=True):
    """An average of sealed weights."""

    of: Annotated[list[Text], Meta(min_length=1, extra={"unique": True})] | Text
    """Runs whose weights are averaged, such as `[run:a, run:b]`, or a key of `sweeps` for its finished trials."""
    best: Count | UnsetType = UNSET
    """Of a sweep, the number of trials with the best validation metric. Default: all."""
    greedy: Annotated[Literal["validation"] | None, Meta(extra={"legacy_value": None})] = None
    """`validation` adds a run only if the average does not get worse on the validation split, by
    `checkpoint.monitor`, and tries the best run first. Default: the average of all runs."""


class Ensemble(Settings, frozen=True, kw_only=True):
    """An average of the outputs of sealed models."""

    of: Annotated[list[Text], Meta(min_length=1, extra={"unique": True})] | Text
    """Runs whose outputs are averaged, such as `[run:a, run:b]`, or a key of `sweeps` for its finished trials."""
    best: Count | UnsetType = UNSET
    """Of a sweep, the number of trials with the best validation metric. Default: all."""
    outputs: Annotated[
        Literal["probabilities", "logits"], Meta(extra={"legacy_value": "probabilities"})
    ] = "probabilities"
    """Outputs of a classifier that are averaged. Of numbers, the values are averaged."""


_Runs = Annotated[list[Text], Meta(min_length=1, extra={"unique": True})]


class RunSettings(Settings, frozen=True, kw_only=True):
    """Settings of a run: `defaults` in the config, and further columns of the run table."""

    nodes: Count = 1
    """Machines that train together."""
    devices: Count = 2
    """Ranks per machine, one device each (GPUs; CPU processes where there is no GPU)."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Device type; `auto` uses GPUs if the machine has any."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """`ddp` copies the model to each rank. `fsdp` shards it (FSDP2, also on CPUs; see
    docs/how-to/shard-large-models.md)."""
    ddp: Ddp = Ddp()
    elastic: bool = False
    """Train on fewer ranks than planned if fewer are available, as many as divide the planned parts of
    a global batch evenly. The result then differs by the order of sums."""
    precision: Literal["64-true", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true"] = (
        "32-true"
    )
    """Number format of weights and compute, by its name in Lightning."""
    deterministic: bool = True
    """Use only deterministic algorithms."""
    seed: Annotated[int, Meta(ge=0, le=4294967295)] = 1
    """Seed of all randomness, including initial weights and sample order."""
    fold: Annotated[Literal["all"] | Natural | None, Meta(extra={"legacy_value": None})] = None
    """Fold of the dataset to test on, from 0, if the dataset has `splits.folds`. `all` is a grid of all
    folds: a run for each."""
    global_batch: Count = 64
    """Samples per optimiser step, over all ranks."""
    data: Data = Data()
    model_args: dict[str, Any] = {}
    """Keyword arguments of the constructor of the model, such as `model_args.hidden`."""
    optim: Optim = Optim()
    schedule: Schedule = Schedule()
    freeze: Annotated[list[Text], Meta(extra={"legacy_value": [], "unique": True})] = []
    """Patterns of names of parameters that are not trained, such as `["backbone.*"]`. Running statistics
    of frozen layers still change. A pattern without a match is an error."""
    trainer: Trainer = Trainer()
    early_stopping: EarlyStopping = EarlyStopping()
    checkpoint: Checkpoint = Checkpoint()
    divergence: Divergence = Divergence()
    callbacks: Annotated[list[str | dict[str, Any]], Meta(extra={"legacy_value": []})] = []
    """Callbacks of the training: Lightning's by name (`LearningRateMonitor`), your own by import path
    (`mypkg.callbacks:EMA`), or tables such as `{type: mypkg.callbacks:EMA, decay: 0.999}` with
    arguments of the constructor. Their code counts in the identity. See docs/how-to/set-the-trainer.md."""
    init_from: Annotated[Text | None, Meta(extra={"legacy_value": None})] = None
    """What the training begins from: `run:base` (the sealed weights of another run, by its name or identity),
    `run:base@last` (those of its last step), `file:weights.safetensors` (or `.pt`, `.ckpt`), or `hf:FOLDER` of a
    model of transformers. Its identity counts, not its name."""
    init: Init = Init()
    code_files: str = ""
    """Files that the code of the model reads, other than by a literal path beside itself. Paths and
    patterns, separated by spaces (`conf/*.yaml data/vocab.txt`). Their bytes count in the
    identity."""
    uncounted_args: str = ""
    """Keys of `model_args`, separated by spaces (`cache_dir data_root`), whose values may be paths to
    files that do not count in the identity. The setting itself does not count either."""
    environment: str | Environment = ""
    """Environment of a training script: a key of `environments`, or a table such as `{venv:
    requirements.lock}`. Empty: that of Shardline. Its packages count in the identity, not paths."""
    average: Annotated[_Runs | Average | None, Meta(extra={"legacy_value": None})] = None
    """Average the sealed weights of other runs instead of a training: a list such as `[run:a, run:b]`, or
    a table `{of: [run:a, run:b], greedy: validation}`. Only in the run table. See
    docs/how-to/average-runs.md."""
    ensemble: Annotated[_Runs | Ensemble | None, Meta(extra={"legacy_value": None})] = None
    """Average the outputs of other runs' sealed models instead of a training: a list such as `[run:a,
    run:b]`, or a table `{of: [run:a, run:b], outputs: logits}`. Only in the run table."""
    evaluation: Evaluation = Evaluation()

    @property
    def combined(self) -> Average | Ensemble | None:
        """The average or ensemble that takes the place of a training."""
        if isinstance(self.average, list):
            return Average(of=self.average)
        if isinstance(self.ensemble, list):
            return Ensemble(of=self.ensemble)
        return self.average or self.ensemble

    @property
    def tested_fold(self) -> int | None:
        """The fold to test on; `all` is already resolved."""
        return self.fold if isinstance(self.fold, int) else None


class FixedColumns(Settings, frozen=True, kw_only=True):
    """Columns that every run table has. Each further column is a dotted key of the settings."""

    name: RowName
    """Name of the run. A grid appends the keys that it varies."""
    dataset: Text | Mix
    """A key of `datasets` or of `mixes` in config.yaml, or the weights of a mix, `{web: 0.7, books:
    0.3}`."""
    model: Text
    """A shipped model (`linear`, `mlp`, `tabular`, `cnn`, `resnet`, `gpt`, `unet`, `hf:...`; see
    docs/how-to/use-a-shipped-model.md), a LightningModule by import path (`mypkg.models:Net`), or
    any training program (`script: path/to/train.py args...`)."""


@cache
def default_settings() -> dict[str, object]:
    """Return the default settings of a run by dotted key."""
    return flatten(to_builtins(RunSettings()))
