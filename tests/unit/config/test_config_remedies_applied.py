"""What the messages of the config say to do, done: the config loads then, or has another problem.

`CASES` has an entry for each error below `shardline.config`. One without an entry fails the last test; `ELSEWHERE`
lists those that other tests hold. Errors of a dataset's files are in `test_sources_remedies.py`.
"""

import ast
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml

import shardline.config as config_package
from shardline.config import checks, load
from shardline.config import project as project_module
from shardline.config.layout import check_layout
from shardline.config.project import Project, record_names
from shardline.core import suggest
from shardline.errors import ShardlineError
from shardline.identity import code_index
from tests.support.raised_errors import note_errors
from tests.support.small_config import CONFIG, DIGITS
from tests.unit.conftest import _parse_once

# Changes by their place: a dotted key of the config, "@column" of the run table's one row, "/path" of a
# file, "$NAME" of a variable. In those of a remedy, $1 is the first group of the pattern that found it.
Changes = dict[str, Any]
DROP = object()
_load_lock = cache(project_module.load_lock)  # half of loading a project


@dataclass(frozen=True, kw_only=True)
class Case:
    """A config, the error that it is refused with, and what that error says to do.

    Attributes:
        bad: what makes the config wrong.
        found: a part of the message.
        says: pattern of a part of the remedy.
        good: the remedy.
        passes: whether nothing is wrong then; else another problem follows.
        step: what is done with the project that was loaded.
    """

    bad: Changes
    found: str
    says: str
    good: Changes
    passes: bool = True
    step: Callable[[Project], object] | None = None


def case(bad: Changes, found: str, says: str, good: Changes, **more: Any) -> Case:
    return Case(bad=bad, found=found, says=says, good=good, **more)


def text_of(**more: Any) -> str:
    return json.dumps({**CONFIG, **more})


SCRIPT = {"@model": "script: train.py", "/train.py": "print(1)\n"}
IO = {"@model": "script: train.py", "/train.py": "import shardline_io\n"}
NET = {"@model": "net:Net", "/net.py": "class Net:\n    pass\n"}
TEXTS = {
    "datasets.digits.source": {"type": "text", "files": ["a.txt"]}, "/a.txt": "a\nb\n"
}  # fmt: skip
TABLE = {"type": "csv", "files": ["a.csv"], "label": "y", "num_classes": 2}
ROWS = {"datasets.digits.source": TABLE, "/a.csv": "x,y\n1,0\n2,1\n"}
FOLDS = {"folds": 3}
FOLDED = {"datasets.digits.splits": FOLDS, "@fold": "all"}
TOKEN = "hf_" + "aB3" * 11
MIX = {"datasets.b": {**DIGITS, "shards": 3}, "@dataset": "{digits: 0.5, b: 0.5}"}
HEAD = "name\tdataset\tmodel"
ROW = "a\tdigits\tmlp"
SAVED = {"/m/config.json": "{}", "/m/model.safetensors": "w"}
OF_HUB = {"@model": "hf:AutoModelForCausalLM", "@model_args.pretrained": "m"}
INDEX = "/m/model.safetensors.index.json"
STUDY = {"run": "a", "sizes": ["1x1", "1x2"]}
LOCK = "numpy==2.0.0\n"
PINS = f"@EXPLICIT\nhttps://c/linux-64/python-3.11.4-h1_0.conda#sha256:{'0' * 64}\n"
IMAGE = f"registry.example/tf@sha256:{'0' * 64}"


def table(*lines: str) -> Changes:
    return {"/config/runs.tsv": "".join(f"{line}\n" for line in lines)}


def cell(key: str, bad: str, found: str, says: str, good: str, **more: Any) -> Case:
    return case({f"@{key}": bad}, found, says, {f"@{key}": good}, **more)


# --- callbacks and collation -------------------------------------------------------------------------------------

OBJECT_CASES = {
    "a table of collation without a name": case(
        {"defaults.data.collate": {"size": 3}}, "data.collate.type is missing", "add it",
        {"defaults.data.collate": {"type": "pad"}},
    ),
    "a collation without arguments as a table": case(
        {"defaults.data.collate": {"type": "nested"}}, "data.collate.type=nested has no arguments",
        "write data.collate: (nested)", {"defaults.data.collate": "$1"},
    ),
    "a callback without a name": case(
        {"defaults.callbacks": [{"decay": 0.9}]}, "callbacks.0.type is missing", "add it",
        {"defaults.callbacks": [{"type": "EMAWeightAveraging", "decay": 0.9}]},
    ),
    "callbacks that do not count, without the check": case(
        {"runtime.callbacks": ["DeviceStatsMonitor"], "runtime.check": False}, "only the check finds a callback",
        "set runtime.check: (true)", {"runtime.check": True},
    ),
    "callbacks of a script": case(
        {**SCRIPT, "defaults.callbacks": ["LearningRateMonitor"]}, "callbacks are Lightning's",
        r"leave them out of defaults", {"defaults.callbacks": []},
    ),
    "callbacks of a script beside models": case(
        {**SCRIPT, "defaults.callbacks": ["LearningRateMonitor"]}, "callbacks are Lightning's",
        r"set callbacks to \[\[\]\] in this row", {"@callbacks": "[[]]"},
    ),
}  # fmt: skip

# --- the config as a file, and as a document ------------------------------------------------------

DOCUMENT_CASES = {
    "no config": case(
        {"/config/config.yaml": DROP}, "config.yaml: cannot be read", "run from the project's folder",
        {"/config/config.yaml": text_of()},
    ),
    "another encoding": case(
        {"/config/config.yaml": "# é\n".encode("latin-1") + text_of().encode()}, "byte 2 is not UTF-8",
        "save it as UTF-8", {"/config/config.yaml": "# é\n" + text_of()},
    ),
    "no YAML": case(
        {"/config/config.yaml": text_of() + "]"}, "not valid YAML (line 1", "fix it",
        {"/config/config.yaml": text_of()},
    ),
    "no keys": case(
        {"/config/config.yaml": ""}, "contains no keys", "see config/README.md", {"/config/config.yaml": text_of()},
    ),
    "a key twice": case(
        {"/config/config.yaml": text_of()[:-1] + ', "runs": "x"}'}, "line 1: runs is set twice", "drop one",
        {"/config/config.yaml": text_of()},
    ),
    "an alias of what it stands in": case(
        {"/config/config.yaml": text_of()[:-1] + ', "image": &a {"x": *a}}'}, "contains itself", "drop the YAML alias",
        {"/config/config.yaml": text_of(image={})},
    ),
    "no finite number": case(
        {"defaults.optim.lr": float("inf")}, "lr=inf is not a finite number", "give one", {"defaults.optim.lr": 0.1},
    ),
    "a date as a value": case(
        {"/config/config.yaml": text_of(defaults={"model_args": {"day": 0}}).replace("0}", "2020-01-01}")},
        "day=2020-01-01 is of type date", "put it in quotes",
        {"/config/config.yaml": text_of(defaults={"model_args": {"day": "2020-01-01"}})},
    ),
    "a key that is no text": case(
        {"/config/config.yaml": text_of(defaults={"model_args": {"1": 0}}).replace('"1"', "1")},
        "key 1 of defaults.model_args is of type int", "put it in quotes",
        {"/config/config.yaml": text_of(defaults={"model_args": {"1": 0}})},
    ),
    "a credential": case(
        {"@model_args.hub_token": TOKEN}, "hub_token contains", "an environment variable that runtime.pass_env",
        {"@model_args.hub_token": DROP, "runtime.pass_env": ["HUB_TOKEN"], "$HUB_TOKEN": TOKEN},
    ),
    "no credential": case(
        {"@model_args.hub_token": TOKEN}, "model_args.hub_token contains", "add ([^ ]+) to runtime.not_secret",
        {"runtime.not_secret": ["$1"]},
    ),
    "a credential in the config": case(
        {"defaults.model_args.hub_token": TOKEN}, "hub_token contains", "add ([^ ]+) to runtime.not_secret",
        {"runtime.not_secret": ["$1"]},
    ),
    "a login in a URL": case(
        {**ROWS, "datasets.digits.source.files": [
            {"url": "https://me:hunter2hunter2@x/a.csv", "sha256": "0" * 64, "bytes": 1}]},
        "datasets.digits.source.files.url contains", r"write (\$\{NAME\}) in its place",
        {"datasets.digits.source.files": [{"url": "https://me:$1@x/a.csv", "sha256": "0" * 64, "bytes": 1}],
         "$NAME": "hunter2hunter2"},
    ),
    "a login of a registry": case(
        {"image.base": "https://me:hunter2hunter2@registry/base"}, "image.base contains", "leave it out and log in",
        {"image.base": "registry/base"},
    ),
    "a login of an environment's registry": case(
        {"environments.e.image": f"https://me:hunter2hunter2@{IMAGE}"}, "environments.e.image contains",
        "leave it out and log in", {"environments.e.image": IMAGE},
    ),
    "a login of a host": case(
        {"runtime.hosts": ["me:hunter2hunter2@host1"]}, "runtime.hosts contains", "leave it out",
        {"runtime.hosts": ["host1"]},
    ),
    "a token of a channel": case(
        {"conda.channels": ["https://c/t/abcdefghijkl/main"]}, "conda.channels contains", "leave it out",
        {"conda.channels": ["https://c/main"]},
    ),
}  # fmt: skip

# --- the run table --------------------------------------------------------------------------------

TABLE_CASES = {
    "no table": case(
        {"/config/runs.tsv": DROP}, "runs=config/runs.tsv: cannot be read", "create it", table(HEAD, ROW)
    ),
    "another encoding": case(
        {"/config/runs.tsv": "# é\n".encode("latin-1")}, "byte 2 is not UTF-8", "save it as UTF-8",
        table("# é", HEAD, ROW),
    ),
    "no run": case(table(HEAD), "contains no run", "add a header and one row per run", table(HEAD, ROW)),
    "an open quote": case(
        table(HEAD, ROW, '"b\tdigits\tmlp'), "not a tab-separated table", "close the quotes",
        table(HEAD, ROW, '"b"\tdigits\tmlp'),
    ),
    "a quote over two lines": case(
        table(HEAD, 'a\tdigits\t"mlp', 'b"\tdigits\tmlp'), "contains a tab, line break", "close its quotes",
        table(HEAD, 'a\tdigits\t"mlp"', 'b\tdigits\tmlp'),
    ),
    "no column": case(
        table("name\tdataset", "a\tdigits"), 'column "model" is missing', "add it", table(HEAD, ROW)
    ),
    "no tabs": case(
        table("name,dataset,model", "a,digits,mlp"), "(columns are separated by tabs)", "add it", table(HEAD, ROW)
    ),
    "spaces for tabs": case(
        table(HEAD, f"{ROW}\t".replace("\t", " ")), "line 2: 1 cell, expected 3; the line has spaces", "type a tab",
        table(HEAD, ROW),
    ),
    "spaces for tabs in the header": case(
        table(HEAD.replace("\t", "  "), ROW), "header: 1 cell, expected 3", "type a tab", table(HEAD, ROW),
    ),
    "a column without a name": case(
        table(f"{HEAD}\t\tseed", f"{ROW}\t\t1"), "column 4 has no name", "drop its tabs",
        table(f"{HEAD}\tseed", f"{ROW}\t1"),
    ),
    "a column twice": case(
        table(f"{HEAD}\tseed\tseed", f"{ROW}\t1\t2"), '"seed" appears twice', "drop one",
        table(f"{HEAD}\tseed", f"{ROW}\t1"),
    ),
    "a column below another": case(
        table(f"{HEAD}\tmodel_args\tmodel_args.hidden", f"{ROW}\t\t4"), 'is a key of column "model_args"', "drop one",
        table(f"{HEAD}\tmodel_args.hidden", f"{ROW}\t4"),
    ),
    "an unknown column": case(
        {"@learning_rate": "0.1"}, "is not a known setting", 'did you mean "(.+)"', {"@learning_rate": DROP,
        "@optim.lr": "0.1"},
    ),
    "a column of a misspelt group": case(
        {"@model_arg.lr": "0.1"}, "is not a known setting", r'did you mean "(model_args\.lr)"',
        {"@model_arg.lr": DROP, "@$1": "0.1"},
    ),
    "a column that nothing is like": case(
        {"@zzz": "0.1"}, "is not a known setting", "known are (accelerator)", {"@zzz": DROP, "@$1": "cpu"},
    ),
    "a group": case(
        {"@optim": "0.1"}, '"optim" is a group', "such as optim.name, (optim.lr)", {"@optim": DROP, "@$1": "0.1"},
    ),
    "a free group": case(
        {"@model_args": "4"}, '"model_args" is a group', r"such as ([\w.]+)", {"@model_args": DROP, "@$1": "4"},
    ),
    "surplus cells": case(
        table(HEAD, f"{ROW}\t\t1"), "5 cells under 3 columns", "drop the surplus tabs", table(HEAD, ROW)
    ),
    "a table in a cell": case(
        {"@model_args.sizes": "{a: 1}"}, "is a table", "such as (.+)", {"@model_args.sizes": DROP, "@$1": "1"}
    ),
    "an empty grid": cell("seed", "[]", "is an empty grid", "list at least one value", "[1]"),
    "a value twice": cell("seed", "[1, 1, 2]", "lists 1 twice", "drop one", "[1, 2]"),
    "no YAML in a cell": cell("seed", "[1, 2", "is not valid YAML", "a list such as", "[1, 2]"),
    "a long name": cell("name", "a" * 201, "has 201 characters", "shorten it", "a" * 200),
    "a long name of a grid": case(
        {"@model_args.x": f"[{'b' * 200}, c]"}, "more than 200", "vary fewer keys", {"@model_args.x": "c"}
    ),
    "a name twice": case(
        table(HEAD, ROW, ROW), "is taken by config/runs.tsv line 2", "rename one", table(HEAD, ROW, "b\tdigits\tmlp")
    ),
    "values of a grid that look alike": case(
        {"@model_args.x": "[a b, a-b]"}, "taken by two of its grid's values", "rename one",
        {"@model_args.x": "[a b, c]"},
    ),
    "a name that no file can have": cell("name", "a b", "name=a b is not made of", "rename it", "a_b"),
    "no name": cell("name", "", "name=empty is not given", "fill it in", "a"),
}  # fmt: skip

# --- values and keys, of which test_config_remedies.py has many more -----------------------------

VALUE_CASES = {
    "no datasets": case({"datasets": {}}, "datasets is empty", "add an entry", {"datasets.digits": DIGITS}),
    "no channels": case(
        {"conda.channels": []}, "conda.channels=[] is empty", "add an entry", {"conda.channels": ["conda-forge"]}
    ),
    "a host twice": case(
        {"runtime.hosts": ["a", "a"]}, 'lists "a" twice', "drop one", {"runtime.hosts": ["a"]}
    ),
    "an unknown key": case(
        {"defaults.optim.lrr": 1}, "lrr is not a known key", 'did you mean "(.+)"',
        {"defaults.optim.lrr": DROP, "defaults.optim.$1": 1},
    ),
    "a share of training beside folds": case(
        FOLDED | {"datasets.digits.splits.train": 0.8}, "train is given beside folds", "drop it, and set validation",
        {"datasets.digits.splits.train": DROP, "datasets.digits.splits.validation": 0.2},
    ),
    "a share of tests beside folds": case(
        FOLDED | {"datasets.digits.splits.test": 0.1}, "test is given beside folds, which hold out each", "drop it",
        {"datasets.digits.splits.test": DROP},
    ),
    "times beside folds": case(
        FOLDED | {"datasets.digits.splits.time": "t"}, "splits.time is given beside folds", "drop one of them",
        {"datasets.digits.splits.time": DROP},
    ),
    "a share beside a column of splits": case(
        {"datasets.digits.splits": {"column": "s", "train": 0.8}}, "splits.train is given beside column, which names",
        "drop one of them", {"datasets.digits.splits.train": DROP}, passes=False,
    ),
    "a share beside files of splits": case(
        {"datasets.digits.splits": {"files": {"train": ["a"], "validation": ["b"], "test": ["c"]}, "test": 0.8}},
        "splits.test is given beside files, which decide", "drop one of them", {"datasets.digits.splits.test": DROP},
        passes=False,
    ),
    "a missing key": case(
        {"datasets.digits.shards": DROP}, "datasets.digits.shards is missing", "add it", {"datasets.digits.shards": 2}
    ),
    "a dataset's name": case(
        {"datasets.a b": DIGITS}, '"a b": the name is not', "rename it", {"datasets.a b": DROP, "datasets.a_b": DIGITS}
    ),
    "no name of a dataset": case(
        {"datasets": {"digits": DIGITS, "": DIGITS}}, 'datasets."": the name is not given', "rename it",
        {"datasets": {"digits": DIGITS, "b": DIGITS}},
    ),
    "a long name": case(
        {"datasets": {"digits": DIGITS, "d" * 151: DIGITS}}, "at most 150 characters", "rename it",
        {"datasets": {"digits": DIGITS, "d" * 150: DIGITS}},
    ),
    "another form": cell("optim.lr", "fast", "is not a number", "such as (.+)", "$1"),
    "a column's type": case(
        ROWS | {"datasets.digits.source.columns": {"x": "Float"}}, "columns.x=Float is not a type such as",
        "see docs/how-to/read-tables.md", {"datasets.digits.source.columns": {"x": "float32"}},
    ),
    "an empty value": case(
        {"defaults.seed": None}, "seed=empty", "fill it in or drop the line", {"defaults.seed": DROP}
    ),
    "a null": cell("seed", "null", "seed=empty", "leave the cell empty", ""),
    "no text": cell("code_files", "1", "is not text", "put it in quotes", "'1'", passes=False),
    "no list": case(
        {"runtime.hosts": "a"}, "is not a list", "put it in square brackets", {"runtime.hosts": ["a"]}
    ),
    "no list in a cell": cell(
        "evaluation.metrics", "CohenKappa", "is not a list", "two pairs of square brackets", "[[CohenKappa]]"
    ),
    "a whole number": cell("seed", "1.5", "is not a whole number", "write (1) or 2", "$1"),
    "a number written otherwise": cell("optim.lr", "1/4", "is not a number", "write (.+)", "$1"),
    "several numbers": cell("optim.lr", "0.1 0.2", "is not a number", r"write (\[.+\]) for", "$1"),
    "a list where there is no grid": case(
        {"runtime.log_every_steps": "10, 20"}, "is not a whole number", "such as (.+)",
        {"runtime.log_every_steps": "$1"},
    ),
    "a truth": cell("elastic", "no", "is not true or false", "write (.+)", "$1"),
    "a choice": cell("strategy", "dp", "is not one of", 'did you mean "(.+)"', "$1"),
    "a choice that YAML reads otherwise": case(
        {"runtime.watch_reads": False}, "is not one of", 'write "(.+)" in quotes', {"runtime.watch_reads": "$1"}
    ),
}  # fmt: skip

# --- settings that do not go together ---------------------------------------------------------------

SETTING_CASES = {
    "a batch for all ranks": case(
        {"@global_batch": "100", "@devices": "8"}, "cannot be split over 8 ranks", r"use (\d+) or", {"@global_batch":
        "$1"},
    ),
    "a larger batch for all ranks": case(
        {"@global_batch": "100", "@devices": "8"}, "cannot be split over 8 ranks", r"use \d+ or (\d+)",
        {"@global_batch": "$1"},
    ),
    "a batch for ranks and streams": case(
        {"@global_batch": "64", "@devices": "4", "@data.streams": "3", "datasets.digits.shards": 4},
        "is not divisible by data.streams=3", r"use (\d+)", {"@global_batch": "$1"},
    ),
    "a batch for parts and streams": case(
        {"@global_batch": "66", "@devices": "4", "@data.streams": "3", "datasets.digits.shards": 4},
        "cannot be split over 4 ranks", r"use (\d+)", {"@global_batch": "$1"},
    ),
    "no validation": case(
        {"@trainer.validate_every_epochs": "30"}, "is more than trainer.max_epochs=20", r"use at most (\d+)",
        {"@trainer.validate_every_epochs": "$1"},
    ),
    "no training": case(
        {"@trainer.max_steps": "0"}, "trains nothing", "or (-1) for", {"@trainer.max_steps": "$1"}
    ),
    "no end": case(
        {"@trainer.max_epochs": "-1"}, "have no end", "set (one)",
        {"@trainer.max_epochs": "-1", "@trainer.max_steps": "9"},
    ),
    "a least above the most": case(
        {"@trainer.min_epochs": "21"}, "is more than trainer.max_epochs=20", r"use at most (\d+)",
        {"@trainer.min_epochs": "$1"},
    ),
    "a share above all": case(
        {"@trainer.limit_train_batches": "2.5"}, "is a share above 1", "such as ([0-9.]+),",
        {"@trainer.limit_train_batches": "$1"},
    ),
    "validations beyond an epoch": case(
        {"@trainer.limit_train_batches": "3", "@trainer.val_check_interval": "4"}, "is more than the",
        r"use at most (\d+)", {"@trainer.val_check_interval": "$1"},
    ),
    "validations by time": case(
        {"@trainer.val_check_interval": "00:30:00"}, "is not a whole number or a number", "such as ([0-9.]+),",
        {"@trainer.val_check_interval": "$1"},
    ),
    "a limit in per cent": case(
        {"@trainer.limit_val_batches": "10%"}, "is not a whole number or a number", "write ([0-9.]+)",
        {"@trainer.limit_val_batches": "$1"},
    ),
    "two limits": case(
        {"@trainer.limit_val_batches": "3", "@trainer.overfit_batches": "4"}, "which limits both", "drop one",
        {"@trainer.limit_val_batches": DROP},
    ),
    "first rows of a mix": case(
        {**MIX, "@trainer.limit_val_batches": "3"}, "is given for a mix", "leave it out",
        {"@trainer.limit_val_batches": DROP},
    ),
    "values without a limit": case(
        {"@trainer.gradient_clip_algorithm": "value"}, "without trainer.gradient_clip", "set trainer.gradient_clip",
        {"@trainer.gradient_clip": "0.5"},
    ),
    "measured algorithms": case(
        {"@trainer.benchmark": "true"}, "other algorithms in each attempt", "set deterministic: (false)",
        {"@deterministic": "$1"},
    ),
    "batch norms of sharded weights": case(
        {"@strategy": "fsdp", "@trainer.sync_batchnorm": "true"}, "is only for strategy=ddp",
        "SyncBatchNorm in the model", {"@trainer.sync_batchnorm": DROP},
    ),
    "batch norms on CPUs": case(
        {"@accelerator": "cpu", "@trainer.sync_batchnorm": "true"}, "and accelerator=cpu", "drop it",
        {"@trainer.sync_batchnorm": DROP},
    ),
    "batch norms without a GPU": case(
        {"@trainer.sync_batchnorm": "true", "runtime.oversubscribe": True}, "this machine has no GPU", "drop it",
        {"@trainer.sync_batchnorm": DROP},
    ),
    "a compiled model of sharded weights": case(
        {"@strategy": "fsdp", "@trainer.compile": "true"}, "shards a model before", "use strategy=(ddp)",
        {"@strategy": "$1"},
    ),
    "an argument of the Trainer without a setting": case(
        {"@trainer.max_time": "1h"}, "there is no setting for it", "set (runtime.walltime_min)",
        {"@trainer.max_time": DROP, "runtime.walltime_min": 60},
    ),
    "an argument of the Trainer with another name": case(
        {"@trainer.accumulate_grad_batches": "1"}, "is not", 'mean "(trainer.accumulate)"',
        {"@trainer.accumulate_grad_batches": DROP, "@trainer.accumulate": "1"},
    ),
    "a precision of sharded weights": case(
        {"@strategy": "fsdp", "@precision": "16-mixed"}, "does not support precision=16-mixed", "use ([^ ]+)",
        {"@precision": "$1"},
    ),
    "a step of sharded weights": case(
        {"@strategy": "fsdp", "@divergence.policy": "skip"}, "cannot skip a step", "policy=([a-z]+)",
        {"@divergence.policy": "$1"},
    ),
    "half precision on CPUs": case(
        {"@accelerator": "cpu", "@precision": "16-mixed"}, "needs GPUs", "use ([^ ]+)", {"@precision": "$1"}
    ),
    "an environment under Azure ML": case(
        {"runtime.launcher": "azureml", "runtime.environment": "conda"}, "in the environment of their Azure ML job",
        "runtime.environment=([a-z]+)", {"runtime.environment": "$1"},
    ),
    "more shards than there are": case(
        {"@data.epoch": "partition", "@data.partition_shards": "5"}, "is more than datasets.digits.shards=2",
        r"use at most (\d+)", {"@data.partition_shards": "$1"},
    ),
    "fewer shards than ranks": case(
        {"@data.streams": "2", "@devices": "4"}, "datasets.digits.shards=2 is too few", r"use at least (\d+)",
        {"datasets.digits.shards": "$1"},
    ),
    "fewer shards in an epoch than ranks": case(
        {"@data.streams": "2", "@data.epoch": "partition"}, "data.partition_shards=1 is too few",
        r"use at least (\d+)", {"@data.partition_shards": "$1"},
    ),
    "fewer shards than ranks, of which an epoch visits some": case(
        {"@data.streams": "2", "@devices": "4", "@data.epoch": "partition"}, "datasets.digits.shards=2 is too few",
        r"use at least (\d+)", {"datasets.digits.shards": "$1", "@data.partition_shards": "$1"},
    ),
    "ranks without a launcher": case(
        {"runtime.launcher": "none"}, "starts one rank", r"use devices=(\d)", {"@devices": "$1"}
    ),
    "Slurm's launcher outside of Slurm": case(
        {"runtime.launcher": "srun"}, "outside of Slurm", "launcher=([a-z]+)", {"runtime.launcher": "$1"}
    ),
    "nodes without hosts": case(
        {"@nodes": "2"}, "this profile runs on one machine", r"use nodes=(\d)", {"@nodes": "$1"}
    ),
    "more nodes than hosts": case(
        {"@nodes": "2", "runtime.hosts": ["a"]}, "runtime.hosts lists 1", "list more hosts", {"runtime.hosts":
        ["a", "b"]},
    ),
    "no GPU": cell("accelerator", "gpu", "this machine has no GPU", "use ([a-z]+)", "$1"),
    "more ranks than cores": cell("devices", "16", "has 8 CPU cores", r"use at most (\d+)", "$1"),
    "more ranks than cores, allowed": case(
        {"@devices": "16"}, "has 8 CPU cores", "set runtime.oversubscribe: true", {"runtime.oversubscribe": True}
    ),
    "a dataset": cell("dataset", "digit", "is not in datasets of", 'did you mean "(.+)"', "$1"),
    "a mix in a cell": case(
        MIX | {"@dataset": "{digit: 1, b: 1}"}, "digit is not in datasets of", 'did you mean "(.+)"',
        {"@dataset": "{$1: 1, b: 1}"},
    ),
    "a mix of the config": case(
        MIX | {"mixes.m": {"digit": 1, "b": 1}, "@dataset": "m"}, "mixes.m.digit is not in datasets",
        'did you mean "(.+)"', {"mixes.m.digit": DROP, "mixes.m.$1": 1},
    ),
    "a mix with a dataset's name": case(
        MIX | {"mixes.b": {"digits": 1, "b": 1}}, "mixes.b has the name of a dataset", "rename one of them",
        {"mixes.b": DROP, "mixes.m": {"digits": 1, "b": 1}},
    ),
    "auto shards": case(
        {"datasets.digits.shards": "auto", "datasets.digits.source": {"type": "synthetic", "features": 3,
        "rows_per_shard": 9}},
        "shards=auto, but", "set the number of shards", {"datasets.digits.shards": 2},
    ),
    "a tokenizer of another form": case(
        {"@model": "gpt", **TEXTS, "datasets.digits.source.tokenizer": "t.json", "/t.json": "{}"},
        "tokenizer=", "save it with Tokenizer.save", {"/t.json": '{"model": {"vocab": {"a": 0}}}'},
    ),
    "a script's ranks": case(
        SCRIPT | {"@elastic": "true"}, "splits its batches itself", "use elastic=(false)", {"@elastic": "$1"}
    ),
}  # fmt: skip

# --- models, scripts and the files that they name -----------------------------------------------------

MODEL_CASES = {
    "a shipped model": cell("model", "mlpp", "neither one of linear", 'did you mean "(.+)"', "$1"),
    "no model": cell("model", "zzz", "neither one of linear", "known are .*(mlp)", "$1"),
    "no colon": case(
        {"@model": "a.net.Net", "/a/net.py": NET["/net.py"]}, "has no colon", "write (.+)", {"@model": "$1"}
    ),
    "a file's path": case(
        {"@model": "./a/net.py:Net", "/a/net.py": NET["/net.py"]}, "is the path of a file", "write (.+)",
        {"@model": "$1"},
    ),
    "no module": case(
        NET | {"/net.py": DROP}, "no module net in", "run from the folder that contains it", {"/net.py": NET["/net.py"]}
    ),
    "a misspelt module": case(
        {"@model": "a.nett:Net", "/a/net.py": NET["/net.py"], "/a/rows.py": ""},
        "no module a.nett; a contains net, rows; ", 'did you mean "(.+)"', {"@model": "$1:Net"},
    ),
    "a misspelt package": case(
        {"@model": "planns.net:Net", "/plans/net.py": NET["/net.py"]}, "no module planns.net; ",
        'did you mean "(.+)"', {"@model": "$1:Net"},
    ),
    "a module of another name": case(
        {"@model": "a.models:Net", "/a/net.py": NET["/net.py"]}, "no module a.models; a contains net",
        "name one of them", {"@model": "a.net:Net"},
    ),
    "folds of a script that reads its samples itself": case(
        FOLDED | SCRIPT, "has splits.folds, but the training script does not import shardline_io",
        "let the script get its batches from shardline_io", IO,
    ),
    "a fold of a dataset without folds": case(
        {"@fold": "1"}, "fold=1, but dataset=digits has no folds", "set its splits.folds",
        {"datasets.digits.splits": FOLDS},
    ),
    "all folds of a dataset without folds": case(
        {"@fold": "all"}, "fold=all, but dataset=digits has no folds", "leave fold out", {"@fold": "null"},
    ),
    "a fold beyond the last": case(
        {"@fold": "3", "datasets.digits.splits": FOLDS}, "fold=3, but dataset=digits has splits.folds=3",
        "use (all) or a number from 0 to 2", {"@fold": "$1"},
    ),
    "folds without a fold": case(
        {"datasets.digits.splits": FOLDS}, "and no fixed test set, but fold is not set", "set fold to (all)",
        {"@fold": "$1"},
    ),
    "a mix of several numbers of folds": case(
        MIX | {"datasets.digits.splits": FOLDS, "datasets.b.splits": {"folds": 2}, "@fold": "all"},
        "the datasets of the mix have 2 and 3 folds", "the same splits.folds", {"datasets.b.splits": FOLDS},
    ),
    "a mix with and without folds": case(
        MIX | {"datasets.digits.splits": FOLDS, "@fold": "1"},
        "the datasets of the mix have 0 and 3 folds", "the same splits.folds", {"datasets.b.splits": FOLDS},
    ),
    "a folder in place of a module": case(
        {"@model": "a:Net", "/a/net.py": NET["/net.py"]}, "no module a; a contains net", "name one of them",
        {"@model": "a.net:Net"},
    ),
    "a module below a module": case(
        {"@model": "a.net.py:Net", "/a/net.py": NET["/net.py"]}, "no module a.net.py", 'did you mean "(.+)"',
        {"@model": "$1:Net"},
    ),
    "no class": case(NET | {"@model": "net:Nett"}, "has no Nett", 'did you mean "(.+)"', {"@model": "net:$1"}),
    "a path into the results": case(
        {"@model_args.init": "results/runs/0/model.safetensors"}, "leads into results", r"copy it .*\((cp .*)\)",
        {"/weights/model.safetensors": "w", "@model_args.init": "weights/model.safetensors"},
    ),
    "a path into the results that counts": case(
        {"@model_args.init": "store/w", "/store/w": "w"}, "leads into store",
        "or name ([^ ]+) in the column code_files", {"@code_files": "$1"},
    ),
    "a head": cell("model", "hf:AutoModelForCausalLMM", "is a head that", 'did you mean "(.+)"', "$1"),
    "a head of one's own": case(
        {"@model": "hf:AutoModelForQuestionAnswering"}, "is a head that", "or write a LightningModule",
        NET,
    ),
    "no folder": case(OF_HUB, "has no config.json", "save the model there first", SAVED),
    "code of a model": case(
        OF_HUB | SAVED | {"/m/config.json": '{"auto_map": {"a": 1}}'}, "has auto_map in its config.json",
        "leave auto_map out", SAVED,
    ),
    "quantised weights": case(
        OF_HUB | SAVED | {"/m/config.json": '{"quantization_config": {"a": 1}}'}, "quantised weights",
        "save the model without them", SAVED,
    ),
    "another name of weights": case(
        OF_HUB | SAVED | {"/m/config.json": '{"transformers_weights": "w"}'}, "has transformers_weights",
        "save the model there again", SAVED,
    ),
    "an adapter": case(
        OF_HUB | SAVED | {"/m/adapter_config.json": "{}"}, "has an adapter_config.json", "merge the adapter",
        {"/m/adapter_config.json": DROP},
    ),
    "no weights": case(
        OF_HUB | {"/m/config.json": "{}"}, "has no model.safetensors", "save the model there first", SAVED
    ),
    "pickled weights": case(
        OF_HUB | {"/m/config.json": "{}", "/m/w.bin": "w"}, "has no model.safetensors", "save the model of w.bin there",
        SAVED,
    ),
    "an index of other files": case(
        OF_HUB | {"/m/config.json": "{}", INDEX: '{"weight_map": {"a": "../w"}}'}, "that names ../w",
        "save the model there again",
        {INDEX: '{"weight_map": {"a": "w.safetensors"}}', "/m/w.safetensors": "w"},
    ),
    "no JSON": case(
        OF_HUB | SAVED | {"/m/config.json": "["}, "is not a JSON object", "save the model there again", SAVED
    ),
    "an open quote": case(
        SCRIPT | {"@model": "script: train.py --a it's"}, "No closing quotation", "close its quotes",
        {"@model": "script: train.py --a it''s"},
    ),
    "no script": case(
        SCRIPT | {"@model": "script:"}, "names no file", "write script: path", {"@model": "script: train.py"}
    ),
    "a script elsewhere": case(
        SCRIPT | {"@model": "script: ../train.py"}, "is outside the project folder", "move it into the folder",
        {"@model": "script: train.py"},
    ),
    "a misspelt script": case(
        SCRIPT | {"@model": "script: trainn.py"}, "does not exist", 'did you mean "(.+)"', {"@model": "script: $1"}
    ),
    "a script of another language": case(
        SCRIPT | {"@model": "script: train.sh", "/train.sh": "python train.py\n"}, "is not a Python file",
        "start it from one that is", {"@model": "script: train.py"},
    ),
}  # fmt: skip

# --- samples and the evaluation -----------------------------------------------------------------------

LEAVE = "leave it out"
SAMPLE_CASES = {
    "class weights": cell(
        "data.class_weights", "balancd", "is neither `balanced`", 'did you mean "(.+)"', "$1"
    ),
    "no class weights": case(
        {"defaults.data.class_weights": {}}, "names no class", "name one", {"defaults.data.class_weights": {"1": 2}}
    ),
    "workers": cell("data.workers", "many", "is not auto, 0", "such as (.+)", "$1"),
    "a mix for a script": case(
        SCRIPT | MIX, "dataset names a mix", "name one dataset", {"@dataset": "b"}
    ),
    "a mix for a script that takes batches": case(
        SCRIPT | MIX, "dataset names a mix", r"get its batches from shardline_io.train\(\)", IO
    ),
    "a transform for a script": case(
        SCRIPT | {"@data.transform": "flip"}, "data.transform is given, but", LEAVE, {"@data.transform": DROP}
    ),
    "class weights of a mix": case(
        MIX | {"@data.class_weights": "balanced"}, "is given for a mix", LEAVE, {"@data.class_weights": DROP}
    ),
    "samples of an epoch": case(
        {"@data.epoch_samples": "99"}, "is a pass through it", "or give data.class_weights",
        {"@data.class_weights": "balanced"},
    ),
    "samples of an epoch, left out": case(
        {"@data.epoch_samples": "99"}, "is a pass through it", LEAVE, {"@data.epoch_samples": DROP}
    ),
    "streams of a mix": case(
        MIX | {"@data.streams": "2"}, "cannot be combined with a mix", r"use data.streams=(\d)", {"@data.streams": "$1"}
    ),
    "an epoch of a mix": case(
        MIX | {"@data.epoch": "partition"}, "cannot be combined with a mix", "with (data.epoch_samples)",
        {"@data.epoch": DROP, "@$1": "99"},
    ),
    "the last batch of a mix": case(
        MIX | {"@data.last_batch": "pad"}, "batches are all full", "use data.last_batch=([a-z]+)",
        {"@data.last_batch": "$1"},
    ),
    "a preprocessed dataset in a mix": case(
        MIX | {"datasets.digits.source": TABLE | {"preprocess": {}}, "/a.csv": ROWS["/a.csv"]},
        "which is fitted on one dataset alone", "or drop source.preprocess", {"datasets.digits.source": TABLE},
    ),
    "features that are scaled twice": case(
        ROWS | {"datasets.digits.source": TABLE | {"preprocess": {}}, "@data.normalize": "global"},
        "scales its features already", "drop one of them", {"@data.normalize": DROP},
    ),
    "an epoch of less than a batch": case(
        MIX | {"@data.epoch_samples": "9"}, "is less than global_batch=64", "use at least 64",
        {"@data.epoch_samples": "64"},
    ),
    "a pack's columns": case(
        {"defaults.data.pack": {"column": "tokens", "length": 8, "with": ["tokens"]}}, "data.pack.column itself",
        "or leave it out", {"defaults.data.pack.with": []},
    ),
    "class weights of packs": case(
        {"defaults.data.pack": {"column": "tokens", "length": 8}, "@data.class_weights": "balanced"},
        "is given with data.pack", "leave one out", {"@data.class_weights": DROP},
    ),
    "nested tensors of packs": case(
        {"defaults.data.pack": {"column": "tokens", "length": 8}, "@data.collate": "nested"},
        "whose samples have one length", "leave one out", {"@data.collate": DROP},
    ),
    "a transform without a type": case(
        {"defaults.data.transform": [{"size": 3}]}, "data.transform.0.type is missing", "add it",
        {"defaults.data.transform": [{"type": "resize", "size": 3}]},
    ),
    "a metric without a type": case(
        {"defaults.evaluation.metrics": [{"num_classes": 3}]}, "metrics.0.type is missing", "add it",
        {"defaults.evaluation.metrics": [{"num_classes": 3, "type": "CohenKappa"}]},
    ),
    "a metric twice": case(
        {"defaults.evaluation.metrics": ["CohenKappa", "CohenKappa"]}, "like another metric", "a different `name`",
        {"defaults.evaluation.metrics": ["CohenKappa", {"type": "CohenKappa", "name": "b"}]},
    ),
    "metrics of a script": case(
        SCRIPT | {"defaults.evaluation.metrics": ["CohenKappa"]}, "evaluates its model itself", LEAVE,
        {"defaults.evaluation.metrics": DROP},
    ),
    "metrics beside a test_step": case(
        {**NET, "/net.py": "class Net:\n    def test_step(self): ...\n",
         "defaults.evaluation.metrics": ["CohenKappa"]},
        "has a test_step", "leave it out", {"defaults.evaluation.metrics": DROP},
    ),
    "nothing that evaluates": case(
        NET | TEXTS, "nothing would evaluate it", "define (test_step)",
        {"/net.py": "class Net:\n    def $1(self): ...\n"},
    ),
}  # fmt: skip

# --- environments of scripts -----------------------------------------------------------------------------

STEP = "torch.optim.lr_scheduler:StepLR"
ONE_CYCLE = "torch.optim.lr_scheduler:OneCycleLR"
OPTIM_CASES = {
    "an optimiser of a script": case(
        SCRIPT | {"@optim.name": "torch.optim:RAdam"}, "but a training script makes its optim itself",
        "name the class in a column of model_args", {"@optim.name": DROP, "@model_args.optim": "torch.optim:RAdam"},
    ),
    "frozen by a script": case(
        SCRIPT | {"@freeze": "[[a.*]]"}, "a training script freezes", "leave it out", {"@freeze": DROP},
    ),
    "weights of a script": case(
        SCRIPT | {"/w.pt": "weights", "@init_from": "file:w.pt"}, "a training script loads its weights itself",
        "leave it out", {"@init_from": DROP},
    ),
    "milestones of a script": case(
        SCRIPT | {"@checkpoint.milestones": "[[2]]"}, "a training script saves its states itself",
        "leave it out", {"@checkpoint.milestones": DROP},
    ),
    "how to load no weights": case(
        {"@init.strict": "false"}, "init.strict is given without init_from", r"such as (init_from)",
        {"/w.pt": "weights", "@$1": "file:w.pt"},
    ),
    "a rate among the arguments": case(
        {"@optim.args.lr": "0.1"}, "lr is a setting of its own", r"write (optim\.lr)",
        {"@optim.args.lr": DROP, "@$1": "0.1"},
    ),
    "a group without a pattern": case(
        {"defaults.optim.groups": [{"lr": 0.1}]}, "optim.groups.0.match is missing", "add it",
        {"defaults.optim.groups": [{"match": "a.*", "lr": 0.1}]},
    ),
    "a group without an option": case(
        {"defaults.optim.groups": [{"match": "a.*"}]}, "no option beside match=a.*", "add one, such as lr",
        {"defaults.optim.groups": [{"match": "a.*", "lr": 0.1}]},
    ),
    "a warm-up of another schedule": case(
        {"@schedule.name": STEP, "@schedule.warmup_steps": "2"}, "warmup_steps=2, but", "set it to (0)",
        {"@schedule.warmup_steps": "$1"},
    ),
    "arguments of a shipped schedule": case(
        {"@schedule.args.step_size": "2"}, "takes no further arguments", "name a class by import path",
        {"@schedule.name": STEP},
    ),
    "epochs of a shipped schedule": case(
        {"@schedule.interval": "epoch"}, "steps after each optimiser step", "leave it out",
        {"@schedule.interval": DROP},
    ),
    "a metric of a shipped schedule": case(
        {"@schedule.monitor": "val_loss"}, "watches no metric", "leave it out", {"@schedule.monitor": DROP},
    ),
    "a schedule with two ends": case(
        {"@schedule.name": "cosine", "@schedule.epochs": "2", "@schedule.steps": "9"},
        "are two ends of one schedule", "drop one", {"@schedule.steps": DROP},
    ),
    "an end of a constant schedule": case(
        {"@schedule.epochs": "2"}, "has no end", "leave it out", {"@schedule.epochs": DROP},
    ),
    "an end in steps of a schedule in epochs": case(
        {"@schedule.name": ONE_CYCLE, "@schedule.interval": "epoch", "@schedule.steps": "9"},
        "interval=epoch counts epochs", r"use (schedule\.epochs)", {"@schedule.steps": DROP, "@$1": "9"},
    ),
    "a decay of another schedule": case(
        {"@schedule.decay_steps": "9"}, "has no such phase", r"use schedule.name=(\w+)", {"@schedule.name": "$1"},
    ),
    "no decay": case(
        {"@schedule.name": "wsd"}, "needs schedule.decay_steps", "set it", {"@schedule.decay_steps": "9"},
    ),
    "phases that do not fit": case(
        {"@schedule.name": "wsd", "@schedule.decay_steps": "9", "@schedule.steps": "8"}, "more than the 8 steps",
        "shorten one", {"@schedule.decay_steps": "8"},
    ),
}  # fmt: skip

ENVIRONMENT_CASES = {
    "no environment of that name": case(
        SCRIPT | {"@environment": "e"}, "is not in environments", "add it to `environments`",
        {"environments.e.venv": "own.lock", "/own.lock": LOCK},
    ),
    "a misspelt environment": case(
        SCRIPT | {"@environment": "trch", "environments.torch.venv": "own.lock", "/own.lock": LOCK},
        "is not in environments", 'did you mean "(.+)"', {"@environment": "$1"},
    ),
    "an environment of a model": case(
        {"@environment": "{venv: own.lock}", "/own.lock": LOCK}, "the model is a LightningModule",
        "leave environment empty", {"@environment": ""},
    ),
    "an environment in an image": case(
        SCRIPT | {"@environment": "{venv: own.lock}", "/own.lock": LOCK, "runtime.environment": "image"},
        "no other environment can be", "leave environment empty", {"@environment": ""},
    ),
    "an environment of Azure ML": case(
        SCRIPT | {"@environment": "{conda: pins.txt}", "/pins.txt": PINS, "runtime.launcher": "azureml"},
        "each node builds its environment", "write a lock", {"@environment": "{venv: own.lock}", "/own.lock": LOCK},
    ),
    "two kinds": case(
        SCRIPT | {"@environment": "{venv: own.lock, conda: pins.txt}", "/own.lock": LOCK, "/pins.txt": PINS},
        "names venv and conda", "name one", {"@environment": "{venv: own.lock}"},
    ),
    "no version": case(
        SCRIPT | {"@environment": "{venv: own.lock, python: /bin/python}", "/own.lock": LOCK},
        'is not a version such as "3.12"', "beside venv write one, in quotes",
        {"@environment": '{venv: own.lock, python: "3.12"}'},
    ),
    "no pin file": case(
        SCRIPT | {"@environment": "{conda: pins.txt}"}, "cannot be read", "conda list --explicit", {"/pins.txt": PINS}
    ),
    "pins without Python": case(
        SCRIPT | {"@environment": "{conda: pins.txt}", "/pins.txt": "@EXPLICIT\n"}, "pins no python",
        "conda list --explicit", {"/pins.txt": PINS},
    ),
    "an image by a tag": case(
        SCRIPT | {"@environment": "{image: tf:2}"}, "names no digest", "RepoDigests",
        {"@environment": f"{{image: '{IMAGE}'}}"},
    ),
}  # fmt: skip

# --- studies, predictions, notes, and what lies in the project ----------------------------------------------


def study(found: str, says: str, good: Changes, sizes: list[str], **more: Any) -> Case:
    return case({"scaling.s": {"run": "a", "sizes": sizes}}, found, says, good, **more)


def prediction(bad: Changes, found: str, says: str, good: Changes) -> Case:
    return case({"predictions.p": {"run": "a", "dataset": "digits"}} | bad, found, says, good)


PLACE_CASES = {
    "a study's run": case(
        {"scaling.s": STUDY | {"run": "aa"}}, "is not a run of", 'did you mean "(.+)"', {"scaling.s.run": "$1"}
    ),
    "one size": study("lists 1 sizes", "list two or more", {"scaling.s.sizes": ["1x1", "1x2"]}, ["1x1"]),
    "a size": study(
        "is not nodes x devices", "write it as (2x4)", {"scaling.s.sizes": ["1x1", "$1"]}, ["1x1", "4"], passes=False
    ),
    "a size twice": study("is listed twice", "drop one", {"scaling.s.sizes": ["1x1", "1x2"]}, ["1x1", "1x1", "1x2"]),
    "a name that a size has": case(
        {"scaling.s": STUDY, "runtime.hosts": ["h1", "h2"]} | table(
            f"{HEAD}\tnodes\tdevices", f"{ROW}\t1\t2", "a\tdigits\tlinear\t[1, 2]\t[1, 2]",
        ), "is taken by", "rename that run",
        table(f"{HEAD}\tnodes\tdevices", f"{ROW}\t1\t2", "b\tdigits\tlinear\t[1, 2]\t[1, 2]"),
    ),
    "a run to predict by": prediction(
        {"predictions.p.run": "aa"}, "is not a run of", 'did you mean "(.+)"', {"predictions.p.run": "$1"}
    ),
    "rows to predict": prediction(
        {"predictions.p.dataset": "digit"}, "is not in datasets", 'did you mean "(.+)"', {"predictions.p.dataset": "$1"}
    ),
    "no rows to predict": prediction(
        {"predictions.p.dataset": DROP}, "neither of dataset and files", "give one", {"predictions.p.dataset": "digits"}
    ),
    "files that all folds would predict": prediction(
        FOLDED | ROWS | {"predictions.p": {"run": "a", "files": ["a.csv"]}}, "predictions.p.files: run=a has fold=all",
        "such as (.+_fold=0)", {"predictions.p.run": "$1"},
    ),
    "another split that all folds would predict": prediction(
        FOLDED | {"predictions.p.split": "train"}, "predictions.p.split=train: run=a", "leave split out",
        {"predictions.p.split": DROP},
    ),
    "another dataset that all folds would predict": prediction(
        FOLDED | {"datasets.b": {**DIGITS, "shards": 3}, "predictions.p.dataset": "b"},
        "predictions.p.dataset=b: run=a", "leave dataset out", {"predictions.p.dataset": DROP},
    ),
    "a mix whose folds would be predicted": prediction(
        MIX | FOLDED | {"datasets.b.splits": FOLDS}, "it is trained on a mix", "name one of its folds",
        {"predictions.p.run": "a_fold=0"},
    ),
    "a prediction by a script": prediction(
        SCRIPT, "is the training script", "or train a LightningModule", {"@model": "mlp"}
    ),
    "a prediction of packs": prediction(
        {"defaults.data.pack": {"column": "tokens", "length": 8}}, "has data.pack", "call the model in your own script",
        {"predictions": {}},
    ),
    "a prediction of tokens": prediction(
        {"@model": "gpt"}, "scores tokens or pixels", "define (predict_step)",
        {"@model": "net:Net", "/net.py": "from shardline.training.models.gpt import GPT\n\n\nclass Net(GPT):\n"
         "    def $1(self): ...\n"},
    ),
    "files without a source": prediction(
        {"predictions.p.dataset": DROP, "predictions.p.files": ["a.csv"]}, "which reads no files", "name a dataset",
        {"predictions.p": {"run": "a", "dataset": "digits"}},
    ),
    "files as a torch dataset": prediction(
        {"datasets.digits.source": {"type": "flowers:Table"}, "datasets.digits.shards": 1,
         "/flowers.py": "from torch.utils.data import Dataset\n\n\nclass Table(Dataset):\n    pass\n",
         "predictions.p.dataset": DROP, "predictions.p.files": ["a.csv"]},
        "is no Source and cannot read other files", "add a dataset of these rows",
        {**{f"datasets.c.{k}": v for k, v in (("source", TABLE), ("shards", 1))}, "/a.csv": ROWS["/a.csv"],
         "predictions.p": {"run": "a", "dataset": "c"}},
    ),
    "files of a mix": prediction(
        MIX | {"predictions.p.dataset": DROP, "predictions.p.files": ["a.csv"]}, "trained on 2 datasets",
        "make a dataset of them, and name that",
        {**{f"datasets.c.{k}": v for k, v in (("source", TABLE), ("shards", 1))}, "/a.csv": ROWS["/a.csv"],
         "predictions.p": {"run": "a", "dataset": "c"}},
    ),
    "a note": case(
        {"/config/notes/a.md": "é".encode("latin-1")}, "cannot be read (not UTF-8)", "save it as UTF-8",
        {"/config/notes/a.md": "é"},
    ),
    "a note's tags": case(
        {"/config/notes/a.md": "---\ntags: a\n---\n"}, "is not a list of texts", "write (.+)",
        {"/config/notes/a.md": "---\ntags: $1\n---\n"},
    ),
    "a note's head": case(
        {"/config/notes/a.md": "---\ntags: [\n---\n"}, "are not valid YAML", "correct them",
        {"/config/notes/a.md": "---\ntags: []\n---\n"},
    ),
    "a note's keys": case(
        {"/config/notes/a.md": "---\ntags: []\na: b\n---\n"}, "only `tags` is known", "drop the rest",
        {"/config/notes/a.md": "---\ntags: []\n---\n"},
    ),
    "results without a number": case(
        {"/results/runs/0": "x"}, "before the first release", "move .* away", {"/results": DROP}
    ),
    "a number that cannot be read": case(
        {"/results/layout.json": "{"}, "is unreadable, expected", "write that into it",
        {"/results/layout.json": '{"layout": 2}'},
    ),
    "results of another version": case(
        {"/results/layout.json": '{"layout": 9}'}, "layout is 9, expected 2", "or move .* away", {"/results": DROP}
    ),
    "a store that one job has": case(
        {}, "is in the folder of this job only", "set (SHARDLINE_STORE)", {"$SHARDLINE_STORE": ".."},
        step=lambda project: project.check_store_stays(),
    ),
    "names that cannot be written": case(
        {"/results/layout.json": '{"layout": 2}', "/results/names.jsonl/a": ""}, "could not be written", "",
        {"/results/names.jsonl": DROP}, step=record_names,
    ),
}  # fmt: skip

CASES = {
    f"{kind}: {name}": one
    for kind, cases in {
        "object": OBJECT_CASES, "document": DOCUMENT_CASES, "table": TABLE_CASES, "value": VALUE_CASES,
        "setting": SETTING_CASES,
        "model": MODEL_CASES, "sample": SAMPLE_CASES, "optim": OPTIM_CASES, "environment": ENVIRONMENT_CASES,
        "place": PLACE_CASES,
    }.items()
    for name, one in cases.items()
}  # fmt: skip


def put(folder: Path, place: str, value: Any) -> None:
    path = folder / place.lstrip("/")
    if value is DROP:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(value if isinstance(value, bytes) else value.encode())


def put_key(table: dict[str, Any], dotted: str, value: Any) -> None:
    *groups, last = dotted.split(".")
    for group in groups:
        table = table.setdefault(group, {})
    if value is DROP:
        table.pop(last, None)
    else:
        table[last] = value


def loaded(folder: Path, changes: list[tuple[str, Any]], patch: pytest.MonkeyPatch) -> Project:
    """Do what Snakemake and the commands do before any job, with what the changes make of a small project."""
    config = json.loads(json.dumps(CONFIG))
    cells = {"name": "a", "dataset": "digits", "model": "mlp"}
    files = {}
    for place, value in changes:
        value = json.loads(json.dumps(value)) if isinstance(value, dict | list) else value
        if place[0] == "@":
            cells.pop(place[1:], None) if value is DROP else cells.update({place[1:]: value})
        elif place[0] == "$":
            patch.setenv(place[1:], value)
        elif place[0] == "/":
            files[place] = value
            put(folder, place, value)
        else:
            put_key(config, place, value)
    if "/config/runs.tsv" not in files:
        put(folder, "/config/runs.tsv", "\t".join(cells) + "\n" + "\t".join(cells.values()) + "\n")
    project = load.load_project(None if "/config/config.yaml" in files else config, workdir=folder)
    check_layout(project.layout)
    project.check_devices()
    assert project.notes is not None
    return project


def filled(value: Any, groups: tuple[str, ...]) -> Any:
    """Return the value of a remedy with what the message names."""
    if isinstance(value, list):
        return [filled(one, groups) for one in value]
    if not isinstance(value, str) or "$1" not in value:
        return value
    return value.replace("$1", groups[0])


@cache
def played(name: str) -> tuple[str, str, frozenset[tuple[str, int]]]:
    """Return a case's message, that of what comes after its remedy, and where errors were made.

    The second is empty where nothing is wrong then.
    """
    one = CASES[name]

    def outcome(folder: Path, changes: list[tuple[str, Any]]) -> str:
        try:
            project = loaded(folder, changes, patch)
            if one.step:
                one.step(project)
        except ShardlineError as error:
            return str(error).replace(f"{folder}/", "")
        return ""

    with TemporaryDirectory() as text, pytest.MonkeyPatch.context() as patch:
        folder = Path(text).resolve() / "project"
        folder.mkdir()
        patch.chdir(folder)
        patch.delenv("SHARDLINE_STORE", raising=False)
        patch.delenv("SLURM_JOB_ID", raising=False)
        patch.setattr(code_index, "parse_module", _parse_once)
        patch.setattr(project_module, "load_lock", _load_lock)
        patch.setattr(load, "pass_on", lambda names: None)
        patch.setattr(checks, "num_gpus", lambda: 0)
        patch.setattr(checks, "num_cpus", lambda: 8)
        made = note_errors(patch)
        first = outcome(folder, [*one.bad.items()])
        found = re.search(one.says, first.partition("; ")[2])
        if not found:
            return first, "the remedy is not in the message", frozenset(made)
        good = [
            (place.replace("$1", found[1]) if "$1" in place else place, _typed(place, value, found))
            for place, value in one.good.items()
        ]
        made_first = frozenset(made)
        return first, outcome(folder, [*one.bad.items(), *good]), made_first


def _typed(place: str, value: Any, found: re.Match[str]) -> Any:
    done = filled(value, found.groups())
    is_of_config = place[0] not in "@/$" and isinstance(value, str) and value == "$1"
    return yaml.safe_load(done) if is_of_config and done != "off" else done


@pytest.mark.parametrize("name", CASES)
def test_the_remedy_of_a_message_leads_to_success(name: str) -> None:
    one, (message, after, _) = CASES[name], played(name)
    assert one.found in message
    if one.passes:
        assert after == ""
    else:
        assert one.found not in after


# Errors that no config leads to, and texts that are none, by module and function, and how many each has.
ELSEWHERE = {
    # two identities of one digest: test_identity_collisions.py
    "load_datasets.load_datasets": 1, "project.add_run": 1,
    # warnings: test_named_objects.py, test_argument_paths.py
    "objects.unread_objects": 1,
    "script_files.uncounted_paths": 2,
    # test_code_files.py
    "script_files.find_code_files": 1,
    # notes: test_full_machine.py
    "sweeps.note_on_rest": 1,
    # ranks: test_elastic.py
    "resolved.accumulate_on": 2,
    # what changed while the pipeline ran: test_job_plan.py
    "job_plan.": 1, "job_plan.recheck_report": 1, "job_plan._refuse_other": 1,
}  # fmt: skip
# Modules whose texts tell of differences, results and ranks, or that test_sources_remedies.py holds.
NO_ERRORS = {"causes", "reference"}
# held by test_bases.py, test_combined.py, test_sweep_settings.py
OF_STUDIES = {
    "base_files",
    "bases",
    "combined",
    "load_sweeps",
    "references",
    "spaces",
    "stops",
    "sweep_checks",
    "sweep_values",
}
OF_SOURCES = {
    "checked_preprocess", "checked_sources", "checked_splits", "source_files", "source_settings",
}  # fmt: skip


def pattern_of(text: ast.JoinedStr | ast.Constant) -> str:
    """Return a pattern of what a text becomes; empty where it is no sentence, or values alone."""
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    written = [str(one.value) if isinstance(one, ast.Constant) else "" for one in parts]
    if not re.search("[a-z]{2} |; [a-z]| [a-z]{2}", " ".join(written)):
        return ""
    return ".*".join(re.escape(one) for one, _ in groupby(written))  # no values side by side


def errors_in(path: Path) -> Iterator[tuple[str, range | str]]:
    """Yield the errors of a module: the function, and the lines that make one, or the pattern of a text."""
    has_remedies = path.stem in ("remedies", "validate", "suggest")

    def below(node: ast.AST, function: str, is_given: bool) -> Iterator[tuple[str, range | str]]:
        for child in ast.iter_child_nodes(node):
            place = f"{path.stem}.{function}"
            match child:
                case ast.Expr(value=ast.Constant()):  # a docstring
                    pass
                case ast.Call(func=ast.Name(id="ConfigError" | "DataError")):
                    yield place, range(child.lineno, (child.end_lineno or 0) + 1)
                case ast.JoinedStr() | ast.Constant():
                    text = pattern_of(child)
                    if text and (is_given or r";\ " in text):
                        yield place, text
                case _:
                    name = child.name if isinstance(child, ast.FunctionDef) else function
                    is_text = has_remedies and isinstance(child, ast.Return | ast.Yield)
                    yield from below(child, name, is_given or is_text)

    yield from below(ast.parse(path.read_text()), "", False)


def test_every_error_of_the_config_has_a_case() -> None:
    messages = "\n".join(played(name)[0] for name in CASES)
    made = set().union(*(played(name)[2] for name in CASES))
    modules = sorted(Path(config_package.__file__ or "").parent.rglob("*.py"))
    missing = Counter[str]()
    for path in [*modules, Path(suggest.__file__)]:
        if path.stem in NO_ERRORS | OF_SOURCES | OF_STUDIES:
            continue
        lines = {line for file, line in made if Path(file) == path}
        for function, error in errors_in(path):
            is_made = lines & {*error} if isinstance(error, range) else re.search(error, messages)
            if not is_made:
                missing[function] += 1
    assert missing == ELSEWHERE, "give each a case, whose remedy is then tried"
