"""Make models of Hugging Face's transformers from a config or a folder of the project, without downloads."""

import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardline.config.hub_models import check_folder
from shardline.core.errors import ConfigError
from shardline.core.suggest import did_you_mean

_ATTENTION = "attn_implementation"
HubConfig = Mapping[str, Any] | str | None


def make_hub_model(head: str, config: HubConfig, pretrained: str | None, **overrides: Any) -> Any:
    """Make a transformers model, with random weights from a config or with weights from a folder.

    Args:
        head: Class such as `AutoModelForCausalLM`.
        config: Table with `model_type`, or a folder of the project with a `config.json`.
        pretrained: Folder of the project with a `config.json` and weights.
        overrides: Config values from the dataset, used where the config does not set them.

    Raises:
        ConfigError: transformers is not installed, not exactly one of `config` and `pretrained` is
            given, the folder does not exist, or config or weights do not fit the model.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ConfigError(
            f"model=hf:{head} needs the package transformers, which is not installed here; run pip install "
            "'shardline[huggingface]', and add the package to the project's lock"
        )
    if (config is None) == (pretrained is None):
        found = "neither" if config is None else "both"
        raise ConfigError(
            f"model=hf:{head} has {found} of model_args.config and model_args.pretrained, expected exactly one; set "
            "model_args.config.model_type and the model's sizes, or set model_args.pretrained to a folder"
        )
    import torch
    import transformers

    transformers.logging.set_verbosity_error()  # otherwise each rank reports what it loads
    transformers.logging.disable_progress_bar()
    known, where = _config(config, pretrained, overrides)
    auto = getattr(transformers, head)
    try:
        if pretrained is None:
            return auto.from_config(known, dtype=torch.float32, trust_remote_code=False)
        hub, loaded = auto.from_pretrained(
            pretrained, config=known, local_files_only=True, trust_remote_code=False,
            use_safetensors=True, dtype=torch.float32, output_loading_info=True,
        )  # fmt: skip
    except _unfit() as error:
        raise ConfigError(
            f"{where} does not fit {head} ({_first_line(error)}); change the config, or use another head in "
            "the column `model`"
        ) from None
    _check_loaded(hub, loaded["missing_keys"], where)
    return hub


def _check_loaded(hub: Any, missing: Any, where: str) -> None:
    """Reject weights of another model: transformers would replace all missing weights by random ones."""
    body = {name for name in hub.state_dict() if name.startswith(f"{hub.base_model_prefix}.")}
    if body and body <= set(missing):
        raise ConfigError(
            f"{where} has weights of another model than its config.json ({hub.config.model_type}), expected names such "
            f"as {min(body)}; save the model there again"
        )


def _config(
    config: HubConfig, pretrained: str | None, overrides: Mapping[str, Any]
) -> tuple[Any, str]:
    """Return the config of a model, and the setting that it comes from, for messages."""
    from transformers import AutoConfig

    if isinstance(config, Mapping):
        given = dict(config)
        where = f"model_args.config={given}"
        return _of_table(given, overrides, where), where
    key = "pretrained" if config is None else "config"
    folder = str(config if pretrained is None else pretrained)
    where = f"model_args.{key}={folder}"
    check_folder(Path(folder), where, has_weights=config is None)
    try:
        known = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(
            f"{where} has no config that transformers can read ({_first_line(error)}); save the model there again"
        ) from None
    labels = overrides.get("num_labels", known.num_labels)  # the other sizes are the folder's own
    if labels != known.num_labels:
        known.num_labels = labels
    if "problem_type" in overrides:
        known.problem_type = overrides["problem_type"]
    return known, where


def _of_table(given: dict[str, Any], overrides: Mapping[str, Any], where: str) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    kind = given.pop("model_type", None)
    if kind not in CONFIG_MAPPING:
        names = sorted(CONFIG_MAPPING.keys())
        remedy = did_you_mean(
            str(kind), names, otherwise="use a model_type of transformers, such as bert"
        )
        raise ConfigError(
            f"{where} has model_type={kind}, which transformers does not know; {remedy}"
        )
    try:
        known = AutoConfig.for_model(kind)
        names = [name for name in vars(known) if not name.startswith("_")]
        wrong = [name for name in given if not hasattr(known, name) and name != _ATTENTION]
        if wrong:
            remedy = did_you_mean(wrong[0], names, otherwise="leave it out")
            raise ConfigError(
                f"{where} has {wrong[0]}, which a config of {kind} does not have; {remedy}"
            )
        sizes = {name: size for name, size in overrides.items() if hasattr(known, name)}
        made = AutoConfig.for_model(kind, **{**sizes, **given})
    except _unfit() as error:
        raise ConfigError(
            f"{where} is not a valid config of {kind} ({_first_line(error)}); change it"
        ) from None
    _check_made(made, overrides, where)
    return made


def _check_made(made: Any, overrides: Mapping[str, Any], where: str) -> None:
    """Reject a config whose labels do not fit the dataset, or whose attention would be downloaded."""
    labels = overrides.get("num_labels", made.num_labels)
    if made.num_labels != labels:
        raise ConfigError(
            f"{where} has num_labels or id2label for {made.num_labels} labels, expected {labels} as in the dataset; "
            "leave both out"
        )
    wanted = overrides.get("problem_type", "single_label_classification")
    if made.problem_type not in (None, wanted):
        raise ConfigError(
            f"{where} has problem_type={made.problem_type}, expected {wanted} for the dataset's labels; leave it out"
        )
    attention = str(made._attn_implementation)
    if "/" in attention:
        raise ConfigError(
            f"{where} has {_ATTENTION}={attention}, expected an implementation in transformers, since nothing is "
            "downloaded; use eager or sdpa"
        )


def _unfit() -> tuple[type[Exception], ...]:
    """Return the errors that transformers raises for an invalid config or damaged weights."""
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    return (
        OSError, TypeError, ValueError, KeyError, RuntimeError, ImportError, AttributeError, ArithmeticError,
        SafetensorError, StrictDataclassError,
    )  # fmt: skip


def _first_line(error: BaseException) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    return f"{type(error).__name__}: {text[:200]}"
