"""Reference page of all settings, and the JSON schema of the config."""

import ast
import inspect
import json
import sys
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from msgspec import UNSET, structs

from shardline.config.settings import ANYTHING, Key, KeySchema, Settings, keys_of, schema_of
from shardline.config.settings.config import (
    AzureML,
    Conda,
    Config,
    DatasetSettings,
    IdentitySettings,
    Image,
    PredictionSettings,
    Runtime,
    StudySettings,
)
from shardline.config.settings.run_settings import FixedColumns, RunSettings
from shardline.config.settings.source_settings import OwnSourceSettings, SourceSettings
from shardline.config.settings.sweep_settings import Dimension, SweepSettings

_JsonSchema = dict[str, Any]
_KEYWORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
    "pattern": "pattern",
    "unique": "uniqueItems",
}


def texts_of(table: type[Settings]) -> dict[str, str]:
    """Return the docstring of each key of a table on one line, or the description of its type."""
    known = keys_of(table)
    found = {key: one.schema.description for key, one in known.items()}
    for base in reversed(table.__mro__):
        if issubclass(base, Settings):
            texts = _texts(base)
            found |= {key: texts[one.field] for key, one in known.items() if one.field in texts}
    return found


def _texts(table: type[Settings]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(table)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    found = {}
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            match text:
                case ast.Expr(value=ast.Constant(value=str() as written)):
                    found[field.target.id] = " ".join(written.split())
    return found


def json_schema() -> _JsonSchema:
    """Return the JSON schema of `config.yaml`."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "config.yaml"}
    return {**head, **_of_schema(schema_of(Config))}


def _of_schema(key_schema: KeySchema) -> _JsonSchema:
    if key_schema.choices:
        others = structs.replace(key_schema, choices=())
        listed = {"enum": list(key_schema.choices)}
        is_text = key_schema.kinds == ("string",) and "pattern" not in key_schema.limits
        return listed if is_text else {"anyOf": [_of_schema(others), listed]}
    schema: _JsonSchema = {}
    if kinds := key_schema.kinds:
        schema["type"] = kinds[0] if len(kinds) == 1 else list(kinds)
    sized = {"string": "Length", "array": "Items", "object": "Properties"}
    for name, limit in key_schema.limits.items():
        if name in _KEYWORDS:
            schema[_KEYWORDS[name]] = limit
        elif name in ("min_length", "max_length"):
            schema |= {f"{name[:3]}{sized[kind]}": limit for kind in kinds if kind in sized}
    if key_schema.item:
        schema["items"] = _of_schema(key_schema.item)
    if key_schema.name and key_schema.value:
        schema |= {
            "propertyNames": _of_schema(key_schema.name),
            "additionalProperties": _of_schema(key_schema.value),
        }
    tables = [_of_table(table) for table in key_schema.tables if table is not SourceSettings]
    if key_schema.value:  # any table is valid
        return schema
    if len(tables) > 1:
        return {**schema, "anyOf": tables}
    return {**schema, **tables[0]} if tables else schema


def _of_table(table: type[Settings]) -> _JsonSchema:
    texts = texts_of(table)
    schema: _JsonSchema = {
        "description": " ".join(str(table.__doc__).split()),
        "properties": {key: _of_key(one, texts[key]) for key, one in keys_of(table).items()},
        "additionalProperties": not table.__struct_config__.forbid_unknown_fields,
    }
    if issubclass(table, SourceSettings):
        is_own = table is OwnSourceSettings
        schema["properties"]["type"] |= {"pattern": ":"} if is_own else {"const": table.named}
    if required := [key for key, one in keys_of(table).items() if one.is_required]:
        schema["required"] = required
    return schema


def _of_key(key: Key, text: str) -> _JsonSchema:
    schema = _of_schema(key.schema)
    if text:
        schema["description"] = text
    if key.default is not UNSET:
        schema["default"] = key.default
    return schema


_HEAD = """\
<!-- Written by `python -m shardline.config.reference`, from src/shardline/config/settings/. -->

# Config

The files in this folder set what is computed. `profiles/` sets where it is computed.

| file | contents |
| --- | --- |
| `config.yaml` | `defaults` (every setting of a run), `datasets`, `scaling`, and `runtime` (changes no result) |
| `runs.tsv` | the run table: one row is one run, or a grid of runs |

Unknown keys are rejected, with the nearest known name. `python -m shardline.config.reference --schema` prints a JSON
schema of `config.yaml`, for completion in editors.

## The run table

Cells are separated by tabs. Three columns are required, and any setting can be a further column:

{columns}

- An empty cell means the value of `defaults`. Lines that begin with `#` are ignored.
- A name contains letters and digits of any script, and `. _ + -` after the first character.
- A list in a cell, `[a, b]`, makes a grid: a run for each value, or for each combination of several
  lists. The varied keys are appended to the name.
- A column `model_args.NAME` sets an argument of the constructor of the model. Write an argument that
  is a list as a grid with one value: `[[64, 64]]`.
- A cell of `dataset` can contain a mix, `{web: 0.7, books: 0.3}`. A cell of `data.transform`,
  `data.collate`, `data.pack` or `data.class_weights` can contain a table, which replaces the whole
  table of `defaults`. Write a list of transforms as a grid with one value: `[[decode, flip]]`.
- Cells are read literally: `08` is 8, `1e-3` is 0.001, `no` is text.

```
name    dataset  model  global_batch  optim.lr        model_args.hidden
linear  digits   linear 32            0.01
mlp     digits   mlp    32            [0.001, 0.003]  [64, 128]
```

These two rows are five runs: `linear`, `mlp_lr=0.001_hidden=64`, `mlp_lr=0.001_hidden=128`,
`mlp_lr=0.003_hidden=64` and `mlp_lr=0.003_hidden=128`.

## What a change makes stale

The path of each result contains a digest of its inputs (see Shardline's `docs/concepts/identity.md`). The
last column of each table below names the stage in whose digest a key counts. A change makes the results of
this stage stale, and all results made from them. Notation does not count: `0.1`, `0.10` and `1e-1` are equal.
Neither does the order of rows, or a dataset that no run uses. A key that is newer than a result counts only if
its value differs from the earlier behavior.
"""

_SETTINGS = """
## `defaults`

Each key can also be a column of the run table, with its dotted name.
"""
_DATASETS = """
## `datasets`

`datasets: {name: {...}}`. The column `dataset` of the run table uses these names. The default of `splits` is
0.8, 0.1 and 0.1; set all three shares, or none.
"""
_MIXES = """
## `mixes`

`mixes: {name: {web: 0.7, books: 0.3}}`: names of `datasets` with weights, for the column `dataset` (see
Shardline's `docs/how-to/mix-datasets.md`). The proportions of the weights count in the training. Names do not
count.
"""
_SCALING = """
## `scaling`

`scaling: {name: {...}}`: runs of the table that are trained at several sizes (see
Shardline's `docs/how-to/run-a-scaling-study.md`).
"""
_SWEEPS = """
## `sweeps`

`sweeps: {name: {...}}`: searches for better settings of a run (see Shardline's `docs/how-to/sweep.md`).
"""
_SPACE = """
A value of `sweeps.NAME.space` is a list to choose from, or a table with one of these keys, and `when`:
"""
_PREDICTIONS = """
## `predictions`

`predictions: {name: {...}}`: predictions of the model of a run, in `results/predictions/NAME.parquet` (see
Shardline's `docs/how-to/predict.md`).
"""
_RUNTIME = """
## `runtime`

How jobs run on this machine. Set these keys in a profile, or with
`snakemake --config runtime='{log_every_steps: 1}'`.
"""
_AZUREML = """
## `azureml`

Registration with Azure ML (see Shardline's `docs/how-to/run-on-azure-ml.md`).
"""
_CONDA = """
## `conda`

The conda environments of the stages ([docs/how-to/lock-environments.md](../docs/how-to/lock-environments.md)).
"""
_IMAGE = """
## `image`

The container image (see Shardline's `docs/how-to/run-in-containers.md`). Set `base` in `config.yaml`, and the
other keys in the profile of a site.
"""
_IDENTITY = """
## `identity`

When earlier results are accepted automatically (see Shardline's `docs/concepts/identity.md`).
"""
_TOP = """
## Other keys of `config.yaml`
"""


def reference() -> str:
    """Return the reference page as Markdown."""
    sections: tuple[tuple[str, type[Settings], str], ...] = (
        (_SETTINGS, RunSettings, "train"),
        (_DATASETS, DatasetSettings, "dataset"),
        (f"{_MIXES}{_SCALING}", StudySettings, "report, and runs that it adds"),
        (_SWEEPS, SweepSettings, "sweep"),
        (_SPACE, Dimension, "sweep"),
        (_PREDICTIONS, PredictionSettings, "predict"),
        (_RUNTIME, Runtime, "nothing"),
        (_AZUREML, AzureML, "nothing"),
        (_CONDA, Conda, "nothing"),
        (_IMAGE, Image, "nothing"),
    )
    top = (
        row for row in _rows(Config, "nothing") if row[0] in ("`runs`", "`lock`", "`environments`")
    )
    pages = [
        _HEAD.replace("{columns}", _table(_rows(FixedColumns, "train"))),
        *(
            page
            for text, table, counts in sections
            for page in (text, _table(_rows(table, counts)))
        ),
        _IDENTITY,
        _table(_rows(IdentitySettings, "nothing", "identity.")),
        _TOP,
        _table(top),
    ]
    return "\n".join(page.strip("\n") + "\n" for page in pages)


# the stage in which a key counts, if it differs from the stage of its table
_COUNTS = {
    "name": "nothing",
    "code_files": "train, by their bytes",
    "uncounted_args": "nothing",
    "data.workers": "nothing",
    "checkpoint.milestones": "nothing",
    "checkpoint.milestones.steps": "nothing",
    "checkpoint.keep_last": "nothing",
    "shards_per_job": "nothing",
    "source.files": "dataset, by their bytes",
    "source.table": "dataset, by the table's id",
    "source.tokenizer": "dataset, by its bytes",
    "source.decode_threads": "nothing",
    "runs": "report",
    "trials": "nothing",
    "parallel": "sweep, by its first number",
    "lock": "all, by the pins that their code needs",
}


ReferenceRow = tuple[str, str, str, str, str]


def _rows(table: type[Settings], counts: str, prefix: str = "") -> Iterator[ReferenceRow]:
    texts = texts_of(table)
    for key, known in keys_of(table).items():
        dotted = f"{prefix}{key}"
        if not known.schema.tables or not known.schema.is_table:
            yield _row(dotted, known, texts[key], counts)
        if known.schema.tables and known.schema.value in (None, ANYTHING):
            yield from _rows_below(known.schema, counts, f"{dotted}.")


def _rows_below(schema: KeySchema, counts: str, prefix: str) -> Iterator[ReferenceRow]:
    """Yield the keys of each kind of a table; equal keys of several kinds are merged."""
    found: dict[ReferenceRow, list[str]] = {}
    for number, table in enumerate(schema.tables):
        named = getattr(table, "named", "")
        for key, kind, default, meaning, counted in _rows(table, counts, prefix):
            if number and not hasattr(table, "named"):
                default = ""  # required only if the table is of another kind than the default
            found.setdefault((key, kind, default, meaning, counted), []).append(named)
    for (key, kind, default, meaning, counted), names in found.items():
        if all(names) and len(names) < len(schema.tables):
            named = ", ".join(f"`{one}`" if one.isidentifier() else one for one in names)
            meaning = f"{named}: {meaning[0].lower()}{meaning[1:]}"
        yield key, kind, default, meaning, counted


def _row(key: str, known: Key, text: str, counts: str) -> ReferenceRow:
    default = "" if known.default is UNSET else _value(known.default)
    default = "required" if known.is_required else default
    stage = "evaluate" if key.startswith("evaluation.") else _COUNTS.get(key, counts)
    return f"`{key}`", _type(known.schema), default, text, stage


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    return f"`{text}`"


def _type(schema: KeySchema) -> str:
    if schema.choices:
        listed = ", ".join(map(_value, schema.choices))
        others = structs.replace(schema, choices=())
        if "pattern" in schema.limits:
            return f"{listed}, import path"
        return listed if schema.kinds == ("string",) else f"{_type(others)}, {listed}"
    words = {"object": "table", "array": "list", "string": "text", "boolean": "true, false"}
    name = " or ".join(words.get(kind, kind) for kind in schema.kinds)
    bounds = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [
        f"{sign} {schema.limits[key]}" for key, sign in bounds.items() if key in schema.limits
    ]
    return f"{name} {', '.join(limits)}".strip()


def _table(rows: Iterable[ReferenceRow]) -> str:
    head = ("key", "type", "default", "meaning", "counts in")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    if "--schema" in sys.argv:
        sys.stdout.write(json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(reference())
