"""Bumps of result versions, and settings that are newer than the results.

A bump makes stale the runs that it applies_to, and what reads their results; a new setting and
any other edit of Shardline make nothing stale.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardline.config.settings import keys_of
from shardline.config.settings.config import Config
from shardline.identity import versions
from shardline.identity.versions import ResultVersion
from tests.support.more_settings import extended, newer
from tests.support.mutated_project import (
    DATASETS,
    EVALUATES,
    REPORT,
    ROWS,
    TRAINS,
    Place,
    of_runs,
    stale,
    with_what_follows,
)

# --- Shardline's own code: result versions --------------------------------------------------------

RUNS = {name: model for name, _, model, _ in ROWS}
AddSetting = Callable[[str, Any, Any], None]
Bump = tuple[str, Callable[[Any], bool]]


def _always(_: Any) -> bool:
    return True


def _sharded(found: Any) -> bool:
    return bool(found.get("strategy") == "fsdp")


# The stages that each history is about: a script trains and judges by itself.
BY_HISTORY = {
    "data": DATASETS,
    "training": TRAINS - {"train program"},
    "evaluation": EVALUATES - {"evaluate program"},
    "script": {"train program", "evaluate program"},
    "report": REPORT,
    "prediction": set(),
    "io": set(),
    "samples": set(),
    "classifier": set(),
    "losses": set(),
    "preprocess": set(),
    "python": set(),
    "tokenizer": set(),
    "transforms": set(),
    **{
        model: {
            f"{stage} {n}" for n, m in RUNS.items() if m == model for stage in ("train", "evaluate")
        }
        for model in versions.MODELS
    },
    **{source: {f"dataset {source}"} & DATASETS for source in versions.SOURCES},
}


@pytest.mark.parametrize(
    "change", [lambda text: f"{text}\nMUTATION = 1\n", lambda text: f"import pandas\n{text}"]
)
def test_text_of_shardline_changes_nothing(change: Callable[[str], str], place: Place) -> None:
    before = place.stages()
    place.edit_library(lambda text: text if "from __future__" in text else change(text))
    assert stale(before, place.stages()) == set()


def add_line(patch: pytest.MonkeyPatch, name: str, applies_to: Callable[[Any], bool]) -> None:
    """Bump a history."""
    line = ResultVersion(changed="other sums", applies_to=applies_to)
    patch.setitem(versions.HISTORIES, name, (*versions.HISTORIES[name], line))


def concerned(name: str, applies_to: Callable[[Any], bool]) -> set[str]:
    """Return the stages that such a bump is about."""
    settings_of = {"train sharded": {"strategy": "fsdp"}, "evaluate sharded": {"strategy": "fsdp"}}
    return {stage for stage in BY_HISTORY[name] if applies_to(settings_of.get(stage, {}))}


@pytest.mark.parametrize("applies_to", [_always, lambda _: False, _sharded])
@pytest.mark.parametrize("name", versions.HISTORIES)
def test_bump_of_a_history(
    name: str, applies_to: Callable[[Any], bool], shared: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shared.stages()
    add_line(monkeypatch, name, applies_to)
    assert stale(before, shared.stages()) == with_what_follows(concerned(name, applies_to))


BUMPS = st.tuples(st.sampled_from(sorted(versions.HISTORIES)), st.sampled_from([_always, _sharded]))


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(bumps=st.lists(BUMPS, max_size=4), later=BUMPS)
def test_a_later_line_makes_stale_what_it_concerns_whatever_came_before(
    bumps: list[Bump], later: Bump, shared: Place
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        for bump in bumps:
            add_line(patch, *bump)
        before = shared.stages()
        add_line(patch, *later)
        assert stale(before, shared.stages()) == with_what_follows(concerned(*later))


def test_code_of_shardline_that_is_not_public_counts_where_a_user_reaches_it(place: Place) -> None:
    place.write("mypkg/deep.py", "from shardline.training.optim import make_optimizer as FACTOR\n")
    before = place.stages()
    place.edit("lib/shardline/training/optim.py", lambda text: text.replace('"lr"', '"rate"'))
    assert stale(before, place.stages()) == of_runs("own")


def test_a_shipped_class_that_a_user_derives_from_counts_by_its_version(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.edit(
        "mypkg/deep.py", lambda text: f"from shardline.training.models.cnn import CNN\n{text}"
    )
    before = place.stages()
    place.edit_library(lambda text: f"{text}\nMUTATION = 1\n")
    assert stale(before, place.stages()) == set()
    add_line(monkeypatch, "cnn", _always)
    assert stale(before, place.stages()) == of_runs("own")


# --- settings that are newer than the results ---------------------------------------------------


@pytest.fixture
def add_setting(monkeypatch: pytest.MonkeyPatch) -> AddSetting:
    """Have runs know one more setting, by dotted key."""

    def add(key: str, hint: Any, default: Any) -> None:
        config = extended(Config, {f"defaults.{key}": newer(hint, default)})
        (run,) = keys_of(config)["defaults"].schema.tables
        (evaluation,) = keys_of(run)["evaluation"].schema.tables
        monkeypatch.setattr("shardline.config.load.Config", config)
        monkeypatch.setattr("shardline.config.load_runs.RunSettings", run)
        monkeypatch.setattr("shardline.config.resolved.RunSettings", run)
        monkeypatch.setattr("shardline.config.resolved.Evaluation", evaluation)

    return add


@pytest.mark.parametrize("key", ["smoothing", "data.mix", "loss.smoothing", "evaluation.views"])
def test_a_new_setting_makes_nothing_stale_until_it_is_set(
    key: str, place: Place, add_setting: AddSetting
) -> None:
    before = place.stages()
    add_setting(key, float, 0.0)
    assert place.stages() == before
    place.set(f"defaults.{key}", 0.1)
    is_evaluation = key.startswith("evaluation.")
    expected = of_runs("program") | EVALUATES if is_evaluation else TRAINS | EVALUATES
    assert stale(before, place.stages()) == expected | REPORT
    place.set(f"defaults.{key}", 0)
    assert place.stages() == before
