"""A credential in any setting, cell, lock or pin file that reading a project meets: refused, and shown nowhere."""

import logging
import random
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardline.config.load import load_project
from shardline.config.run_table import FIXED_COLUMNS
from shardline.config.settings import KeySchema, dotted_keys, keys_of, schema_of
from shardline.config.settings.config import Config
from shardline.config.settings.run_settings import RunSettings
from shardline.config.user_files import read_config
from shardline.environments.context import stage_context
from shardline.errors import ConfigError
from shardline.identity import load_lock, package_lock
from shardline.identity.package_lock import read_pins
from shardline.provenance.crate.contents import _masked_file

SEED = 20261127
_RNG = random.Random(SEED)
SECRET = (
    "".join(_RNG.choices(string.ascii_letters, k=9)) + "_Wort"
)  # of no known schema, and not random
FORMS = (
    f"me:{SECRET}@host.example", f"me:{SECRET}@registry.example/x@sha256:{'a' * 64}", f"me:p@{SECRET}@h",
    f"https://me:{SECRET}@host.example/a", f"https://{SECRET}@host.example/a", f"s3://b/a?sig={SECRET}",
    f"a word and ssh me:{SECRET}@h", f"--place=https://me:{SECRET}@h/x",
)  # fmt: skip
BASE = {
    "runs": "runs.tsv", "defaults": {},
    "datasets": {"d": {"source": {"type": "synthetic", "rows_per_shard": 20, "features": 2}, "shards": 1}},
}  # fmt: skip
ROW = {"name": "one", "dataset": "d", "model": "linear"}


def places(
    schema: KeySchema, path: tuple[Any, ...] = (), depth: int = 0
) -> Iterator[tuple[Any, ...]]:
    """Yield where a config may hold a text: each leaf, item and free name that the types describe.

    A leaf of numbers is one as well, since a message about its value shows it. An int is an item of a list.
    """
    below = [(key, one.schema) for table in schema.tables for key, one in keys_of(table).items()]
    if schema.value:
        yield (*path, FORMS[0])
        below.append(("some", schema.value))
    if schema.item:
        below.append((0, schema.item))
    if set(schema.kinds) != {"object"} or not below:
        yield path
    for key, one in below:
        yield from places(one, (*path, key), depth + 1)


def planted(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """Return a config with a value in one place, and what is on the way to it."""
    if not path:
        return value
    key, *rest = path
    if key == 0:
        return [planted(None, tuple(rest), value)]
    known = document if isinstance(document, dict) else {}
    return {**known, key: planted(known.get(key), tuple(rest), value)}


def load(folder: Path, config: dict[str, Any], row: dict[str, str] = ROW) -> str:
    """Return the message with which a project is refused, after looking at what it left behind."""
    (folder / "runs.tsv").write_text("\t".join(row) + "\n" + "\t".join(row.values()) + "\n")
    with pytest.raises(ConfigError) as error:
        load_project(config, workdir=folder)
    assert [path.name for path in folder.rglob("*")] == ["runs.tsv"], "nothing is written"
    return f"{error.value} {error.value!r}"


PLACES = list(dict.fromkeys(path for path in places(schema_of(Config)) if path))


def test_no_setting_takes_or_shows_a_credential(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    assert len(PLACES) > 200
    for number, path in enumerate(PLACES):
        # all forms in the places of texts that the product itself uses would be 2,000 cases of the same code
        for value in FORMS if path[0] in ("environments", "runtime") else FORMS[number % 8 :: 8]:
            message = load(tmp_path, planted(BASE, path, value))
            assert SECRET not in message, (SEED, path, value)
            assert str(path[0]) in message or path[0] in FORMS, (path, message)
            assert " contains a " in message, (path, value, message)
    assert SECRET not in caplog.text
    assert SECRET not in "".join(capsys.readouterr())


def test_no_cell_of_the_run_table_takes_or_shows_one(tmp_path: Path) -> None:
    columns = [*FIXED_COLUMNS, *dotted_keys(RunSettings), "model_args.some", "no_such_column"]
    assert len(columns) > 50
    for number, column in enumerate(columns):
        value = FORMS[number % len(FORMS)]
        for cell in (value, f"[{value}, 2]", f"{{a: {value}"):
            message = load(tmp_path, BASE, {**ROW, column: cell})
            assert SECRET not in message, (SEED, column, cell)
            assert "runs.tsv line 2" in message


@pytest.mark.parametrize("value", FORMS)
def test_a_config_that_is_no_yaml_is_shown_by_its_line_alone(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.yaml").write_text(f"runs: a\nruntime: {{hosts: ['{value}'}}\n")
    with pytest.raises(ConfigError, match="not valid YAML .line 2, column") as error:
        read_config(tmp_path / "config.yaml")
    assert SECRET not in str(error.value)
    assert value[:30] not in str(error.value)


@pytest.mark.parametrize("value", FORMS)
def test_a_lock_with_a_login_counts_without_it_is_published_masked_and_in_no_image(
    tmp_path: Path, value: str
) -> None:
    lock = tmp_path / "my.lock"
    for option in sorted(package_lock._WHERE):
        for line in (f"{option} {value}", f"{option}={value}", f"{option} \\\n  {value}"):
            lock.write_text(f"torch==2.0\n    # via x\n{line}\n")
            assert load_lock(lock).versions == {"torch": "2.0"}
            published = _masked_file(lock).source
            assert isinstance(published, bytes)
            assert SECRET.encode() not in published
            with pytest.raises(ConfigError, match="copied into the image") as error:
                stage_context(tmp_path, lock)
            assert SECRET not in str(error.value)


@pytest.mark.parametrize("value", FORMS)
def test_other_lines_of_locks_show_none(tmp_path: Path, value: str) -> None:
    commit = f"x @ git+https://me:{SECRET}@h/x@{'a' * 40}"
    for line in (value, commit, f"-e {value}", f"-r {value}", f"x @ {value}", f"x==1.0 --hash={value}",
                 f"x=={value}", f"--unknown {value}", f"x==1.0 ; {value}", f"{value}/x-1.0-0.conda"):  # fmt: skip
        path = tmp_path / "lock"
        path.write_text(f"{line}\n    # via y\n")
        for read in (load_lock, read_pins):
            try:
                found = str(read(path))
            except ConfigError as error:
                found = str(error)
            assert SECRET not in found, (read, line)


def test_no_token_of_a_conda_channel_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "pins"
    path.write_text(f"https://me:p@h.example/t/{SECRET}/c/noarch/a-1.0-0.conda#sha256:{'0' * 64}\n")
    (pin,) = read_pins(path)
    assert pin.public_url == "https://h.example/c/noarch/a-1.0-0.conda"
    assert SECRET in pin.url, "which it is fetched from"
    published = _masked_file(path).source
    assert isinstance(published, bytes)
    assert SECRET.encode() not in published
    path.unlink()
    config = {**BASE, "conda": {"channels": [f"https://h.example/t/{SECRET}/c"]}}
    assert SECRET not in (message := load(tmp_path, config))
    assert "RATTLER_AUTH_FILE" in message
