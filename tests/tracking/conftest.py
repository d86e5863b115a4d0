"""A training's folder, and an environment in which no tracker is told of anything."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tracking.training import Service, Training


@pytest.fixture(autouse=True)
def no_login(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide whatever names a service here; what a client keeps at home goes to the test's folder."""
    for name in os.environ:
        if name.startswith(("MLFLOW_", "WANDB_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def training(tmp_path: Path) -> Training:
    return Training(tmp_path)


@pytest.fixture
def serve() -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(**options: Any) -> Service:
        started.append(Service(**options))
        return started[-1]

    yield start
    for service in started:
        service.stop()
