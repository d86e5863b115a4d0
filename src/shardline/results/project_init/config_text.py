"""The config and run table of a project that has a model and data already, with comments on what is left to decide."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import UNSET, structs

from shardline.config.code_paths import SHIPPED_MODELS
from shardline.config.settings.run_settings import Trainer
from shardline.core.errors import ConfigError
from shardline.core.found_files import is_hidden
from shardline.core.objects import is_import_path
from shardline.core.trainer_arguments import SETTINGS
from shardline.results.data_init import Entry, guess_entry
from shardline.results.data_init.written import flow
from shardline.results.project_init.looked import Argument, LookedClass, look
from shardline.results.project_init.optimizer_text import optimizer_lines
from shardline.results.project_init.own_configs import Found, OwnConfigs

# Shardline passes these to constructors, see `training.model.make_model`.
_PASSED = (
    "category_sizes", "columns", "feature_shape", "num_classes", "num_targets", "sample_columns", "task"
)  # fmt: skip
# Arguments of data modules that decide batches, which are Shardline's.
_OF_LOADERS = (
    "drop_last", "num_workers", "persistent_workers", "pin_memory", "prefetch_factor", "shuffle"
)  # fmt: skip
_BATCH = "batch_size"
_EXAMPLES = {
    "optim": '{type: "torch.optim:Adam", partial: true, lr: 0.001}',
    "sched": '{type: "torch.optim.lr_scheduler:CosineAnnealingLR", partial: true, T_max: 10}',
}
_MOST_FILES = 10_000  # whose bytes count in the identity of a dataset


@dataclass(kw_only=True)
class ProjectText:
    """What to write, and what the user has to decide.

    Attributes:
        config: Text of `config/config.yaml`.
        table: Text of the run table.
        left: Sentences on what is left to decide.
    """

    config: str
    table: str
    left: list[str] = field(default_factory=list)


def project_text(model: str, data: str, folder: Path) -> ProjectText:
    """Return config and run table for a model and data of a project.

    Args:
        model: Import path, or name of a shipped model.
        data: Import path of a torch dataset or a LightningDataModule; or files, see `guess_entry`.
        folder: Folder of the project.

    Raises:
        ConfigError: A path is wrong, a class does not import, or there are no such files.
    """
    if model not in SHIPPED_MODELS and not is_import_path(model):
        raise ConfigError(
            f"init --model={model} is neither a shipped model nor an import path, expected one such as "
            "src.models.mnist:MNIST; write a colon before the class"
        )
    own, left = OwnConfigs(folder), list[str]()
    paths = [path for path in (model, data) if path not in SHIPPED_MODELS and is_import_path(path)]
    found = {one.path: one for one in look(paths, folder)} if paths else {}
    net = found.get(model, LookedClass(path=model))
    of_data = found.get(data)
    entry = _entry(of_data, own, folder, left) if of_data else guess_entry([data], folder)
    name = _short(model)
    lines = [
        f"# Begun by `shardline init` for {model} and {data}. config/README.md explains every key.",
        "",
        "runs: config/runs.tsv # one row is one run; a list in a cell makes a grid",
        "",
        "# Settings of all runs. A column of the run table, such as model_args.width, overrides one for its row.",
        "defaults:",
        "  devices: 1 # ranks on this machine",
        *_batch(of_data, own, left),
        *_data(net, is_python=of_data is not None),
        *_trainer(own, left),
        *_monitor(net, own, left),
        *_evaluation(of_data),
        *optimizer_lines(net, own, folder),
        *_model_args(net, own, left),
        "",
        "datasets:",
        *entry.lines(),
        "",
        "lock: requirements.lock # the packages that count in identities",
    ]
    table = f"name\tdataset\tmodel\n{name}\t{entry.name}\t{model}\n"
    return ProjectText(config="\n".join(lines) + "\n", table=table, left=left)


def _short(path: str) -> str:
    name = re.sub(r"(Lit|Lightning)?(DataModule|Dataset|Module)$", "", path.rpartition(":")[2])
    return (name or path.rpartition(":")[2]).lower()


def _own_arguments(cls: LookedClass, own: OwnConfigs, section: str) -> Found:
    names = {one.name for one in cls.arguments}
    return own.find(cls.path) or own.section(section, names) or Found(arguments={})


def _values(cls: LookedClass, own: OwnConfigs, section: str) -> Iterator[tuple[Argument, Any]]:
    """Yield each argument with its value in the project's YAML files, else its default."""
    given = _own_arguments(cls, own, section).arguments
    for one in cls.arguments:
        yield one, given.get(one.name, one.value)


def _model_args(net: LookedClass, own: OwnConfigs, left: list[str]) -> Iterator[str]:
    lines, is_empty = list[str](), True
    for one, value in _values(net, own, "model"):
        if one.name in _PASSED and one.name not in _own_arguments(net, own, "model").arguments:
            continue
        line, is_set = _argument(one, value, "model_args", left)
        lines.append(f"    {line}")
        is_empty = is_empty and not is_set
    origin = f", as in {file}" if (file := _own_arguments(net, own, "model").file) else ""
    if lines:
        yield f"  model_args:{' {}' if is_empty else ''} # arguments of the constructor{origin}"
        yield from lines


def _argument(one: Argument, value: Any, key: str, left: list[str]) -> tuple[str, bool]:
    """Return the line of an argument, and whether it sets a value."""
    if value is not UNSET:
        return f"{one.name}: {flow(value)}", True
    if not one.is_required:
        return f"# {one.name}: its default is {one.shown}", False
    example = next(
        (text for part, text in _EXAMPLES.items() if part in f"{one.name} {one.shown}".lower()),
        '{type: "mypkg.nets:Net", width: 64}' if "Module" in one.shown else "...",
    )
    what = f" ({one.shown})" if one.shown else ""
    left.append(f"{key}.{one.name}{what} has no default; write its line")
    return f"# {one.name}: {example} # required{what}", False


def _entry(of_data: LookedClass, own: OwnConfigs, folder: Path, left: list[str]) -> Entry:
    entry = Entry(name=_short(of_data.path), source={"type": of_data.path}, shards=8)
    options: dict[str, Any] = {}
    for one, value in _values(of_data, own, "data"):
        if one.name == _BATCH or one.name in _OF_LOADERS:
            continue
        if value is UNSET:
            line, _ = _argument(one, value, f"datasets.{entry.name}.source.options", left)
            entry.notes.append(f"options.{line.removeprefix('# ')}")
        else:
            options[one.name] = value
    if options:
        entry.source["options"] = options
        file = _own_arguments(of_data, own, "data").file
        entry.comments["options"] = f"as in {file}" if file else "the defaults of the constructor"
    entry.source["files"] = _files_of(options, folder)
    entry.comments["files"] = "what the class reads; the bytes of these files count in the identity"
    if not entry.source["files"]:
        left.append(
            f"datasets.{entry.name}.source.files is empty; list the files that {of_data.path} reads, if any. The log "
            "of the first build has the line"
        )
    return entry


def _files_of(options: Mapping[str, Any], folder: Path) -> list[str]:
    """Return patterns of the existing files and folders among the options."""
    found = []
    for value in options.values():
        if not (isinstance(value, str) and value.strip("./")):
            continue
        path = folder / value
        if path.is_file():
            found.append(value)
        elif path.is_dir() and path.resolve() != folder.resolve():
            inside = (one for one in path.rglob("*") if _is_read(one, path))
            number = sum(1 for _ in zip(inside, range(_MOST_FILES), strict=False))
            found += [f"{value.rstrip('/')}/**"] if 0 < number < _MOST_FILES else []
    return found


def _is_read(path: Path, folder: Path) -> bool:
    return path.is_file() and not any(map(is_hidden, path.relative_to(folder).parts))


def _batch(of_data: LookedClass | None, own: OwnConfigs, left: list[str]) -> Iterator[str]:
    values = {one.name: value for one, value in _values(of_data, own, "data")} if of_data else {}
    size = values.get(_BATCH, UNSET)
    if isinstance(size, int):
        yield f"  global_batch: {size} # samples per step, over all ranks; {_BATCH} of the data"
        return
    yield "  global_batch: 64 # samples per step, over all ranks"
    left.append("defaults.global_batch is 64, a guess; set the samples of a step")


def _data(net: LookedClass, *, is_python: bool) -> Iterator[str]:
    collate = ", collate: tuple" if net.unpacks else ""
    if is_python:
        reason = "samples as the data has them" + ("; the model unpacks its batch" * net.unpacks)
        yield f"  data: {{normalize: raw{collate}}} # {reason}"


def _trainer(own: OwnConfigs, left: list[str]) -> Iterator[str]:
    given = own.find("Trainer") or own.section("trainer", None)
    defaults = {one.name: one.default for one in structs.fields(Trainer)} | {"max_epochs": None}
    known = {name: f"trainer.{name}" for name in defaults} | SETTINGS
    found: dict[str, Any] = {}
    for name, value in (given.arguments if given else {}).items():
        group, _, key = known.get(name, "").partition(".")
        # -1 is no limit, as without the setting
        if group == "trainer" and value not in (None, -1) and value != defaults.get(key):
            found[key] = value
    precision = str(given.arguments.get("precision", "") if given else "")
    if given and re.fullmatch(r"(32|64|16|bf16)-\w+", precision):
        yield f"  precision: {precision} # as in {given.file}"
    if "max_steps" in found:
        found.setdefault("max_epochs", -1)  # as in Lightning
    if given and "max_epochs" in found:
        yield f"  trainer: {flow(found)} # as in {given.file}"
        return
    origin = f"; the others as in {given.file}" if given and found else ""
    yield f"  trainer: {flow({'max_epochs': 10, **found})} # passes over the training rows at most{origin}"
    left.append("defaults.trainer.max_epochs is 10, a guess; set the length of a training")


def _monitor(net: LookedClass, own: OwnConfigs, left: list[str]) -> Iterator[str]:
    stopping, checkpoint = own.find("EarlyStopping"), own.find("ModelCheckpoint")
    given = dict(checkpoint.arguments if checkpoint else {})
    stops = dict(stopping.arguments if stopping else {})
    logged = net.logged
    metric, mode = given.get("monitor"), given.get("mode", "min")
    origin = f"as in {checkpoint.file}" if checkpoint and metric else ""
    if not metric:
        metric = _validated(logged)
        mode = "max" if metric and not re.search("loss|err|mae|mse|perplex", metric) else "min"
        origin = f"a guess; the model logs {', '.join(logged)}"
    if "training_step" in net.methods and "validation_step" not in net.methods:
        left.append(
            f"{net.path} has no validation_step, which chooses the sealed weights; define one that logs "
            f"{metric or 'val_loss'}, in the class or in a class of yours that derives from it"
        )
        return
    if not metric:
        if net.path not in SHIPPED_MODELS:
            left.append(
                "checkpoint.monitor is val_loss, the default; set it to a metric that the model logs in validation_step"
            )
        return
    if not given.get("monitor"):
        left.append(f"checkpoint.monitor is {metric}, {origin}")
    chosen = {"monitor": metric, "mode": mode}
    yield f"  checkpoint: {flow(chosen)} # decides which weights are sealed; {origin}"
    if stops.get("monitor"):
        kept = {key: of for key, of in stops.items() if key in ("monitor", "mode", "patience")}
        yield f"  early_stopping: {flow(kept)} # as in {stopping.file if stopping else ''}"
    else:
        yield f"  early_stopping: {flow({**chosen, 'patience': 0})} # 0 is off"


def _validated(logged: Sequence[str]) -> str:
    of_validation = [name for name in logged if "val" in name]
    losses = [name for name in of_validation if "loss" in name]
    return next(iter((*losses, *of_validation)), "")


def _evaluation(of_data: LookedClass | None) -> Iterator[str]:
    methods = set(of_data.methods) if of_data else set()
    if "train_dataloader" in methods and "test_dataloader" not in methods:
        yield "  evaluation: {split: validation} # the data has no test_dataloader"
