"""The reference of every key, written from the schemas.

`python -m shardline.config.reference > config/README.md` renews the page; a
test holds the page to the schemas.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from shardline.config.schema import load_schema

_HEAD = """\
<!-- Written by `python -m shardline.config.reference`, from Shardline's config/schemas/. -->

# Config

What is computed stands here; where it is computed stands in `profiles/`.

| file | holds |
| --- | --- |
| `config.yaml` | `defaults` (every setting of a run), `datasets`, `scaling`, and `runtime` (changes no result) |
| `runs.tsv` | the run table: one row is one run, or a grid of runs |

Both are held to schemas: a key that is not there is refused, with the nearest name.

## The run table

Cells are separated by tabs. Three columns are always there, and any setting can be a further one:

{columns}

- An empty cell takes the value of `defaults`.
- A cell that holds a list, `[a, b]`, makes a grid: one run for each value, or for each combination
  where several cells hold lists. Names get the varying keys.
- `model_args.` and any name make a column for an argument of the model's constructor. A list as the
  value of one is written as a grid of one: `[[64, 64]]`.
- A cell means what it looks like: `08` is 8, `1e-3` is 0.001, `no` is text.

```
name    dataset  model  global_batch  optim.lr        model_args.hidden
linear  digits   linear 32            0.01
mlp     digits   mlp    32            [0.001, 0.003]  [64, 128]
```

These two rows are five runs: `linear`, `mlp_lr=0.001_hidden=64`, `mlp_lr=0.001_hidden=128`,
`mlp_lr=0.003_hidden=64` and `mlp_lr=0.003_hidden=128`.

## What a change makes stale

Every result's path holds a digest of what it was made from
(Shardline's `docs/identity.md`). The last column of each table below says in whose digest a
key counts; what is made from that is stale with it. A value's notation does not count: `0.1`, `0.10`
and `1e-1` are one value. Neither does the order of rows, nor a dataset that no run uses. A key that is newer
than a result counts only where it is set to something else than what was computed before there was the key.
"""

_SETTINGS = """
## `defaults`

Each key may also be a column of the run table, under its dotted name.
"""
_DATASETS = """
## `datasets`

`datasets: {name: {...}}`; a row's `dataset` is one of these names. Without
`splits` they are 0.8, 0.1 and 0.1; who gives one gives all three.
"""
_SCALING = """
## `scaling`

`scaling: {name: {...}}`, each a run of the table trained at several sizes (Shardline's
`docs/scaling.md`).
"""
_RUNTIME = """
## `runtime`

How the work is done on this machine. Profiles may set these, as may
`snakemake --config runtime='{log_every_steps: 1}'`.
"""
_AZUREML = """
## `azureml`

What is told to Azure ML besides its jobs (Shardline's `docs/azureml.md`).
"""
_CONDA = """
## `conda`

The conda environments of the stages ([docs/environments.md](../docs/environments.md)).
"""
_IMAGE = """
## `image`

The container image (Shardline's `docs/containers.md`). `base` belongs into `config.yaml`, what one
site needs into its profile.
"""
_IDENTITY = """
## `identity`

When an earlier result stands for a present one without being asked (Shardline's `docs/cli.md`, `shardline accept`).
"""
_TOP = """
## Other keys of `config.yaml`
"""


def reference() -> str:
    """Return the page as Markdown."""
    config = load_schema("config")
    parts = config["properties"]
    dataset = parts["datasets"]["additionalProperties"]
    pages = [
        _HEAD.replace("{columns}", _table(_rows(load_schema("runs"), "train"))),
        _SETTINGS,
        _table(_rows(load_schema("settings"), "train")),
        _DATASETS,
        _table(_rows(dataset, "dataset")),
        _SCALING,
        _table(_rows(parts["scaling"]["additionalProperties"], "report, and runs that it adds")),
        _RUNTIME,
        _table(_rows(parts["runtime"], "nothing")),
        _AZUREML,
        _table(_rows(parts["azureml"], "nothing")),
        _CONDA,
        _table(_rows(parts["conda"], "nothing")),
        _IMAGE,
        _table(_rows(parts["image"], "nothing")),
        _IDENTITY,
        _table(_rows(parts["identity"], "nothing", "identity.")),
        _TOP,
        _table(_row(key, parts[key], config, "nothing") for key in ("runs", "lock")),
    ]
    return "\n".join(page.strip("\n") + "\n" for page in pages)


# where a key counts, unless the table that it stands in says it
_COUNTS = {
    "name": "nothing",
    "code_files": "train, by their bytes",
    "evaluation.split": "evaluate",
    "evaluation.batch": "evaluate",
    "shards_per_job": "nothing",
    "source.files": "dataset, by their bytes",
    "source.table": "dataset, by the table's id",
    "source.decode_threads": "nothing",
    "runs": "report, which names it",
    "lock": "all, by the pins that their code needs",
}


def _rows(
    schema: Mapping[str, Any], counts: str, prefix: str = ""
) -> Iterator[tuple[str, str, str, str, str]]:
    for key, part, owner in _properties(schema):
        dotted = f"{prefix}{key}"
        if part.get("properties"):
            yield from _rows(part, counts, f"{dotted}.")
        else:
            yield _row(dotted, part, owner, counts)


def _properties(
    schema: Mapping[str, Any],
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield key, schema and the table that the key stands in, those behind `if`/`then` as well."""
    for owner in (schema, *(rule["then"] for rule in schema.get("allOf", ()))):
        for key, part in owner.get("properties", {}).items():
            if isinstance(part, Mapping):
                yield key, part, owner


def _row(
    key: str, part: Mapping[str, Any], owner: Mapping[str, Any], counts: str
) -> tuple[str, str, str, str, str]:
    is_required = key.rpartition(".")[2] in owner.get("required", ())
    default = "required" if is_required else _value(part["default"]) if "default" in part else ""
    name = f"`{key}`"
    return name, _type(part), default, part["description"], _COUNTS.get(key, counts)


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value).replace('"', "")
    return f"`{text}`"


def _type(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(map(_value, part["enum"]))
    types: list[str] = part["type"] if isinstance(part["type"], list) else [part["type"]]
    words = {"object": "table", "array": "list", "string": "text", "boolean": "true, false"}
    name = " or ".join(words.get(kind, kind) for kind in types)
    bounds = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {part[key]}" for key, sign in bounds.items() if key in part]
    return f"{name} {', '.join(limits)}".strip()


def _table(rows: Iterator[tuple[str, str, str, str, str]]) -> str:
    head = ("key", "type", "default", "meaning", "counts in")
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    sys.stdout.write(reference())
