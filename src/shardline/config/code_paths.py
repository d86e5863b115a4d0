"""Import paths of the code that a run names: model, transforms, collate function and metrics."""

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from shardline.config.settings import Plain
from shardline.config.validate import Problems
from shardline.core.errors import ConfigError
from shardline.core.objects import as_table, read_object, without_paths
from shardline.core.suggest import suggest
from shardline.identity import CodeIndex
from shardline.identity.code_index import INSTALLED

SHIPPED_MODELS = {
    "linear": "shardline.training.models.linear:Linear",
    "mlp": "shardline.training.models.mlp:MLP",
    "cnn": "shardline.training.models.cnn:CNN",
    "resnet": "shardline.training.models.resnet:ResNet",
    "gpt": "shardline.training.models.gpt:GPT",
    "unet": "shardline.training.models.unet:UNet",
    "tabular": "shardline.training.models.tabular:Tabular",
    "hf:AutoModelForCausalLM": "shardline.training.models.hf_causal_lm:CausalLM",
    "hf:AutoModelForSequenceClassification": (
        "shardline.training.models.hf_sequence_classification:SequenceClassification"
    ),
    "hf:AutoModelForTokenClassification": "shardline.training.models.hf_token_classification:TokenClassification",
    "hf:AutoModelForMaskedLM": "shardline.training.models.hf_masked_lm:MaskedLM",
    "hf:AutoModelForImageClassification": "shardline.training.models.hf_image_classification:ImageClassification",
}
_IMAGE = "shardline.data.transforms.image_transforms"
SHIPPED_TRANSFORMS = {
    "decode": f"{_IMAGE}:Decode",
    "random_resized_crop": f"{_IMAGE}:RandomResizedCrop",
    "resize": f"{_IMAGE}:Resize",
    "center_crop": f"{_IMAGE}:CenterCrop",
    "flip": f"{_IMAGE}:Flip",
    "color_jitter": f"{_IMAGE}:ColorJitter",
    "normalize": f"{_IMAGE}:Normalize",
    "callable": "shardline.data.transforms.called:CallableTransform",
}
OF = "of"  # argument of `callable` with the import path of what is called


def resolve_class(path: str, shipped: Mapping[str, str], code: CodeIndex, where: str) -> str:
    """Return the import path `module:Class` of a shipped name or a path of the user.

    The class is looked up in the parsed source without an import, so that a misspelt model is
    found before any data is built.

    Raises:
        ConfigError: The name, module or class is unknown.
    """
    if path in shipped:
        return shipped[path]
    module, _, names_below = path.partition(":")
    name, *below = names_below.split(".")
    if not _is_import_path(module, name, *below):
        if meant := _meant(path):
            found = "is the path of a file" if "/" in module else "has no colon before the class"
            raise ConfigError(f"{where}={path} {found}; write {meant}")
        raise ConfigError(
            f"{where}={path} is neither one of {', '.join(shipped)} nor an import path "
            f"such as mypkg.models:Net; {suggest(path, shipped)}"
        )
    if code.find(module) is None:
        if is_installed(module.partition(".")[0], code):
            return path
        raise ConfigError(f"{where}={path}: no module {module}{_modules_near(module, code)}")
    names = code.names(module)
    if name not in names and "*" not in names:
        raise ConfigError(
            f"{where}={path}: {code.find(module)} has no {name}; {suggest(name, names)}"
        )
    return path


def _modules_near(module: str, code: CodeIndex) -> str:
    """Return the end of the message on a missing module: what its package contains, and a similar module."""
    roots, parts, near, listed = tuple(code.roots), module.split("."), list[str](), ""
    for part in [*parts, ""]:  # at last, what the folder itself contains
        package = code.locate(roots, ".".join(near)) if near else None
        names = _modules_in(package.folders if package else roots)
        if part not in names and near and names and not listed:
            listed = f"; {'.'.join(near)} contains {', '.join(sorted(names))}"
        close = [part] if part in names else get_close_matches(part, names, n=1)
        if not close:
            break
        near += close
    meant = ".".join(near)
    if code.find(meant) and (len(near) == len(parts) or not names):  # a module contains no others
        return f'{listed}; did you mean "{meant}"?'
    if listed:
        return f"{listed}; name one of them"
    searched = ", ".join(map(str, roots[:3]))
    return f" in {searched}; run from the folder that contains it, or set PYTHONPATH"


def _modules_in(folders: Iterable[Path]) -> set[str]:
    """Return the names of the modules and of the packages with a module of their own."""
    inside = [path for folder in folders for path in folder.iterdir()]
    found = {path.stem for path in inside if path.suffix == ".py"}
    found |= {path.name for path in inside if path.is_dir() and any(path.glob("*.py"))}
    return {name for name in found if name.isidentifier() and name != "__init__"}


def _is_import_path(module: str, *names: str) -> bool:
    return all(part.isidentifier() for part in [*module.split("."), *names])


def _meant(path: str) -> str:
    """Return the import path for `mypkg.net.Net` or `mypkg/net.py:Net`; empty for another text."""
    module, _, name = path.rpartition(":" if ":" in path else ".")
    module = module.removeprefix("./").removesuffix(".py").replace("/", ".")
    return f"{module}:{name}" if name != "py" and _is_import_path(module, name) else ""


def is_installed(package: str, code: CodeIndex) -> bool:
    """Return whether a top-level package is installed, and not of the project."""
    if code.find(package) is not None:
        return False  # of the project, which lacks the module
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any(INSTALLED & set(Path(place).parts) for place in places)


def metrics_of(evaluation: Plain) -> list[dict[str, Any]]:
    """Return `evaluation.metrics` in normal form: a list of tables with `type` and arguments."""
    listed = evaluation.get("metrics") or []
    return [as_table(one, f"evaluation.metrics.{place}") for place, one in enumerate(listed)]


def metric_name(metric: Plain) -> str:
    """Return the name of a metric in an evaluation."""
    return str(metric.get("name") or str(metric.get("type")).rpartition(":")[2])


def import_path(metric: Plain) -> str:
    """Return the import path of a metric; names without a module are classes of torchmetrics."""
    kind = str(metric["type"])
    return kind if ":" in kind else f"torchmetrics:{kind}"


COLLATE = ("pad", "nested", "tuple")
EVALUATED = ("eval_transform", "collate")  # also used in evaluations
_TRANSFORMS = ("transform", "eval_transform")
_PLAIN_PAD = {"type": "pad", "lengths": {}, "multiple": 1}
COLLATE_EXPECTED = "`pad` or an import path such as mypkg.data:Collate"


def collate_path(collate: Any, key: str = "data.collate") -> str:
    """Return the import path in `data.collate`; empty for a shipped name.

    Args:
        key: Start of messages.

    Raises:
        ConfigError: A table names neither padding nor an object.
    """
    if not collate or isinstance(collate, str):
        return "" if collate in COLLATE else collate or ""
    named = read_object(collate, key, expected=COLLATE_EXPECTED)
    if named.path in COLLATE[1:]:
        raise ConfigError(
            f"{key}.type={named.path} has no arguments, expected a text; write data.collate: {named.path}"
        )
    return "" if named.path == COLLATE[0] else named.colon_path


def transforms_of(written: Any) -> list[dict[str, object]]:
    """Return the value of `data.transform` in normal form: a list of tables with `type` and arguments."""
    listed = written if isinstance(written, list | tuple) else [] if written is None else [written]
    return [as_table(one, "data.transform") for one in listed]


def paths_of(data: Plain, code: CodeIndex, where: str) -> dict[str, str]:
    """Return the import paths in `data` settings, by part of the identity document.

    The parts are `transform`, `transform 2`, ..., `eval_transform`, ... and `collate`.

    Args:
        data: Resolved settings.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A shipped name, module or definition is unknown; the message lists all.
    """
    problems, found = Problems(), {}
    for part, key, path in _named(data):
        is_called = part.endswith(f" {OF}")
        with problems.gather():
            if not isinstance(path, str):
                asked = "an import path" if is_called else "a shipped transform or an import path"
                raise ConfigError(
                    f"{where}: {key}.{OF if is_called else 'type'} is {'missing' if path is None else path}, expected "
                    f"{asked} such as mypkg.data:Augment; add it"
                )
            shipped = {} if is_called else SHIPPED_TRANSFORMS
            found[part] = resolve_class(path, shipped, code, f"{where}: {key}")
    collate, key = data.get("collate"), f"{where}: data.collate"
    with problems.gather():
        if path := collate_path(collate, key):
            key = key if isinstance(collate, str) else f"{key}.type"
            found["collate"] = resolve_class(path, dict.fromkeys(COLLATE, ""), code, key)
    problems.refuse()
    return found


def _named(data: Plain) -> Iterator[tuple[str, str, Any]]:
    """Yield part, key and import path of each transform."""
    for setting in _TRANSFORMS:
        written = data.get(setting)
        for number, one in enumerate(transforms_of(written)):
            key = f"data.{setting}.{number}" if isinstance(written, list) else f"data.{setting}"
            part = f"{setting} {number + 1}" if number else setting
            yield part, key, one.get("type")
            if one.get("type") == "callable" and not isinstance(one.get(OF), Mapping):
                yield f"{part} {OF}", key, one.get(OF)


def counted_data(data: Plain) -> dict[str, object]:
    """Return `data` settings for an identity document, without paths of the user, whose code counts.

    Args:
        data: Resolved settings.
    """
    counted = dict(data)
    counted.pop("workers", None)  # workers do not change samples
    for setting in _TRANSFORMS:
        if setting in counted:
            counted[setting] = [_without_path(one) for one in transforms_of(counted[setting])]
    if counted.get("collate") in (None, "pad", _PLAIN_PAD):  # which are equal
        counted["collate"] = "pad"
    elif collate_path(collate := counted["collate"]):
        # a function by its path is called with the samples, and one in a table to make the function
        named = read_object(collate, "data.collate", expected=COLLATE_EXPECTED)
        counted["collate"] = {} if isinstance(collate, str) else {"made": without_paths(named)}
    return counted


def _without_path(transform: Plain) -> dict[str, object]:
    names = {path: name for name, path in SHIPPED_TRANSFORMS.items()}
    kind = str(transform.get("type"))
    shipped = kind if kind in SHIPPED_TRANSFORMS else names.get(kind)
    named = {} if shipped is None else {"type": shipped}
    arguments = without_paths(read_object(transform, "data.transform", expected="a name"))
    if shipped == "callable" and not isinstance(transform.get(OF), Mapping):
        arguments.pop(OF, None)
    return {**arguments, **named}


def with_own_code(data: Plain) -> dict[str, Any]:
    """Return `counted_data` for people: code of the user is shown as `own class` or `own function`."""
    shown = dict(data)
    for setting in _TRANSFORMS:
        if isinstance(shown.get(setting), list):
            shown[setting] = [{"type": "own class", **one} for one in shown[setting]]
    if shown.get("collate") == {}:
        shown["collate"] = "own function"
    elif isinstance(collate := shown.get("collate"), dict) and "made" in collate:
        shown["collate"] = {"type": "own class", **collate["made"]}
    return shown


METRIC = "metric"  # prefix of parts of an identity document


def metric_paths(evaluation: Plain, code: CodeIndex, where: str) -> dict[str, str]:
    """Return the import paths of metrics by part of the identity document: `metric`, `metric 2`, ...

    Args:
        evaluation: Resolved settings.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A metric has no type, its class is unknown, or two metrics have the same name.
    """
    problems, found, names = Problems(), {}, set()
    for number, one in enumerate(metrics_of(evaluation)):
        key, kind = f"evaluation.metrics.{number}", one.get("type")
        with problems.gather():
            if not isinstance(kind, str):
                raise ConfigError(
                    f"{where}: {key}.type is {'missing' if kind is None else kind}, expected a class of torchmetrics "
                    "or an import path such as torchmetrics.classification:MulticlassF1Score; add it"
                )
            part = f"{METRIC} {number + 1}" if number else METRIC
            found[part] = resolve_class(import_path(one), {}, code, f"{where}: {key}.type")
            if metric_name(one) in names:
                raise ConfigError(
                    f"{where}: {key} is called {metric_name(one)}, like another metric; give it a different `name`"
                )
            names.add(metric_name(one))
    problems.refuse()
    return found
