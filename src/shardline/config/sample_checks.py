"""Cross-field checks of what a run does with samples."""

import re
from collections.abc import Iterator

from shardline.config.plans import WeightedDataset
from shardline.config.sample_code import COLLATE
from shardline.config.scripts import is_script
from shardline.config.settings.run_settings import Data, RunSettings
from shardline.config.validate import Problems
from shardline.core.suggest import suggest

_WORKERS = re.compile(r"auto|[0-9]{1,4}|(threads|processes):[1-9][0-9]{0,3}")


_NOT_OF_SCRIPTS = (
    "transform", "eval_transform", "collate", "pack", "class_weights", "epoch_samples",
)  # fmt: skip


def check_samples(
    settings: RunSettings, parts: tuple[WeightedDataset, ...], model_class: str, where: str, *,
    uses_io: bool = False,
) -> None:  # fmt: skip
    """Refuse settings of samples that do not go together.

    Args:
        uses_io: whether `model_class` is a script that imports `shardline_io`.
        where: file and row, as messages begin.

    Raises:
        ConfigError: a sentence for each.
    """
    data, problems = settings.data, Problems()
    is_mix, found = len(parts) > 1, problems.found
    if is_script(model_class) and not uses_io:
        found += _of_script(data, is_mix=is_mix)
    else:
        found += _of_mix(settings, is_mix=is_mix)
        found += _of_pack(data)
    if isinstance(data.class_weights, str) and data.class_weights != "balanced":
        hint = suggest(data.class_weights, ["balanced"])
        found.append(
            f"data.class_weights={data.class_weights} is neither `balanced` nor a table {{class: weight}}; {hint}"
        )
    if data.class_weights == {}:
        found.append("data.class_weights={} names no class; name one, or leave it out")
    if not _WORKERS.fullmatch(str(data.workers)):
        found.append(
            f"data.workers={data.workers} is not auto, 0, a number of threads, threads:n or processes:n; write one, "
            "such as threads:4"
        )
    problems.found = [f"{where}: {text}" for text in found]
    problems.refuse()


def _of_script(data: Data, *, is_mix: bool) -> Iterator[str]:
    """Yield what a script cannot have that reads its samples itself."""
    reason = "the training script does not import shardline_io, and so reads its samples itself"
    remedy = "have the script take its batches from shardline_io.train()"
    if is_mix:
        yield f"dataset names a mix, but {reason}; name one dataset, or {remedy}"
    for key in _NOT_OF_SCRIPTS:
        if getattr(data, key) is not None:
            yield f"data.{key} is given, but {reason}; leave it out, or {remedy}"


def _of_mix(settings: RunSettings, *, is_mix: bool) -> Iterator[str]:
    """Yield what does not go with samples that are drawn by weight."""
    data, weighted = settings.data, settings.data.class_weights is not None
    what = "a mix" if is_mix else "data.class_weights"
    if is_mix and weighted:
        yield "data.class_weights is given for a mix, whose weights are its datasets'; leave it out"
    if not is_mix and not weighted:
        if data.epoch_samples is not None:
            yield (
                f"data.epoch_samples={data.epoch_samples} is given, but an epoch of one dataset is a pass through it; "
                "leave it out, or give data.class_weights or a mix"
            )
        return
    if data.streams > 1:
        yield f"data.streams={data.streams} does not go with {what}; use data.streams=1"
    if data.epoch == "partition":
        yield f"data.epoch=partition does not go with {what}; say how long an epoch is by data.epoch_samples"
    if data.last_batch == "pad":
        yield f"data.last_batch=pad does not go with {what}, whose batches are all full; use data.last_batch=drop"
    if data.epoch_samples is not None and data.epoch_samples < settings.global_batch:
        yield (
            f"data.epoch_samples={data.epoch_samples} is less than global_batch={settings.global_batch}; use as many "
            "at least"
        )


def _of_pack(data: Data) -> Iterator[str]:
    """Yield what does not go with packs."""
    if data.pack is None:
        return
    if data.pack.column in data.pack.with_:
        yield f"data.pack.with names {data.pack.column}, which is data.pack.column itself; name others, or leave it out"
    if data.class_weights is not None:
        yield "data.class_weights is given with data.pack, whose samples hold rows of many classes; leave one out"
    if data.collate in COLLATE and data.collate != "pad":
        yield f"data.collate={data.collate} is given with data.pack, whose samples have one length; leave one out"
