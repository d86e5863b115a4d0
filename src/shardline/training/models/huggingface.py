"""Models of Hugging Face's transformers: made from a config or from a folder of the project, never downloaded."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean
from shardline.training.models.inputs import SampleColumns, column_of

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def make_hub_model(
    head: str, config: Mapping[str, Any] | str | None, pretrained: str | None, **overrides: Any
) -> Any:
    """Return a model of transformers: with random weights of a config, or with those of a folder.

    Args:
        head: a class such as `AutoModelForCausalLM`.
        config: a table with `model_type`, or a folder of the project with a `config.json`.
        pretrained: a folder of the project with a `config.json` and the weights.
        overrides: values of the config that the dataset decides, where the config does not name them.

    Raises:
        ConfigError: transformers is not installed, not exactly one of `config` and `pretrained` is
            given, there is no such folder, or the config fits no such model.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"model=hf:{head} needs the package transformers, which is not installed here; pip install "
            "'shardline[huggingface]', and name it in the project's lock"
        )
    if (config is None) == (pretrained is None):
        found = "neither" if config is None else "both"
        raise ConfigError(
            f"model=hf:{head} has {found} of model_args.config and model_args.pretrained, expected one: give "
            "model_args.config.model_type and the model's sizes beside it, or a folder in model_args.pretrained"
        )
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # each rank would report what it loads
    transformers.logging.disable_progress_bar()
    known, where = _config(config, pretrained, overrides)
    auto = getattr(transformers, head)
    try:
        if pretrained is None:
            return auto.from_config(known, dtype=torch.float32, trust_remote_code=False)
        return auto.from_pretrained(
            pretrained, config=known, local_files_only=True, trust_remote_code=False,
            use_safetensors=True, dtype=torch.float32,
        )  # fmt: skip
    except (OSError, TypeError, ValueError, KeyError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"{where} fits no {head} ({_first_line(error)}); change the config, or name another head in "
            "the column `model`"
        ) from None


def _config(
    config: Mapping[str, Any] | str | None, pretrained: str | None, overrides: Mapping[str, Any]
) -> tuple[Any, str]:
    """Return the config of a model, and the key that gave it."""
    from transformers import AutoConfig

    if isinstance(config, Mapping):
        given = dict(config)
        where = f"model_args.config={given}"
        return _of_table(given, overrides, where), where
    key = "pretrained" if config is None else "config"
    folder = str(config if pretrained is None else pretrained)
    where = f"model_args.{key}={folder}"
    lacks = _lacking(Path(folder), with_weights=config is None)
    if lacks:
        raise ConfigError(
            f"{where} has no {lacks}, expected a folder of the project as save_pretrained writes one; nothing is "
            "downloaded, so save the model there first"
        )
    try:
        known = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{where} has no config that transformers reads ({_first_line(error)}); save the model there again"
        ) from None
    labels = overrides.get("num_labels", known.num_labels)  # the other sizes are the folder's own
    if labels != known.num_labels:
        known.num_labels = labels
    return known, where


def _of_table(given: dict[str, Any], overrides: Mapping[str, Any], where: str) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = given.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        names = sorted(CONFIG_MAPPING.keys())
        remedy = did_you_mean(
            str(kind), names, otherwise="name one that transformers has, such as bert"
        )
        raise ConfigError(
            f"{where} has model_type={kind}, which transformers does not know; {remedy}"
        )
    try:
        known = AutoConfig.for_model(kind)
        wrong = [name for name in given if not hasattr(known, name)]
        if wrong:
            remedy = did_you_mean(wrong[0], vars(known), otherwise="leave it out")
            raise ConfigError(
                f"{where} has {wrong[0]}, which a config of {kind} does not have; {remedy}"
            )
        return AutoConfig.for_model(kind, **{**overrides, **given})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{where} is no config of {kind} ({_first_line(error)}); change it"
        ) from None


def _lacking(folder: Path, *, with_weights: bool) -> str:
    """Return which file a folder in the Hub's layout lacks; empty if none."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if with_weights and not any((folder / name).is_file() for name in _WEIGHTS):
        return _WEIGHTS[0]
    return ""


def _first_line(error: BaseException) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    return f"{type(error).__name__}: {text[:200]}"


def check_tokens(columns: SampleColumns, name: str) -> None:
    """Refuse a column that holds no tokens, where the settings tell its type.

    Raises:
        ConfigError: there is no such column, or no row of whole numbers in it.
    """
    column = column_of(columns, name, "model_args.column")
    if column is None:
        return
    is_number = column.dtype.removeprefix("u").startswith("int")
    is_table = columns is not None and columns.keys() == {"features", "labels"}
    if (
        column.kind != "array"
        or column.varies + len(column.shape) != 1
        or not is_number
        or is_table
    ):
        raise ConfigError(
            f"model_args.column={name} is {column}{', as features of a table' if is_table else ''}, expected integers "
            "such as int32[*]; name a column of tokens in model_args.column"
        )


def check_no_packs(columns: SampleColumns, name: str) -> None:
    """Refuse packs of several rows, whose tokens a model of transformers would let see each other.

    Raises:
        ConfigError: the samples are packed by `best_fit`.
    """
    if columns is not None and f"{name}.positions" in columns:
        raise ConfigError(
            "data.pack.method=best_fit keeps the rows of a pack apart, which a model of transformers does not do; use "
            "data.pack.method=concat, or leave data.pack out"
        )
