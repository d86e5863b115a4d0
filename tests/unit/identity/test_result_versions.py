"""Result versions: which line of a history applies, and what is declared beside them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.config.checked_sources import SHIPPED_SOURCES
from shardline.config.code_paths import SHIPPED_MODELS
from shardline.identity import CodeIndex
from shardline.identity.versions import (
    HISTORIES,
    MODELS,
    PACKAGES,
    PUBLIC,
    SOURCES,
    ResultVersion,
    changes_between,
    version_of,
    versions_of,
)

STAGES = {
    "data": "shardline.data.build",
    "training": "shardline.training.fit",
    "evaluation": "shardline.training.evaluate",
    "prediction": "shardline.training.predict",
    "report": "shardline.report",
    "samples": "shardline.training.described_samples",
    "script": "shardline.training.script_outputs",
    "io": "shardline_io.batches",
    "classifier": "shardline.training.models.classifier_base",
    "losses": "shardline.training.losses",
    "preprocess": "shardline.data.preprocessing",
    "python": "shardline.data.python.images",
    "tokenizer": "shardline.data.sources.tokenizer",
    "transforms": "shardline.data.transforms.image_transforms",
}
# Imported, and yet of no stage's identity: what it computes is the same in any version.
OF_ALL = {
    "blake3": "digests of a published standard",
    "filelock": "locks, that only order the work",
    "lightning_utilities": "copies nested states as they are",
    "msgspec": "reads JSON, a published standard, and files of Shardline's own",
    "packaging": "reads the lock's lines, whose form is a published standard",
}
NEUTRAL = OF_ALL | {
    "detect_secrets": "masks secrets in what is sealed; only a page is made of masked text"
}
TOKENS = {"tokenizers": "counts by the history `tokenizer` where a source names a tokenizer's file"}
ZSTD = {"pyarrow": "unpacks text files of Zstandard, a published standard"}
WANTED = {
    "lightning_fabric": "moves batches, and has Lightning guess nothing of other ranks",
    "scipy": "counts where `evaluation.headline` may have an interval",
    "torchmetrics": "counts where `evaluation.metrics` or the model's code names it",
}
HUB = {
    "huggingface_hub": "its errors are told in one sentence",
    "safetensors": "likewise; transformers reads the weights",
}
PREPROCESS = {"sklearn": "counts by the history `preprocess` where a source preprocesses"}
NEUTRAL_IN = {
    "data": NEUTRAL | PREPROCESS,
    **{name: NEUTRAL | HUB for name in SHIPPED_MODELS if name.startswith("hf:")},
    "training": NEUTRAL
    | {"scipy": "of figures that an evaluation alone has", "yaml": "reads the config, not a run"},
    "evaluation": NEUTRAL | WANTED,
    "prediction": NEUTRAL | WANTED,
    "samples": NEUTRAL | WANTED,
    "report": OF_ALL
    | {
        "markupsafe": "the type of jinja2's escaped text",
        "vl_convert": "makes the charts' script only where Shardline ships none for altair's version",
    },
    **dict.fromkeys(("jsonl", "text"), NEUTRAL | TOKENS | ZSTD),
    "tokenizer": NEUTRAL | ZSTD,
    "idx": NEUTRAL | ZSTD,
}
CLASSES = SHIPPED_MODELS | SHIPPED_SOURCES
MODULES = STAGES | {name: path.partition(":")[0] for name, path in CLASSES.items()}


@given(st.lists(st.frozensets(st.integers(0, 3)), max_size=6), st.integers(0, 3))
def test_the_newest_line_that_applies_counts(lines: list[frozenset[int]], value: int) -> None:
    history = (
        ResultVersion(changed="first version"),
        *(
            ResultVersion(changed=str(line), applies_to=lambda found, line=line: found["x"] in line)
            for line in lines
        ),
    )
    applying = [number for number, line in enumerate(lines, start=2) if value in line]
    assert version_of(history, {"x": value}) == max(applying, default=1)


def test_every_history_begins_with_what_concerns_all() -> None:
    class Nothing(Mapping[str, object]):
        def __getitem__(self, key: str) -> object:
            raise AssertionError(f"the first line of a history looks at {key}")

        def __iter__(self):  # type: ignore[no-untyped-def]
            return iter(())

        def __len__(self) -> int:
            return 0

    assert all(history[0].applies_to(Nothing()) for history in HISTORIES.values())


def test_versions_stand_by_name_in_one_order() -> None:
    found = versions_of(("training", "mlp"), {"precision": "32-true"})
    assert list(found.items()) == [("mlp", 1), ("training", 1)]


def test_what_a_user_reaches_counts_by_its_newest_line_whatever_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    line = ResultVersion(changed="a", applies_to=lambda found: found["source"]["delimiter"] == ";")
    monkeypatch.setitem(HISTORIES, "csv", (*HISTORIES["csv"], line))
    found = {"source": {"type": "csv", "delimiter": ","}}
    assert versions_of(("data", "csv"), found) == {"csv": 1, "data": 1}
    assert versions_of(("script",), {}, reached=("csv",)) == {"csv": 2, "script": 1}
    assert versions_of(("data",), {"shards": 1}, reached=("csv", "data")) == {"csv": 2, "data": 1}


def test_what_changed_is_told_in_both_directions(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [ResultVersion(changed=text) for text in ("first version", "a", "b")]
    monkeypatch.setitem(HISTORIES, "data", tuple(lines))
    assert changes_between("data", 1, 3) == changes_between("data", 3, 1) == ["a", "b"]
    assert changes_between("gone since", 1, 2) == []


def test_every_shipped_class_has_a_history_and_is_public() -> None:
    assert MODELS.keys() == SHIPPED_MODELS.keys()
    assert SOURCES.keys() == SHIPPED_SOURCES.keys()
    modules = {path.partition(":")[0]: name for name, path in CLASSES.items()}
    assert modules.items() <= PUBLIC.items()
    assert {name for name in PUBLIC.values() if name} <= HISTORIES.keys()
    assert PACKAGES.keys() == HISTORIES.keys() == MODULES.keys()


@pytest.mark.parametrize("name", MODULES)
def test_packages_that_are_declared_are_those_that_the_code_imports(name: str) -> None:
    """A package that decides no value is named above; one that does is a bump, see CONTRIBUTING.md."""
    _, imported = CodeIndex(()).closure(MODULES[name])
    assert set(PACKAGES[name]) == imported - NEUTRAL_IN.get(name, NEUTRAL).keys()
