"""The run table: grids, cells, names, and the errors of a table written by hand."""

from pathlib import Path
from typing import Any

import pytest

from shardline.config.runs import Row, read_rows
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


ROW_1 = 'config/runs.tsv line 2 (run "a"): '


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "config/runs.tsv: holds no run; give a header and one row per run"),
        (f"{HEAD}\n", "config/runs.tsv: holds no run; give a header and one row per run"),
        (b"name\xff", "config/runs.tsv: byte 4 is not UTF-8; save it as UTF-8"),
        (
            "name,dataset,model\na,b,c\n",
            'config/runs.tsv: column "name" is missing from the header '
            "(columns are separated by tabs); add it",
        ),
        (
            f"{HEAD}\toptim.lrr\na\tb\tc\t1\n",
            'config/runs.tsv: column "optim.lrr" is not a known setting; did you mean "optim.lr"?',
        ),
        (
            f"{HEAD}\tlr\na\tb\tc\t1\n",
            'config/runs.tsv: column "lr" is not a known setting; did you mean "optim.lr"?',
        ),
        (
            f"{HEAD}\toptim\na\tb\tc\t1\n",
            'config/runs.tsv: column "optim" is a group; name one key of it, such as '
            "optim.name, optim.lr, optim.weight_decay, optim.momentum, optim.scale_lr",
        ),
        (
            f"{HEAD}\tmodel_args.\na\tb\tc\t1\n",
            'config/runs.tsv: column "model_args." is not a known setting; did you mean "model_args"?',
        ),
        (
            f"{HEAD}\tmodel_args.a\tmodel_args.a.b\na\tb\tc\t1\t2\n",
            'config/runs.tsv: column "model_args.a.b" lies below column "model_args.a"; drop one',
        ),
        (
            f"{HEAD}\tseed\tseed\na\tb\tc\t1\t2\n",
            'config/runs.tsv: column "seed" stands twice in the header; drop one',
        ),
        (
            f"{HEAD}\t\na\tb\tc\t1\n",
            "config/runs.tsv: column 4 has no name; name it or drop its tabs",
        ),
        (
            f"{HEAD}\na\tb\tc\t1\n",
            f"{ROW_1}4 cells under 3 columns; drop the surplus tabs",
        ),
        (
            f"{HEAD}\na\tb\tc\na\tb\tc\n",
            'config/runs.tsv line 3 (run "a"): the name "a" is taken by '
            'config/runs.tsv line 2 (run "a"); rename one of them',
        ),
        (
            f"{HEAD}\toptim.lr\na\tb\tc\t[0.1, 0.10]\n",
            f"{ROW_1}optim.lr=[0.1, 0.10] lists 0.1 twice; drop one",
        ),
        (
            f"{HEAD}\tearly_stopping.monitor\na\tb\tc\t[a/b, a-b]\n",
            f'{ROW_1}the name "a_monitor=a-b" is taken by two of its grid\'s values; rename one of them',
        ),
        (
            f"{HEAD}\tseed\na\tb\tc\t[]\n",
            f"{ROW_1}seed=[] is an empty grid; list at least one value",
        ),
        (
            f"{HEAD}\tseed\na\tb\tc\t[1\n",
            f"{ROW_1}seed=[1 is not valid YAML; write a value or a list such as [a, b]",
        ),
        (
            f"{HEAD}\tmodel_args.x\na\tb\tc\t{{a: 1}}\n",
            f"{ROW_1}model_args.x={{a: 1}} is a table; use dotted columns, such as model_args.x.a",
        ),
        (
            f"{HEAD}\tseed\na\tb\tc\tx\n",
            f'{ROW_1}seed="x" is not a whole number; write one, such as 1',
        ),
        (
            f"{HEAD}\tseed\na\tb\tc\ttrue\n",
            f"{ROW_1}seed=true is not a whole number; write one, such as 1",
        ),
        (
            f"{HEAD}\tdeterministic\na\tb\tc\tyes\n",
            f'{ROW_1}deterministic="yes" is not true or false; write true',
        ),
        (f"{HEAD}\toptim.lr\na\tb\tc\t0\n", f"{ROW_1}optim.lr=0.0 is not more than 0"),
        (
            f"{HEAD}\toptim.lr\na\tb\tc\t1e999\n",
            f"{ROW_1}optim.lr=inf is not a finite number; give one",
        ),
        (
            f"{HEAD}\tstrategy\na\tb\tc\tdpp\n",
            f'{ROW_1}strategy=dpp is not one of ddp, fsdp; did you mean "ddp"?',
        ),
        (
            f"{HEAD}\n../x\tb\tc\n",
            'config/runs.tsv line 2 (run "../x"): name=../x is not made of letters, digits and '
            ". _ + - after a first letter or digit; rename it",
        ),
        (
            f"{HEAD}\na\t\tc\n",
            f"{ROW_1}dataset=empty is not given; fill it in",
        ),
        (
            f'{HEAD}\n"a\tb\tc\nd\tb\tc\n',
            "config/runs.tsv: not a tab-separated table (unexpected end of data); "
            "close the quotes in its cells",
        ),
        (
            f'{HEAD}\n"a\nd"\tb\tc\n',
            "config/runs.tsv: cell 'a\\nd' holds a tab, line break or control character; close its quotes",
        ),
    ],
)
def test_message(table: Any, content: str | bytes, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        table(content)
    assert str(error.value) == message


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


def test_a_name_counts_by_the_bytes_that_a_file_system_allows(table: Any) -> None:
    with pytest.raises(ConfigError, match="has 202 bytes, more than 200; shorten it"):
        table(f"{HEAD}\n{'é' * 101}\tdigits\tmlp\n")


def test_rows_are_switched_off_and_named_by_their_lines(table: Any) -> None:
    text = f'# my runs\n{HEAD}\n\n#a\tdigits\tmlp\n  # "not closed\nb\tdigits\tmlp\n'
    (row,) = table(text)
    assert (row.name, row.where) == ("b", 'config/runs.tsv line 6 (run "b")')
    with pytest.raises(ConfigError, match="holds no run; give a header"):
        table(f"{HEAD}\n#a\tdigits\tmlp\n")


def test_name_too_long_for_a_file_system_is_refused(table: Any) -> None:
    with pytest.raises(ConfigError, match="has 201 characters, more than 200; shorten it"):
        table(f"{HEAD}\n{'a' * 201}\tdigits\tmlp\n")


def test_missing_table(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"runs=x.tsv: cannot be read .*; create it"):
        read_rows(tmp_path / "x.tsv", "x.tsv")
