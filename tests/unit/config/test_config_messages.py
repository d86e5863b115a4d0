"""Every message about a bad value of config and run table, held as golden text.

`--regen` rewrites `tests/golden/messages/*.txt`: read the difference, since a message is what a
user has to go by. The keys come from the tables of config/README.md.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shardline.config.load import load_project
from shardline.core.nested import merge, with_values
from shardline.errors import ConfigError
from shardline.identity import code_index
from tests.support.small_config import CONFIG, DIGITS, ONE_ROW
from tests.unit.conftest import _parse_once

REPOSITORY = Path(__file__).parents[3]
GOLDEN = REPOSITORY / "tests" / "golden" / "messages"
# Values of every type, and what people type where a number is meant.
VALUES: list[Any] = [
    "x", "", None, True, -1, 0, 2.5, [], [1, 1], {}, {"a": 1},
    "0,01", "0.01, 0.1", "range(3)", "10k",
]  # fmt: skip
SOURCES: dict[str, dict[str, Any]] = {
    "csv": {"files": ["a.csv"], "label": "y", "num_classes": 2},
    "numpy": {"files": ["a.npy"]},
    "parquet": {"files": ["a.parquet"], "label": "y", "num_classes": 2},
    "delta": {"table": "t", "version": 0, "label": "y", "num_classes": 2},
    "idx": {"files": ["a.idx"]},
    "hdf5": {"files": ["a.h5"]},
    "hf": {"files": ["a.arrow"]},
    "litdata": {"files": ["a.bin"]},
    "mds": {"files": ["a.mds"]},
    "webdataset": {"files": ["a.tar"]},
    "image_folder": {"files": ["images"], "size": [8, 8]},
    "text": {"files": ["a.txt"]},
    "jsonl": {"files": ["a.jsonl"], "tokenize": {"tokens": "text"}},
    "digits": {},
    "synthetic": {},
    "own:Class": {"files": ["a.csv"], "options": {}},
}
SPLITS: dict[str, Any] = {
    "shares": {"train": 0.8, "validation": 0.1, "test": 0.1},
    "column": {"column": "split"},
    "files": {"files": {"train": ["a"], "validation": 0.1, "test": ["b"]}},
}
Refusal = Callable[..., str]


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refusal:
    """Return the message about a config and a table; empty where nothing is wrong with their form."""
    monkeypatch.setattr(code_index, "parse_module", _parse_once)
    monkeypatch.setattr("shardline.config.load.load_datasets", lambda *_: _stop())
    (tmp_path / "config").mkdir()

    written = ""

    def make(config: dict[str, Any] | None = None, table: str = ONE_ROW) -> str:
        nonlocal written
        if table != written:  # a file costs more than the check of a config
            (tmp_path / "config" / "runs.tsv").write_text(table)
            written = table
        try:
            load_project({**CONFIG, **(config or {})}, workdir=tmp_path)
        except ConfigError as error:
            return str(error)
        except _FormIsValidError:
            return ""
        raise AssertionError("what follows the form was reached")

    return make


class _FormIsValidError(Exception):
    """What is asked of files, code and machine comes next."""


def _stop() -> None:
    raise _FormIsValidError


def keys_of(section: str) -> list[str]:
    """Return the dotted keys of a table of config/README.md."""
    page = (REPOSITORY / "config" / "README.md").read_text()
    block = page.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([^`]+)` \|", block, re.MULTILINE)


def dataset(kind: str = "digits", splits: Any = None, **changes: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"source": {"type": kind, **SOURCES[kind]}, "shards": 2}
    if splits is not None:
        entry["splits"] = splits
    return {"datasets": {"d": merge(entry, with_values({}, changes))}}


def bad_configs() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configs with one value of another kind each, and what was changed."""
    for value in VALUES:
        text = json.dumps(value)
        for key in keys_of("`defaults`"):
            yield f"defaults.{key}={text}", {"defaults": with_values({}, {key: value})}
        for section in ("runtime", "azureml", "conda", "image", "identity"):
            for key in keys_of(f"`{section}`"):
                key = key.removeprefix("identity.")
                yield f"{section}.{key}={text}", {section: with_values({}, {key: value})}
        for key in ("runs", "lock", "defaults", "datasets", "runtime", "scaling"):
            yield f"{key}={text}", {key: value}
        for key in keys_of("`scaling`"):
            study = {"run": "a", "sizes": ["1x1", "1x2"], key: value}
            yield f"scaling.s.{key}={text}", {"scaling": {"s": study}}
        yield f"datasets.d={text}", {"datasets": {"d": value}}
        for key in ("shards", "shards_per_job", "splits", "source", "source.type"):
            yield f"datasets.d.{key}={text}", {"datasets": {"d": _with(DIGITS, key, value)}}
        for kind in SOURCES:
            yield from _bad_options(kind, value)
        for kind, splits in SPLITS.items():
            for key in _leaves(splits):
                changed = dataset("csv", _with(splits, key, value))
                yield f"{kind}: datasets.d.splits.{key}={text}", changed


def _bad_options(kind: str, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    keys = [key for key in keys_of("`datasets`") if key.startswith("source.")]
    for key in dict.fromkeys(keys):
        if key != "source.type":
            changed = dataset(kind)
            changed["datasets"]["d"] = _with(changed["datasets"]["d"], key, value)
            yield f"{kind}: datasets.d.{key}={json.dumps(value)}", changed


def _with(settings: dict[str, Any], dotted: str, value: Any) -> dict[str, Any]:
    first, _, rest = dotted.partition(".")
    return {**settings, first: _with(settings.get(first, {}), rest, value) if rest else value}


def _leaves(settings: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in settings.items():
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")


def structures() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configs in which keys lack, or are unknown."""
    for kind, options in SOURCES.items():
        for key in options:
            changed = dataset(kind)
            del changed["datasets"]["d"]["source"][key]
            yield f"{kind} without {key}", changed
    for kind, splits in SPLITS.items():
        for key in splits:
            lacking = {name: value for name, value in splits.items() if name != key}
            yield f"{kind} without {key}", dataset("csv", lacking)
        yield f"{kind} with more", dataset("csv", {**splits, "valid": 0.1})
    for key in ("run", "sizes"):
        study = {name: v for name, v in {"run": "a", "sizes": ["1x1"]}.items() if name != key}
        yield f"study without {key}", {"scaling": {"s": study}}
    for dotted in (
        "optim.learning_rate", "optim.learning-rate", "learning_rate", "batch_size", "epochs", "max_steps",
        "gpus", "num_nodes", "optimizer", "optimizer.lr", "trainer.epochs", "hidden", "store", "launcher", "zzz",
        "optim.zzz", "Seed", "random_seed", "eval_batch_size",
    ):  # fmt: skip
        yield f"defaults.{dotted}", {"defaults": with_values({}, {dotted: 1})}
    for dotted in (
        "stor", "log_every_n_steps", "checkpoint.every_step", "checkpoint.zzz", "zzz", "lr", "backend",
    ):  # fmt: skip
        yield f"runtime.{dotted}", {"runtime": with_values({}, {dotted: 1})}
    for key in ("lr", "store", "dataset", "zzz", "optim", "run"):
        yield key, {key: 1}
    for name in ("a b", "a/b", "../a", ".a", "-a", "café", "a" * 151, "", "a:b", "a$b"):
        yield f"datasets.{name}", {"datasets": {name: DIGITS}}
        study = {"run": "a", "sizes": ["1x1", "1x2"]}
        yield f"scaling.{name}", {"scaling": {name: study}}
    yield "a host that is none", {"runtime": {"hosts": ["a b"]}}
    yield "a variable that is none", {"runtime": {"pass_env": ["a-b"]}}
    yield "a remote file", dataset("csv", **{"source.files": [{"url": "https://x/a.csv"}]})
    yield "a package", {"conda": {"virtual_packages": {"cuda": "12"}}}


CELLS = [
    "x", "null", "true", "-1", "0", "2.5", "[]", "[1, 1]", "[1", "{a: 1}", "0,01", "0.01, 0.1", "0.01;0.1",
    "range(3)", "10k", "[x, 1]", "1e999", "50%", "1 000", "'1'", "no", "1/3", "2**5",
]  # fmt: skip


def cells() -> Iterator[tuple[str, str]]:
    """Yield tables with one cell that is wrong."""
    for cell in CELLS:
        for key in keys_of("`defaults`"):
            yield f"{key}={cell}", f"name\tdataset\tmodel\t{key}\na\tdigits\tmlp\t{cell}\n"


def tables() -> Iterator[tuple[str, str]]:
    """Yield tables with a column or a name that is wrong."""
    head = "name\tdataset\tmodel"
    for column in (
        "lr", "optim.learning_rate", "learning_rate", "batch_size", "epochs", "max_steps", "gpus", "num_nodes",
        "optimizer", "hidden", "zzz", "optim", "model_args", "model_args.", "seed.x", "Seed", "optim.lr.x",
        "runtime.store", "Name", "dataset ", "model.args", "data.zzz", "#seed",
    ):  # fmt: skip
        yield f"column {column}", f"{head}\t{column}\na\tdigits\tmlp\t1\n"
    for name in (
        "..",
        "a/b",
        "-a",
        "café",
        "a b",
        ".hidden",
        "a\u0301",
        "",
        "a" * 201,
        "a:b",
        "a$b",
        "ñ" * 150,
    ):
        yield f"name {name}", f"{head}\nb\tdigits\tmlp\n{name}\tdigits\tmlp\n"
    for lacking in range(3):
        names = [name for place, name in enumerate(head.split("\t")) if place != lacking]
        yield f"no {head.split()[lacking]}", "\t".join(names) + "\na\tb\n"


def page(found: dict[str, str]) -> str:
    return "".join(f"{what}\n    {message}\n" for what, message in found.items() if message)


def grouped(found: dict[str, str]) -> str:
    """Return each message once, with KEY in the place of its key, and the keys that have it."""
    keys: dict[str, list[str]] = {}
    for what, message in found.items():
        if message:
            key = what.partition("=")[0]
            last = key.rpartition(" ")[2]
            keys.setdefault(message.replace(f"{last}=", "KEY="), []).append(key)
    return "".join(
        f"{message}\n    {', '.join(dict.fromkeys(those))}\n" for message, those in keys.items()
    )


def test_messages_about_values_of_the_config(refusal: Refusal, golden: Any) -> None:
    found = {what: refusal(config) for what, config in bad_configs()}
    golden(GOLDEN / "config_values.txt", grouped(found))


def test_messages_about_keys_of_the_config(refusal: Refusal, golden: Any) -> None:
    found = {what: refusal(config) for what, config in structures()}
    golden(GOLDEN / "config_keys.txt", page(found))


@pytest.mark.parametrize("key", CONFIG)
def test_a_key_that_every_config_has(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load_project({k: v for k, v in CONFIG.items() if k != key}, workdir=tmp_path)
    remedy = "`runs: config/runs.tsv`, and create that file: a header" if key == "runs" else "it"
    told = str(error.value).splitlines()[0]
    assert told.startswith(f"config/config.yaml: {key} is missing; add {remedy}")


def test_messages_about_cells_of_the_run_table(refusal: Refusal, golden: Any) -> None:
    found = {what: refusal(table=table) for what, table in cells()}
    golden(GOLDEN / "table_cells.txt", grouped(found))


def test_messages_about_the_form_of_the_run_table(refusal: Refusal, golden: Any) -> None:
    found = {what: refusal(table=table) for what, table in tables()}
    golden(GOLDEN / "table_form.txt", page(found))
