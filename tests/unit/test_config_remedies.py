"""What a message says to write instead, by what people write where a number or a key is meant."""

from pathlib import Path
from typing import Any

import pytest

from shardline.config.load import load_project
from shardline.errors import ConfigError
from tests.unit.test_config_load import CONFIG

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


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        ({"defaults": {"optim": {"lr": "0,01"}}}, "write 0.01"),
        (
            {"defaults": {"optim": {"lr": "0.01, 0.1"}}},
            "write [0.01, 0.1] in a cell of the run table for a run of each",
        ),
        (
            {"defaults": {"seed": [1, 2]}},
            "write [1, 2] in a cell of the run table for a run of each",
        ),
        ({"runtime": {"log_every_steps": "10, 20"}}, "write one, such as 10"),
        ({"runtime": {"watch_reads": False}}, 'write "off" in quotes'),
        ({"runtime": {"hosts": "node1"}}, "put it in square brackets"),
        ({"defaults": {"optim": {"learning_rate": 1}}}, 'did you mean "defaults.optim.lr"?'),
        ({"defaults": {"store": "x"}}, 'did you mean "runtime.store"?'),
        ({"lr": 1}, 'did you mean "defaults.optim.lr"?'),
    ],
)
def test_the_config(config: dict[str, Any], remedy: str, tmp_path: Path) -> None:
    found = message(tmp_path, **config)
    assert found.endswith(f"; {remedy}"), found


@pytest.mark.parametrize(
    ("column", "meant"),
    [
        ("optim.learning_rate", "optim.lr"),
        ("learning-rate", "optim.lr"),
        ("batch_size", "global_batch"),
        ("num_epochs", "trainer.max_epochs"),
        ("gpus", "devices"),
        ("Seed", "seed"),
    ],
)
def test_a_column_by_the_name_that_it_has_elsewhere(
    column: str, meant: str, tmp_path: Path
) -> None:
    found = message(tmp_path, f"{HEAD}{column}\na\tdigits\tmlp\t1\n")
    assert found.endswith(f'did you mean "{meant}"?')


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
