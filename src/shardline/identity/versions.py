"""Result versions: which of Shardline's own code counts in an identity, and which packages.

Shardline's code does not count by its text, so a refactoring makes no result stale. What counts
is a number for each stage, shipped model and shipped source: how often its results changed, as
the histories below record. CONTRIBUTING.md explains when a line is added.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

Settings = Mapping[str, Any]


def _always(_: Settings) -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class ResultVersion:
    """One line of a history.

    Attributes:
        changed: what gives other results since then, as `shardline why` prints it.
        applies_to: whether results of these settings changed. The settings are resolved ones: a
            run's (`settings["strategy"]`), of `data` and of sources a dataset's (`source`,
            `shards`, `splits`), of `report` the report's.
    """

    changed: str
    applies_to: Callable[[Settings], bool] = _always


History = tuple[ResultVersion, ...]
_FIRST: History = (ResultVersion(changed="first version"),)

# How often all histories have started again, each with its first line alone. No version was released
# before the first number: a later one would make every result of every user stale. `tests/guard`
# compares values from the commit on in which the present number came.
EPOCH = 1

DATA: History = _FIRST
TRAINING: History = _FIRST
EVALUATION: History = _FIRST
PREDICTION: History = _FIRST
REPORT: History = _FIRST
# what a training script is given, and what is made of the files that it leaves
SCRIPT: History = _FIRST

# what a training script gets from shardline_io: samples in their order, decoded and put together
IO: History = _FIRST

# those of transformers, by the module that trains them
_HUB = {
    "hf:AutoModelForCausalLM": "hf_causal_lm",
    "hf:AutoModelForSequenceClassification": "hf_sequence_classification",
    "hf:AutoModelForTokenClassification": "hf_token_classification",
    "hf:AutoModelForMaskedLM": "hf_masked_lm",
    "hf:AutoModelForImageClassification": "hf_image_classification",
}
# each model's lines stand in this statement, whose commits `tests/guard/bumps.py` follows
MODELS: dict[str, History] = dict.fromkeys(
    ("linear", "mlp", "cnn", "resnet", "gpt", "unet", *_HUB), _FIRST
)
SOURCES: dict[str, History] = dict.fromkeys(
    (
        "csv", "delta", "digits", "hf", "idx", "image_folder", "jsonl", "litdata", "mds", "parquet", "synthetic",
        "text", "webdataset",
    ),
    _FIRST,
)  # fmt: skip

# the samples that a model describes, beside what its `test_step` logs
SAMPLES: History = _FIRST

# the losses that a user's model calls
LOSSES: History = _FIRST

# the tokens of sources that name a tokenizer's file
TOKENIZER: History = _FIRST
# the base class of the shipped models, where a user derives from it
CLASSIFIER: History = _FIRST


# the shipped transforms of samples
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
    "tokenizer": TOKENIZER,
    "transforms": TRANSFORMS,
    **MODELS,
    **SOURCES,
}

# The modules of Shardline that count by a version where a user's code reaches them, with the name
# of its history; empty where they decide no value. All else of Shardline that a user's code
# reaches counts as if the user had written it.
PUBLIC: dict[str, str] = {
    "shardline": "",
    "shardline_io": "",  # `io` where the user's own modules import it: those of Shardline do as well
    "shardline.core.errors": "",
    "shardline.errors": "",
    "shardline.data.ledger": "",
    "shardline.ledger": "",
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

# Names of these modules that are a shipped model, which counts by its own history.
EXPORTED: dict[str, str] = {
    f"shardline.models.{name}": name.lower() for name in ("GPT", "ResNet", "UNet")
}

# The packages, by import name, that decide a value of what a stage, model or source makes. They
# are listed and not read from imports, so that an import added to Shardline makes nothing stale;
# `tests/unit/identity/test_result_versions.py` compares the lists with the imports, and lists why a
# package that is imported is not here.
_TORCH = ("numpy", "pytorch_lightning", "torch")
PACKAGES: dict[str, tuple[str, ...]] = {
    "data": ("numpy",),
    "training": (*_TORCH, "lightning_fabric", "safetensors", "torchmetrics"),
    "evaluation": (*_TORCH, "safetensors"),
    "prediction": (*_TORCH, "safetensors"),
    "report": ("altair", "detect_secrets", "jinja2", "numpy", "scipy", "vl_convert"),
    "script": (),
    "io": ("numpy",),
    "samples": (*_TORCH, "safetensors"),
    "classifier": ("pytorch_lightning", "torch", "torchmetrics"),
    "transforms": ("PIL", "numpy", "simplejpeg", "torch"),
    **dict.fromkeys(MODELS, ("pytorch_lightning", "torch", "torchmetrics")),
    **dict.fromkeys(("gpt", "resnet", "unet"), (*_TORCH, "torchmetrics")),
    **dict.fromkeys(_HUB, (*_TORCH, "torchmetrics", "transformers")),
    "csv": ("numpy", "pyarrow"),
    "delta": ("deltalake", "numpy", "pyarrow"),
    "digits": ("numpy", "sklearn"),
    "hf": ("numpy", "pyarrow"),
    "idx": ("numpy",),
    "image_folder": ("PIL", "numpy"),
    "jsonl": ("numpy",),
    "litdata": ("numpy", "pyarrow"),
    "mds": ("numpy", "pyarrow"),
    "parquet": ("numpy", "pyarrow"),
    "synthetic": ("numpy",),
    "text": ("numpy",),
    "losses": ("torch",),
    "webdataset": ("numpy",),
    "tokenizer": ("numpy", "tokenizers"),
}


def version_of(history: History, settings: Settings) -> int:
    """Return the number, from 1, of the newest line of a history that concerns these settings."""
    numbers = (
        number for number in range(len(history), 0, -1) if history[number - 1].applies_to(settings)
    )
    return next(numbers, 0)


def versions_of(
    names: Iterable[str], settings: Settings, reached: Iterable[str] = ()
) -> dict[str, int]:
    """Return the versions of some histories, by name, as an identity document holds them.

    Args:
        names: histories of the stage and of the shipped class that runs in it.
        settings: what their predicates are asked about.
        reached: histories that a user's code reaches, of which any line may concern it: its
            settings are not those that the predicates know.
    """
    found = {name: len(HISTORIES[name]) for name in reached}
    found |= {name: version_of(HISTORIES[name], settings) for name in names}
    return dict(sorted(found.items()))


def changes_between(name: str, old: int, new: int) -> list[str]:
    """Return what a history tells of the lines behind one version, up to another one."""
    lines = HISTORIES.get(name, ())[min(old, new) : max(old, new)]
    return [line.changed for line in lines]


def exported_by(names: Iterable[str]) -> set[str]:
    """Return the histories of the shipped models that code names, whichever one where it has their module as a value.

    Args:
        names: dotted names that the code refers to.
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
    """Return whether user code that imports a dotted name counts it by result version, not by its code.

    Args:
        dotted: a module, or a module and a name in it.
    """
    parent = dotted.rpartition(".")[0]
    if dotted.partition(".")[0] == "shardline_io":  # all of it, by the history `io`
        return True
    return dotted in PUBLIC or (parent != "shardline" and parent in PUBLIC)
