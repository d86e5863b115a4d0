"""Result versions: how Shardline's own code and its packages count in an identity.

An identity does not contain the text of Shardline's code, so a refactoring makes no result stale. It
contains a number for each stage, shipped model and shipped source: how often its results changed,
as recorded in the histories below. They begin with version 0.1.0. CONTRIBUTING.md explains when to add
a line.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]


def _always(_: Settings) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class ResultVersion:
    """Line of a history.

    Attributes:
        changed: change that gives other results, as `shardline why` prints it.
        applies_to: predicate of resolved settings: whether their results changed. The settings are a
            run's (`settings["strategy"]`); for `data` and sources a dataset's (`source`, `shards`,
            `splits`); for `report` the report's.
    """

    changed: str
    applies_to: Callable[[Settings], bool] = _always


History = tuple[ResultVersion, ...]
_FIRST: History = (ResultVersion(changed="first version"),)

# How often all histories started again with only their first lines. A new number makes every result of
# every user stale; no version was released before number 1. `tests/guard` compares values since the
# commit that set this number.
EPOCH = 1

DATA: History = _FIRST
TRAINING: History = (
    *_FIRST,
    ResultVersion(
        changed="metrics of weights of 16 bits are summed in 32 bits",
        applies_to=lambda run: run["precision"] in ("bf16-true", "16-true"),
    ),
)
EVALUATION: History = _FIRST
PREDICTION: History = _FIRST
REPORT: History = _FIRST
# inputs of a training script, and the results made from its output files
SCRIPT: History = _FIRST

# samples that a training script reads through shardline_io: their order, decoding and collation
IO: History = _FIRST

# models of transformers, with the module that trains each
_HUB = {
    "hf:AutoModelForCausalLM": "hf_causal_lm",
    "hf:AutoModelForSequenceClassification": "hf_sequence_classification",
    "hf:AutoModelForTokenClassification": "hf_token_classification",
    "hf:AutoModelForMaskedLM": "hf_masked_lm",
    "hf:AutoModelForImageClassification": "hf_image_classification",
}
# this statement contains the lines of each model; `tests/guard/bumps.py` follows its commits
MODELS: dict[str, History] = dict.fromkeys(
    ("linear", "mlp", "cnn", "resnet", "gpt", "unet", "tabular", *_HUB), _FIRST
)
SOURCES: dict[str, History] = dict.fromkeys(
    (
        "csv", "delta", "digits", "hdf5", "hf", "idx", "image_folder", "jsonl", "litdata", "mds", "numpy", "parquet",
        "synthetic", "text", "webdataset",
    ),
    _FIRST,
)  # fmt: skip

# the samples that a model describes, besides the values that its `test_step` logs
SAMPLES: History = _FIRST

# losses that user code calls
LOSSES: History = _FIRST

# rows of torch datasets and data modules
PYTHON: History = _FIRST

# tokens of sources with a tokenizer file
TOKENIZER: History = _FIRST
# preprocessing of tables: fitted values, and the features that are made of them
PREPROCESS: History = _FIRST
# base class of the shipped models, if user code derives from it
CLASSIFIER: History = _FIRST


# shipped transforms of samples
TRANSFORMS: History = _FIRST

HISTORIES: dict[str, History] = {
    "data": DATA,
    "training": TRAINING,
    "evaluation": EVALUATION,
    "prediction": PREDICTION,
    "report": REPORT,
    "script": SCRIPT,
    "io": IO,
    "classifier": CLASSIFIER,
    "samples": SAMPLES,
    "losses": LOSSES,
    "python": PYTHON,
    "preprocess": PREPROCESS,
    "tokenizer": TOKENIZER,
    "transforms": TRANSFORMS,
    **MODELS,
    **SOURCES,
}

# Modules of Shardline that count by a result version if user code reaches them, with the name of the
# history; empty if the module decides no value. All other code of Shardline that user code reaches
# counts like user code.
PUBLIC: dict[str, str] = {
    "shardline": "",
    "shardline_io": "",  # `io` only if user code imports it, since Shardline's modules import it too
    "shardline.core.errors": "",
    "shardline.errors": "",
    "shardline.data.ledger": "",
    "shardline.ledger": "",
    "shardline.projects": "",
    "shardline.notebook": "",
    "shardline.losses": "losses",
    "shardline.training.losses": "losses",
    "shardline.training.models": "",
    "shardline.models": "classifier",
    "shardline.training.models.classifier_base": "classifier",
    "shardline.data.sources": "data",
    "shardline.sources": "data",
    "shardline.transforms": "transforms",
    "shardline.data.transforms": "transforms",
    "shardline.data.transforms.compose": "transforms",
    "shardline.data.transforms.image_transforms": "transforms",
    "shardline.data.sources.source": "data",
    "shardline.data.splits": "data",
    **{f"shardline.training.models.{_HUB.get(name, name)}": name for name in MODELS},
    **{f"shardline.data.sources.{name}": name for name in SOURCES},
}

# Names in public modules that are shipped models, each with a history of its own.
EXPORTED: dict[str, str] = {
    f"shardline.models.{name}": name.lower() for name in ("GPT", "ResNet", "UNet")
}

# Packages, by import name, that decide a value of the results of a stage, model or source. They are
# listed here, not read from imports, so that a new import in Shardline makes nothing stale.
# `tests/unit/identity/test_result_versions.py` compares the lists with the imports, and gives a reason
# for each imported package that is not listed.
_TORCH = ("numpy", "pytorch_lightning", "torch")
PACKAGES: dict[str, tuple[str, ...]] = {
    "data": ("numpy",),
    "training": (*_TORCH, "lightning_fabric", "safetensors", "torchmetrics"),
    "evaluation": (*_TORCH, "safetensors"),
    "prediction": (*_TORCH, "safetensors"),
    "report": ("altair", "detect_secrets", "jinja2", "numpy", "scipy"),
    "script": (),
    "io": ("numpy",),
    "samples": (*_TORCH, "safetensors"),
    "classifier": ("pytorch_lightning", "torch", "torchmetrics"),
    "transforms": ("PIL", "numpy", "simplejpeg", "torch"),
    **dict.fromkeys(MODELS, ("pytorch_lightning", "torch", "torchmetrics")),
    **dict.fromkeys(("gpt", "resnet", "tabular", "unet"), (*_TORCH, "torchmetrics")),
    **dict.fromkeys(_HUB, (*_TORCH, "torchmetrics", "transformers")),
    "csv": ("numpy", "pyarrow"),
    "delta": ("deltalake", "numpy", "pyarrow"),
    "digits": ("numpy", "sklearn"),
    "hdf5": ("h5py", "numpy", "pyarrow"),
    "hf": ("numpy", "pyarrow"),
    "idx": ("numpy",),
    "image_folder": ("PIL", "numpy"),
    "jsonl": ("numpy",),
    "litdata": ("numpy", "pyarrow"),
    "mds": ("numpy", "pyarrow"),
    "numpy": ("numpy", "pyarrow"),
    "parquet": ("numpy", "pyarrow"),
    "synthetic": ("numpy",),
    "text": ("numpy",),
    "losses": ("torch",),
    "webdataset": ("numpy",),
    "python": ("PIL", "numpy"),
    "preprocess": ("numpy", "sklearn"),
    "tokenizer": ("numpy", "tokenizers"),
}


def version_of(history: History, settings: Settings) -> int:
    """Return the number, from 1, of the newest line of a history that applies to some settings."""
    numbers = (
        number for number in range(len(history), 0, -1) if history[number - 1].applies_to(settings)
    )
    return next(numbers, 0)


def versions_of(
    names: Iterable[str], settings: Settings, reached: Iterable[str] = ()
) -> dict[str, int]:
    """Return the versions of histories by name, as an identity document contains them.

    Args:
        names: histories of the stage and of the shipped class that runs in it.
        settings: resolved settings for the predicates of their lines.
        reached: histories that user code reaches; every line counts, since user code may use settings
            that the predicates do not know.
    """
    found = {name: len(HISTORIES[name]) for name in reached}
    found |= {name: version_of(HISTORIES[name], settings) for name in names}
    return dict(sorted(found.items()))


def changes_between(name: str, old: int, new: int) -> list[str]:
    """Return the changes of a history between two versions."""
    lines = HISTORIES.get(name, ())[min(old, new) : max(old, new)]
    return [line.changed for line in lines]


def exported_by(names: Iterable[str]) -> set[str]:
    """Return the histories of the shipped models that code refers to.

    Args:
        names: dotted names that the code refers to; a module as a value refers to all its models.
    """
    found = set()
    for name in names:
        found |= {
            history for known, history in EXPORTED.items() if f"{name}.".startswith(f"{known}.")
        }
        if name in {known.rpartition(".")[0] for known in EXPORTED}:
            found |= set(EXPORTED.values())
    return found


def is_public(dotted: str) -> bool:
    """Return whether a dotted name of Shardline counts by its result version in user code, not by its code.

    Args:
        dotted: a module, or a name in a module.
    """
    parent = dotted.rpartition(".")[0]
    if dotted.partition(".")[0] == "shardline_io":  # the whole package, by the history `io`
        return True
    return dotted in PUBLIC or (parent != "shardline" and parent in PUBLIC)
