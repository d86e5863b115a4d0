"""The report of a preflight check, and its table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_WIDTH = 100
_SHRINKABLE = (1, 3, 4, 5)  # host, device, CPUs, interface
_LEAST_WIDTH = 8
_NUMBERS = (0, 2, 6, 7)

Arrival = Mapping[str, Any]  # description of a rank, and its measurements


@dataclass(frozen=True, kw_only=True)
class PreflightReport:
    """Report of a preflight check, with the fields of its file; the same on every rank.

    Attributes:
        backend: `gloo` or `nccl`.
        launcher: launcher that started the ranks.
        nodes: number of nodes.
        ranks: description and measurements of each rank: `latency_us` is the
            median time of a small all-reduce, `bandwidth_mb_s` (10^6 bytes per
            second) the rate from its left neighbour while all ranks send,
            `joined_s` the wait for all ranks. Latency and bandwidth are None
            for a single rank.
    """

    backend: str
    launcher: str
    nodes: int
    ranks: Sequence[Arrival]

    def table(self) -> str:
        """Return the table of all ranks, at most 100 columns wide, and their network settings."""
        each, joined = len(self.ranks) // self.nodes, max(row["joined_s"] for row in self.ranks)
        title = (
            f"preflight check: nodes={self.nodes} x devices={each} by {self.launcher}, "
            f"backend={self.backend}, all ranks joined in {joined:.2f} s"
        )
        return "\n".join([title, *_table_lines(self.ranks), *_settings_lines(self.ranks)])


def _table_lines(rows: Sequence[Arrival]) -> list[str]:
    """Return the table; long cells are shortened until it fits."""
    cells: list[tuple[str, ...]] = [
        ("rank", "host", "local", "device", "CPUs", "interface", "latency", "bandwidth")
    ]
    cells += [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while sum(widths) + 2 * len(widths) - 2 > _WIDTH:
        widest = max(_SHRINKABLE, key=lambda column: widths[column])
        if widths[widest] <= _LEAST_WIDTH:
            break
        widths[widest] -= 1
    return [
        "  ".join(
            _shorten(cell, width).rjust(width)
            if column in _NUMBERS
            else _shorten(cell, width).ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in cells
    ]


def _cells(row: Arrival) -> tuple[str, ...]:
    us, mb_s = row["latency_us"], row["bandwidth_mb_s"]
    gpu = row["device_name"].removeprefix("NVIDIA ") if row["device"].startswith("cuda") else ""
    return (
        str(row["rank"]),
        row["host"],
        str(row["local_rank"]),
        f"{row['device']} {gpu}".strip(),
        f"{row['cpus'] or '?'} x{row['threads']}",
        f"{row['interface']} {row['address']}".strip() or "-",
        "-" if us is None else f"{us:.0f} us",
        "-" if mb_s is None else f"{mb_s:.0f} MB/s",
    )


def _shorten(text: str, width: int) -> str:
    """Shorten a text in the middle: hosts and addresses differ at both ends."""
    if len(text) <= width:
        return text
    kept = width - 2
    return f"{text[: kept - kept // 2]}..{text[len(text) - kept // 2 :]}"


def _settings_lines(rows: Sequence[Arrival]) -> list[str]:
    """Return one line for each group of ranks with the same network settings."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        text = " ".join(f"{name}={value}" for name, value in row["settings"].items())
        groups.setdefault(text, []).append(row["rank"])
    return [
        f"{name_ranks(ranks)}: {text or 'no network settings'}"
        for text, ranks in groups.items()
        if text or len(groups) > 1
    ]


def compact(numbers: Iterable[int]) -> str:
    """Format integers as ranges, `0-3,8`."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(f"{a}-{b}" if b > a else str(a) for a, b in spans)


def name_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as `rank 3` or `ranks 0-3,8`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {compact(ranks)}"
