"""Datasets without torch, whose processes start quickly."""

import random
from collections.abc import Iterator
from typing import Any

ROWS = 24


class Handle:
    """Keeps an open file, whose position processes must not share."""

    def __init__(self, files: list[str]) -> None:
        self.file = open(files[0], "rb")  # noqa: PTH123, SIM115

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        self.file.seek(row)
        return self.file.read(1)[0] / 7, row % 2


class Random:
    """Draws random numbers for each row."""

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> Any:
        return {"x": row, "noise": random.random()}


class Once:
    """Can be read only once."""

    def __init__(self) -> None:
        self.left = iter(range(ROWS))

    def __iter__(self) -> Iterator[Any]:
        for row in self.left:
            yield {"x": row}
