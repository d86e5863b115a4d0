"""What a message says to write instead, by what people write where a number or a key is meant.

The second half takes the remedies out of the messages of all bad values that `test_config_messages.py` has, and
applies them. Other errors of the config are in `test_config_remedies_applied.py`.
"""

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardline.config.load import load_project
from shardline.config.run_table import read_rows
from shardline.config.settings import dotted_keys, schema_at, schema_of
from shardline.config.settings.config import Config
from shardline.config.validate import coerce, problems_of
from shardline.core.nested import with_values
from shardline.errors import ConfigError
from tests.support.small_config import CONFIG, DIGITS
from tests.unit.config.test_config_messages import bad_configs, cells, structures, tables

HEAD = "name\tdataset\tmodel\t"


def message(folder: Path, table: str = f"{HEAD}seed\na\tdigits\tmlp\t1\n", **config: Any) -> str:
    (folder / "config").mkdir(exist_ok=True)
    (folder / "config" / "runs.tsv").write_text(table)
    with pytest.raises(ConfigError) as error:
        load_project({**CONFIG, **config}, workdir=folder)
    return str(error.value)


@pytest.mark.parametrize(
    ("key", "cell", "remedy"),
    [
        ("optim.lr", "0,01", "write 0.01"),
        ("optim.lr", "1,5e-3", "write 1.5e-3"),
        ("optim.lr", "0.01, 0.1", "write [0.01, 0.1] for a run of each"),
        ("optim.lr", "(0.01; 1e-3)", "write [0.01, 0.001] for a run of each"),
        ("optim.lr", "0.01 0.1", "write [0.01, 0.1] for a run of each"),
        ("optim.lr", "50%", "write 0.5"),
        ("optim.lr", "1/4", "write 0.25"),
        ("optim.lr", "fast", "write one, such as 0.1"),
        ("seed", "range(3)", "write [0, 1, 2] for a run of each"),
        ("seed", "range(1, 30, 2)", "write [1, 3, 5, ..., 29] for a run of each"),
        ("seed", "range(0)", "write one, such as 1"),
        ("seed", "range(1, 9, 0)", "write one, such as 1"),
        ("seed", "1.5", "write 1 or 2"),
        ("data.window_bytes", "10k", "write 10000"),
        ("data.window_bytes", "1.5M", "write 1500000"),
        ("data.window_bytes", "1 000", "write 1000"),
        ("data.window_bytes", "1_000_000", "write 1000000"),
        ("data.window_bytes", "1,000", "write 1000"),
        ("data.window_bytes", "2**5", "write 32"),
        ("data.window_bytes", "0,01", "write one, such as 1"),
        ("elastic", "no", "write false"),
        ("code_files", "1", "put it in quotes"),
        ("optim.lr", "null", "leave the cell empty for the default"),
    ],
)
def test_a_cell(key: str, cell: str, remedy: str, tmp_path: Path) -> None:
    found = message(tmp_path, f"{HEAD}{key}\na\tdigits\tmlp\t{cell}\n")
    assert found.endswith(f"; {remedy}"), found


def test_no_remedy_repeats_what_may_be_a_secret(tmp_path: Path) -> None:
    found = message(tmp_path, runtime={"not_secret": "hunter2hunter2"})
    assert "hunter2" not in found


# --- all at once ----------------------------------------------------------------------------------


def test_all_errors_of_config_and_table_come_at_once(tmp_path: Path) -> None:
    table = f"{HEAD}seed\toptim.lr\na\tdigits\tmlp\tx\t1\n\nb/c\tdigits\tmlp\t1\t0,1\n"
    found = message(
        tmp_path, table, defaults={"optim": {"lr": "y"}, "sede": 1}, runtime={"verify": "on"}
    )
    assert found.splitlines() == [
        'config/config.yaml: defaults.optim.lr="y" is not a number; write one, such as 0.1',
        'config/config.yaml: defaults.sede is not a known key; did you mean "seed"?',
        "config/config.yaml: runtime.verify=on is not one of off, first, always",
        'config/runs.tsv line 2 (run "a"): seed="x" is not a whole number; write one, such as 1',
        'config/runs.tsv line 4 (run "b/c"): name=b/c is not made of letters, digits and . _ + - after a first '
        "letter or digit; rename it",
        'config/runs.tsv line 4 (run "b/c"): optim.lr="0,1" is not a number; write 0.1',
    ]


def test_what_settings_together_forbid_is_named_for_all_rows(tmp_path: Path) -> None:
    table = f"{HEAD}global_batch\na\tdigits\tmlp\t3\nb\tdigit\tmlp\t4\nc\tdigits\tmlpp\t4\nd\tdigits\tmlp\t5\n"
    places = [line.partition(":")[0] for line in message(tmp_path, table).splitlines()]
    assert places == [
        f'config/runs.tsv line {n} (run "{run}")'
        for n, run in ((3, "b"), (2, "a"), (4, "c"), (5, "d"))
    ]


def test_thousands_of_errors_do_not_hide_the_first(tmp_path: Path) -> None:
    rows = "".join(f"a{number}\tdigits\tmlp\tx\n" for number in range(3000))
    lines = message(tmp_path, f"{HEAD}seed\n{rows}").splitlines()
    assert lines[0].startswith('config/runs.tsv line 2 (run "a0"): seed="x"')
    assert (len(lines), lines[-1]) == (21, "and 2980 more like these")


def test_columns_that_are_wrong_are_named_together(tmp_path: Path) -> None:
    found = message(tmp_path, "name\tdataset\tsede\tlr\na\tdigits\t1\t1\n")
    assert [line.partition("column ")[2].split()[0] for line in found.splitlines()] == [
        '"model"',
        '"sede"',
        '"lr"',
    ]


def test_a_misspelt_key_is_not_said_to_be_missing_too(tmp_path: Path) -> None:
    found = message(tmp_path, datasets={"d": {"source": {"type": "digits"}, "shard": 2}})
    assert (
        found == 'config/config.yaml: datasets.d.shard is not a known key; did you mean "shards"?'
    )


def test_a_missing_run_table_comes_with_how_to_write_it(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    config = tmp_path / "config/config.yaml"
    how = (
        "a header and one line per run, with the columns name, dataset and model, separated by tabs"
    )
    for content, expected in (
        ("datasets: {}", "runs is missing; add `runs: config/runs.tsv`, and create that file: "),
        ("runs: config/no.tsv", "runs=config/no.tsv: cannot be read (No such file or directory); create it: "),
    ):  # fmt: skip
        config.write_text(content)
        with pytest.raises(ConfigError) as error:
            load_project(workdir=tmp_path)
        assert f"{expected}{how}" in str(error.value)


# --- remedies taken out of the messages, and applied -----------------------------------------------

DROP = object()
VALUES = (
    (r'did you mean "(.+)"\?', lambda value, word: word),
    (r'write "(.+)" in quotes', lambda value, word: word),
    (
        r"write (?:one, such as )?(\[.+\]) in a cell of the run table for a run of each",
        lambda value, text: DROP,
    ),
    (r"write (?:one, such as )?(\S+?)(?: or \S+)?", lambda value, text: yaml.safe_load(text)),
    (r"put it in quotes()", lambda value, _: json.dumps(value)),
    (r"put it in square brackets()", lambda value, _: [value]),
    (r"fill it in or drop the line()", lambda value, _: DROP),
    (r"rename it()|fill it in()", lambda value, _: "renamed"),
    (r"give one()", lambda value, _: 1),
    (
        r"write a number of steps, or a share such as ([\d.]+), since .*",
        lambda value, share: float(share),
    ),
    (r"see docs/how-to/read-tables.md()", lambda value, _: "float32"),
)
# What is written where a message names what is expected, and no more.
EXPECTED = (
    (r"at least (.+)|at most (.+)", lambda number: yaml.safe_load(number)),
    (r"more than (.+)", lambda number: float(number) + 1),
    (r"less than (.+)", lambda number: float(number) / 2),
    (r"one of (.+?)(?:,.*)?", lambda word: word.strip('"')),
    (r"(?:a table of keys)()( or .*)?", lambda _: {}),
    (r"(?:a list)()( or .*)?", lambda _: []),
    (r"(?:text)()( or .*)?", lambda _: "x"),
    (r"true or false()( or a table of keys)?", lambda _: True),
    (r"null or (.+)", lambda word: word),
)
# Of keys that a message says to add.
MISSING = {
    "files": ["a.csv"], "table": "t", "version": 0, "train": 0.8, "validation": 0.1, "test": 0.1, "run": "a",
    "sizes": ["1x1", "1x2"], "sha256": "0" * 64, "bytes": 1, "url": "https://x/a", "type": "digits", "shards": 1,
    "source": {"type": "digits"}, "runs": "x.tsv", "defaults": {}, "datasets": {"d": DIGITS}, "mode": "min",
    "of": ["run:a", "run:b"], "steps": [100],
    "metric": "mse", "column": "c", "length": 8, "size": [8, 8], "features": 3, "rows_per_shard": 9, "label": "y",
}  # fmt: skip


def once(value: list[Any]) -> list[Any]:
    """Return a list, and lists within it, without what stands in it twice."""
    kept = (one for at, one in enumerate(value) if one not in value[:at])
    return [once(one) if isinstance(one, list) else one for one in kept]


def meant(remedy: str, expected: str, value: Any) -> Any:
    """Return what a message says to write in the place of a value."""
    for pattern, make in VALUES if remedy else ():
        if found := re.fullmatch(pattern, remedy):
            return make(value, found[1])
    for pattern, make in () if remedy else EXPECTED:
        if found := re.fullmatch(pattern, expected):
            return make(found[1] or found[found.lastindex or 0])
    raise AssertionError(f"nobody knows what to do by {remedy or expected!r}")


def at(config: Any, keys: list[str]) -> Any:
    for key in keys:
        config = config[int(key)] if isinstance(config, list) else config[key]
    return config


def put(config: Any, dotted: str, value: Any) -> None:
    """Set a key, of a table or a list; DROP removes it."""
    *above, last = dotted.split(".")
    for key in above:
        if isinstance(config, list):
            config = config[int(key)]
        else:
            config[key] = config[key] if isinstance(config.get(key), dict | list) else {}
            config = config[key]
    place = int(last) if isinstance(config, list) else last
    if value is DROP:
        del config[place]
    else:
        config[place] = value


def follow(config: dict[str, Any], problem: str) -> None:
    """Do what a problem says to do about a config."""
    if found := re.fullmatch(r'(\S+) is not a known key; did you mean "(.+)"\?', problem):
        key, name = found.groups()
        parent = key.rpartition(".")[0]
        value = at(config, key.split("."))
        put(config, key, DROP)
        near = f"{parent}.{name}" if parent else name
        table = (
            schema_at(Config, parent) if parent and "datasets" not in parent else schema_of(Config)
        )
        is_near = "datasets" in parent or name in dotted_keys(table.tables[0])
        put(config, near if is_near else name, value)
    elif found := re.fullmatch(
        r"(\S+) is (?:not a known key; known are|given beside .+; drop) .+", problem
    ):
        put(config, found[1], DROP)
    elif found := re.fullmatch(r"(\S+) is missing; add it", problem):
        last = found[1].rpartition(".")[2]
        put(config, found[1], "pad" if found[1].endswith("collate.type") else MISSING[last])
    elif found := re.fullmatch(r"(\S+?)(=\[\])? is empty; add an entry", problem):
        is_of_runs = found[1].rpartition(".")[2] in ("average", "ensemble")
        entry = {"of": MISSING["of"]} if is_of_runs else {"d": DIGITS}
        put(config, found[1], ["x"] if found[2] else entry)
    elif found := re.fullmatch(r"(\S+)=.+ lists .+ twice; drop one", problem):
        value = at(config, found[1].split("."))
        put(config, found[1], [one for place, one in enumerate(value) if one not in value[:place]])
    elif found := re.fullmatch(r'(\S+)\."(.*)": the name is not .+; rename it', problem):
        table = at(config, found[1].split("."))
        name = "__cuda" if "virtual" in found[1] else "renamed"
        table[name] = table.pop(found[2])
    else:
        found = re.fullmatch(r"([^\s=]+)=(.*) is not ([^;]+)(?:; (.*))?", problem, re.DOTALL)
        assert found, problem
        key, _, expected, remedy = found.groups()
        put(config, key, meant(remedy or "", expected, at(config, key.split("."))))


def is_known(problem: str, key: str, known: set[str]) -> bool:
    """Return whether the same was said of another key, whose remedy is the same."""
    plain = problem.replace(f"{key}=", "KEY=")
    is_again = plain in known
    known.add(plain)
    return is_again


def problems(config: dict[str, Any]) -> list[str]:
    form = schema_of(Config)
    return [*problems_of(coerce(config, form), form)]


def test_the_remedies_of_bad_values_and_keys_lead_to_success() -> None:
    tried, known = 0, set[str]()
    for what, changes in (*bad_configs(), *structures()):
        config, seen = deepcopy({**CONFIG, **changes}), set[str]()
        while found := problems(config):
            if not seen and is_known(found[0], what.partition("=")[0].split()[-1], known):
                break
            assert found[0] not in seen, f"{what}: {found[0]}, again after {config}"
            seen.add(found[0])
            tried += 1
            follow(config, found[0])
    assert tried > 1000


def follow_cell(column: str, cell: str, problem: str) -> tuple[str, str]:
    """Return the column and the cell that a problem says to write."""
    if found := re.search(r'column ".+" is not a known setting; did you mean "(.+)"', problem):
        return found[1], cell
    if "is not a known setting; known are" in problem:
        return "seed", cell
    if found := re.search(r"is a group; name one key of it, such as ([^,]+)", problem):
        return found[1], cell
    if found := re.search(r"is a table; use dotted columns, such as (.+)", problem):
        return found[1], "1"
    if found := re.search(r"; write a value or a list such as (.+)", problem):
        return column, found[1]
    if problem.endswith("leave the cell empty for the default"):
        return column, ""
    if problem.endswith("put it in quotes"):
        return column, f"'{cell}'"
    if "put it in two pairs of square brackets" in problem:
        return column, f"[[{cell.strip('[]') or 'x'}]]"
    if found := re.search(r"write (\[.+\]) for a run of each", problem):
        return column, found[1].replace("..., ", "")
    value = yaml.safe_load(cell)
    if problem.endswith("is an empty grid; list at least one value"):
        return column, "[1]"
    if found := re.search(r"lists (.+) twice; drop one", problem):
        return column, json.dumps(once(value))
    if isinstance(value, list):
        wrong = (one for one in value if f"={json.dumps(one)} " in problem or f"={one} " in problem)
        value = next(wrong, value)
    settings = with_values({}, {column: value})
    follow(settings, problem.split(": ", 1)[1])
    try:
        left = at(settings, column.split("."))
    except KeyError:
        return column, ""
    return column, left if isinstance(left, str) else json.dumps(left)


def test_the_remedies_of_bad_cells_and_columns_lead_to_success(tmp_path: Path) -> None:
    path, tried, known = tmp_path / "runs.tsv", 0, set[str]()
    for what, table in (*cells(), *tables()):
        header, row = (line.split("\t") for line in table.splitlines()[:2])
        if (
            what.startswith(("name", "no "))
            or header[3].strip().lower().split(".")[0] in header[:3]
        ):
            continue  # the columns that each table has
        column, cell, seen = header[3], row[3], set[str]()
        while True:
            path.write_text(f"{HEAD}{column}\na\tdigits\tmlp\t{cell}\n")
            try:
                read_rows(path, "t")
                break
            except ConfigError as error:
                problem = str(error).splitlines()[0]
            if not seen and is_known(problem, column, known):
                break
            assert problem not in seen, f"{what}: {problem}, again after {column}={cell}"
            seen.add(problem)
            tried += 1
            column, cell = follow_cell(column, cell, problem)
    assert tried > 400
