"""The run table: grids, cells and names; its errors are in `test_config_remedies_applied.py`."""

from pathlib import Path
from typing import Any

import pytest

from shardline.config.run_table import Row, read_rows
from shardline.errors import ConfigError

HEAD = "name\tdataset\tmodel"


@pytest.fixture
def table(tmp_path: Path) -> Any:
    def read(content: str | bytes) -> list[Row]:
        path = tmp_path / "runs.tsv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_rows(path, "config/runs.tsv")

    return read


def one(table: Any, key: str, cell: str) -> Any:
    """The value that a cell gives."""
    (row,) = table(f"{HEAD}\t{key}\na\tdigits\tmlp\t{cell}\n")
    return row.settings[key]


def test_grid_expands_and_names_get_the_varying_keys(table: Any) -> None:
    rows = table(
        f"{HEAD}\toptim.lr\tseed\ttrainer.max_epochs\n"
        "wide\tdigits\tmlp\t[0.1, 1e-3]\t[1, 2]\t5\nplain\tdigits\tlinear\t\t\t\n"
    )
    assert [row.name for row in rows] == [
        "wide_lr=0.1_seed=1",
        "wide_lr=0.1_seed=2",
        "wide_lr=0.001_seed=1",
        "wide_lr=0.001_seed=2",
        "plain",
    ]
    assert rows[3].settings == {"optim.lr": 0.001, "seed": 2, "trainer.max_epochs": 5}
    assert rows[3].varied == {"optim.lr": 0.001, "seed": 2}
    assert rows[4].settings == {}


def test_grid_over_two_keys_of_one_ending_names_both_in_full(table: Any) -> None:
    rows = table(f"{HEAD}\toptim.name\tschedule.name\na\td\tm\t[sgd, adam]\t[linear, cosine]\n")
    assert rows[0].name == "a_optim.name=sgd_schedule.name=linear"


def test_grid_of_one_is_a_value_and_varies_nothing(table: Any) -> None:
    (row,) = table(f"{HEAD}\tmodel_args.hidden\na\tdigits\tmlp\t[[64, 64]]\n")
    assert (row.name, row.settings, row.varied) == ("a", {"model_args.hidden": [64, 64]}, {})


def test_lists_and_null_in_names_are_readable(table: Any) -> None:
    rows = table(f"{HEAD}\tmodel_args.hidden\na\tdigits\tmlp\t[[64, 64], null, true]\n")
    assert [row.name for row in rows] == ["a_hidden=64-64", "a_hidden=null", "a_hidden=true"]


@pytest.mark.parametrize(
    ("key", "cell", "value"),
    [
        ("optim.lr", "1e-3", 0.001),
        ("optim.lr", "1", 1.0),
        ("optim.lr", ".5", 0.5),
        ("seed", "08", 8),
        ("seed", "010", 10),
        ("seed", "1e3", 1000),
        ("deterministic", "TRUE", True),
        ("early_stopping.stopping_threshold", "null", None),
        ("precision", "32-true", "32-true"),
        ("model_args.word", "no", "no"),
        ("model_args.word", "2020-01-01", "2020-01-01"),
        ("model_args.word", "a: b # c", "a: b # c"),
        ("model_args.word", "-", "-"),
        ("model_args.word", "['1']", "1"),
        ("model_args.number", "1", 1),
        ("model_args.number", "1.0", 1.0),
        ("model_args.table", "[{a: 1}]", {"a": 1}),
    ],
)
def test_cell_means_what_it_looks_like(table: Any, key: str, cell: str, value: Any) -> None:
    found = one(table, key, cell)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "content",
    [
        f"{HEAD}\tseed\r\na\tdigits\tmlp\t3\r\n",
        f"\ufeff{HEAD}\tseed\na\tdigits\tmlp\t3\n",
        f"{HEAD}\tseed\n\n a \tdigits\tmlp\t 3 \n\t\t\t\n",
        f'{HEAD}\tseed\n"a"\tdigits\tmlp\t"3"\n',
        f'{HEAD}\tseed\na\tdigits\tmlp\t"[3]"',
    ],
    ids=["crlf", "byte order mark", "blank lines and spaces", "quotes", "quoted list, no newline"],
)
def test_what_editors_and_spreadsheets_write(table: Any, content: str) -> None:
    (row,) = table(content)
    assert (row.name, row.settings) == ("a", {"seed": 3})


@pytest.mark.parametrize(
    "name", ["..", "a/b", "-a", "a b", ".hidden", "\u0301a", "a\u200bb", "a\u202eb", "a“b"]
)
def test_name_that_is_no_folder_name_is_refused(table: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="is not made of letters, digits"):
        table(f"{HEAD}\n{name}\tdigits\tmlp\n")


@pytest.mark.parametrize("name", ["café", "ñandú", "实验-1", "हिन्दी", "Größe_2", "опыт.3", "é"])
def test_names_of_any_script(table: Any, name: str) -> None:
    assert [row.name for row in table(f"{HEAD}\n{name}\tdigits\tmlp\n")] == [name]


def test_a_letter_that_is_written_as_two_characters_is_the_same_name(table: Any) -> None:
    (row,) = table(f"{HEAD}\nde\u0301ja\u0300\tdigits\tmlp\n")
    assert row.name == "d\u00e9j\u00e0"
    with pytest.raises(ConfigError, match="is taken by"):
        table(f"{HEAD}\nde\u0301ja\u0300\tdigits\tmlp\nd\u00e9j\u00e0\tdigits\tmlp\n")


def test_a_grid_over_words_of_any_script_has_names_of_them(table: Any) -> None:
    rows = table(f"{HEAD}\tmodel_args.words\na\tdigits\tmlp\t[été, où!]\n")
    assert [row.name for row in rows] == ["a_words=été", "a_words=où-"]


def test_rows_are_switched_off_and_named_by_their_lines(table: Any) -> None:
    text = f'# my runs\n{HEAD}\n\n#a\tdigits\tmlp\n  # "not closed\nb\tdigits\tmlp\n'
    (row,) = table(text)
    assert (row.name, row.where) == ("b", 'config/runs.tsv line 6 (run "b")')
    with pytest.raises(ConfigError, match="contains no run; add a header"):
        table(f"{HEAD}\n#a\tdigits\tmlp\n")
