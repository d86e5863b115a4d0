"""Settings that are newer than the results: generated types and settings, before and after."""

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import defstruct

from shardline.config.resolved import settings_of, with_legacy_values, without_legacy_values
from shardline.config.settings import Settings, defaults_of
from shardline.config.settings.source_settings import (
    CsvSettings,
    IdxSettings,
    OwnSourceSettings,
    SourceSettings,
)
from shardline.core.canonical import canonical_json
from shardline.core.nested import flatten, merge, with_values
from tests.support.more_settings import extended, newer
from tests.unit.identity.test_identity_projects import KEYS

# Values of one type each.
KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "number": (float, st.sampled_from([0.0, 0.5, 1.0, 1e-3])),
    "integer": (int, st.integers(0, 3)),
    "text": (str, st.sampled_from(["", "a", "b"])),
    "truth": (bool, st.booleans()),
    "nullable": (float | None, st.sampled_from([None, 0.0, 1.0])),
    "list": (list[int], st.lists(st.integers(0, 2), max_size=2)),
    "free": (dict[str, Any], st.dictionaries(st.sampled_from("ab"), st.integers(0, 2))),
}
# Where a setting may be added: beside others, in a table, in a new one, in a new one of a new one.
PLACES = ["", "data.", "optim.", "evaluation.", "new.", "new.below."]
PRESENT = st.fixed_dictionaries(
    {},
    optional={
        "seed": st.integers(1, 3),
        "optim.lr": st.sampled_from([0.1, 0.001]),
        "data.epoch": st.sampled_from(["pass", "partition"]),
        "model_args": st.dictionaries(st.sampled_from("ab"), st.integers(0, 2)),
        "evaluation.batch": st.integers(1, 3),
    },
)


@st.composite
def additions(draw: st.DrawFn) -> dict[str, tuple[Any, Any, Any]]:
    """Draw new settings by dotted key: type, the value of before, and another."""
    keys = draw(
        st.lists(st.sampled_from([f"{place}{n}" for place in PLACES for n in "xyz"]), unique=True)
    )
    found = {}
    for key in keys:
        hint, values = KINDS[draw(st.sampled_from(sorted(KINDS)))]
        before = draw(values)
        other = draw(values.filter(lambda v, b=before: canonical_json(v) != canonical_json(b)))
        found[key] = (hint, before, other)
    return found


@settings(deadline=None)
@given(given=PRESENT, new=additions(), data=st.data())
def test_new_settings_enter_where_they_are_set_to_something_else(
    given: dict[str, Any], new: dict[str, tuple[Any, Any, Any]], data: st.DataObject
) -> None:
    first_table = settings_of("train")
    table = extended(
        first_table, {key: newer(hint, value) for key, (hint, value, _) in new.items()}
    )
    old = merge(defaults_of(first_table), with_values({}, given))
    counted = without_legacy_values(old, first_table)
    first = json.loads(KEYS.read_text())["run"]
    missing = [key for key in flatten(old) if key in first and key not in flatten(counted)]
    assert missing == [], "settings of the first identities always enter"
    resolved = merge(defaults_of(table), with_values({}, given))
    assert canonical_json(without_legacy_values(resolved, table)) == canonical_json(counted)
    # one after the other set to another value, and back
    chosen = [key for key in new if data.draw(st.booleans(), key)]
    changed = _with(resolved, {key: new[key][2] for key in chosen})
    expected = _with(counted, {key: new[key][2] for key in chosen})
    assert canonical_json(without_legacy_values(changed, table)) == canonical_json(expected)
    back = _with(changed, {key: new[key][1] for key in chosen})
    assert canonical_json(without_legacy_values(back, table)) == canonical_json(counted)
    # what an earlier version resolved is read as it is resolved now
    assert canonical_json(with_legacy_values(old, table)) == canonical_json(resolved)
    assert canonical_json(
        with_legacy_values(without_legacy_values(changed, table), table)
    ) == canonical_json(changed)


def _with(settings: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return settings with some set; a free-form table is replaced and not merged."""
    found = copy.deepcopy(settings)
    for dotted, value in values.items():
        *groups, last = dotted.split(".")
        table = found
        for group in groups:
            table = table.setdefault(group, {})
        table[last] = value
    return found


NEW = newer(float, 0)


@given(st.sampled_from(["csv", "idx", "synthetic", "own:Class"]), st.sampled_from([0, 0.0, 0.5]))
def test_settings_of_one_kind_of_source(kind: str, value: float) -> None:
    csv = extended(CsvSettings, {"skip_rows": NEW})
    entry = defstruct(
        "Entry",
        [("source", csv | IdxSettings | OwnSourceSettings | SourceSettings)],
        bases=(Settings,),
    )
    source = {"type": kind, "skip_rows": value}
    counted = without_legacy_values({"source": source, "shards": 2}, entry)
    assert ("skip_rows" in counted["source"]) == (kind != "csv" or value != 0)


def test_entries_that_a_user_named_stay() -> None:
    entry = extended(Settings, {"weight": NEW})
    table = extended(Settings, {"columns": (dict[str, entry], {}), "steps": (list[entry], [])})
    value = {"columns": {"a": {"weight": 0}, "b": {"weight": 2}}, "steps": [{"weight": 0}, {}]}
    assert without_legacy_values(value, table) == {
        "columns": {"a": {}, "b": {"weight": 2}},
        "steps": [{}, {}],
    }


def test_a_changed_default_is_another_result() -> None:
    """`legacy_value` says what was computed once, the default what is computed where nothing is said."""
    table = extended(Settings, {"x": (newer(float, 0.0)[0], 1.0)})
    assert without_legacy_values(defaults_of(table), table) == {"x": 1.0}
    assert with_legacy_values({}, table) == {"x": 0.0}
