"""Errors behind a storage provider: the provider's are one sentence, a bug of ours keeps its traceback."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardline.errors import DataError
from shardline.pipeline import storage
from shardline.pipeline.storage import Storage


class Provider:
    """A provider whose objects answer, or fail as their service does."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def get_storage_object_cls(self) -> type:
        return SimpleNamespace

    def object(self, query: str) -> Any:
        return SimpleNamespace(exists=self._answer, mtime=lambda: 1.0, size=lambda: 2)

    def _answer(self) -> bool:
        if self._error:
            raise self._error
        return True


@pytest.mark.parametrize("error", [AttributeError("no such"), OSError("timed out"), ValueError()])
def test_an_error_of_the_provider_is_one_sentence(error: Exception, tmp_path: Path):
    with pytest.raises(DataError, match="^storage az://c/ does not answer as expected"):
        Storage(Provider(error), "az://c", tmp_path).exists(tmp_path / "a.json")


def test_a_bug_of_ours_is_not_taken_for_the_providers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert Storage(Provider(), "az://c", tmp_path).exists(tmp_path / "a.json")
    monkeypatch.setattr(storage, "Stored", None)
    with pytest.raises(TypeError, match="'NoneType' object is not callable"):
        Storage(Provider(), "az://c", tmp_path).exists(tmp_path / "a.json")
