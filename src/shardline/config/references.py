"""References of rows to what they begin from or combine, and the order that they give the rows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Literal

from shardline.config import combined
from shardline.config.run_table import Row
from shardline.config.settings import Plain
from shardline.core.errors import ConfigError

Kind = Literal["init", "average", "ensemble"]
Source = Literal["run", "file", "hf", "sweep"]
KEYS = ("init_from", *combined.KINDS)  # settings that name bases
STATES = ("best", "last")
_FORMS = "expected run:NAME, run:NAME@last, run:IDENTITY, file:PATH or hf:FOLDER"


@dataclass(frozen=True, kw_only=True)
class RowNames:
    """What decides which rows a row depends on, beside its own settings.

    Attributes:
        defaults: Settings of all rows.
        sweeps: Row whose settings each sweep varies, by name of the sweep.
    """

    defaults: Plain = field(default_factory=dict)
    sweeps: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A base as a setting of a row names it.

    Attributes:
        kind: What the run does with the base.
        key: Setting that names the base.
        text: Base as written.
        source: `run`, `file`, `hf` or `sweep`.
        target: Name or identity of a run, name of a sweep, or path.
        state: Which weights of a run.
    """

    kind: Kind
    key: str
    text: str
    source: Source
    target: str
    state: str = "best"


def references_of(settings: Plain, where: str) -> list[Reference]:
    """Return the bases that the settings of a row name.

    A further setting with bases is added here and to `KEYS`.

    Args:
        settings: Settings of the row with the defaults of the config.
        where: File and row, the start of messages.

    Raises:
        ConfigError: A base is written in no known form.
    """
    if kind := combined.kind_of(settings):  # trains nothing, so that it has no initial weights
        if sweep := combined.sweep_of(settings):
            return [
                Reference(kind=kind, key=f"{kind}.of", text=sweep, source="sweep", target=sweep)
            ]
        members = combined.runs_of(settings)
        found = [read_reference(text, kind=kind, key=kind, where=where) for text in members]
        for one in found:
            if one.source != "run" or one.state != "best":
                raise ConfigError(
                    f"{where}: {kind} names {one.text}, expected runs with their sealed weights; write run:NAME or "
                    "run:IDENTITY"
                )
        return found
    if (text := settings.get("init_from")) is not None:
        return [read_reference(text, kind="init", key="init_from", where=where)]
    return []


def read_reference(text: str, *, kind: Kind, key: str, where: str) -> Reference:
    """Read a base such as `run:wide@last`.

    Raises:
        ConfigError: The text has no known form, or names no known state.
    """
    source, colon, target = text.strip().partition(":")
    if source not in ("run", "file", "hf") or not colon or not target:
        hint = f'did you mean "run:{text}"?' if text and not colon else "write one of them"
        raise ConfigError(f"{where}: {key}={text} names no base, {_FORMS}; {hint}")
    state = "best"
    if source == "run":
        target, at, state = target.partition("@")
        state = state if at else "best"
        if state not in STATES:
            raise ConfigError(
                f"{where}: {key}={text} has the state {state or 'none'}, expected one of {', '.join(STATES)}; leave "
                "@ out for the sealed weights"
            )
    return Reference(kind=kind, key=key, text=text, source=source, target=target, state=state)  # type: ignore[arg-type]


def references_of_row(row: Row, names: RowNames) -> list[Reference]:
    """Return the bases that a row names, or the defaults of the config for it; see `references_of`."""
    # without the other settings, since 10,000 rows each have 50
    usual = {"init_from": names.defaults.get("init_from")}  # no other is allowed there
    named = {key: row.settings.get(key, usual.get(key)) for key in KEYS}
    return references_of(named, row.where)


def in_order(rows: Sequence[Row], of: RowNames) -> list[Row]:
    """Return rows so that the bases of each row come before it.

    A row whose base is given by its identity comes as late as possible, since that run may be a row too.

    Raises:
        ConfigError: Rows begin from one another.
    """
    by_name = {row.name: row for row in rows}
    named = {row.name: _named_rows(row, of, by_name) for row in rows}
    if not any(bases or late for bases, late in named.values()):
        return [*rows]
    sorter = TopologicalSorter({name: bases for name, (bases, _) in named.items()})
    try:
        sorter.prepare()
    except CycleError as error:
        raise _cycle(error.args[1][::-1], by_name, of) from None
    place = {row.name: number for number, row in enumerate(rows)}
    ready, late, found = [*sorter.get_ready()], list[str](), list[Row]()
    while sorter.is_active():
        late += [name for name in ready if named[name][1]]
        now = [name for name in ready if not named[name][1]]
        if not now:
            late.sort(key=place.__getitem__)
            now = [late.pop(0)]
        now.sort(key=place.__getitem__)
        found += [by_name[name] for name in now]
        sorter.done(*now)
        ready = [*sorter.get_ready()]
    return found


def with_bases(rows: Sequence[Row], names: Collection[str], of: RowNames) -> list[Row]:
    """Return the rows with these names and the rows that they begin from, in the order of the table."""
    by_name, needed, left = {row.name: row for row in rows}, set[str](), [*names]
    while left:
        if (name := left.pop()) in by_name and name not in needed:
            needed.add(name)
            left += _named_rows(by_name[name], of, by_name)[0]
    return [row for row in rows if row.name in needed]


def states_of_rows(rows: Sequence[Row], of: RowNames) -> dict[str, set[str]]:
    """Return the states of each base that rows begin from, by its name or identity as written."""
    found: dict[str, set[str]] = {}
    for row in rows:
        for one in _references(row, of):
            if one.source == "run":
                found.setdefault(one.target, set()).add(one.state)
    return found


def _references(row: Row, of: RowNames) -> list[Reference]:
    """Return the bases that a row names; empty if one is written wrongly, which loading the row reports."""
    try:
        return references_of_row(row, of)
    except ConfigError:
        return []


def _named_rows(row: Row, of: RowNames, by_name: Mapping[str, Row]) -> tuple[list[str], bool]:
    """Return the names of the rows that a row depends on, and whether it names a base by its identity."""
    references = _references(row, of)
    runs = [one.target for one in references if one.source == "run"]
    known = [name for name in runs if name in by_name]
    studies = [of.sweeps.get(one.target, "") for one in references if one.source == "sweep"]
    return [*known, *(name for name in studies if name in by_name)], len(known) < len(runs)


def _cycle(names: Sequence[str], by_name: Mapping[str, Row], of: RowNames) -> ConfigError:
    """Return the error for rows that begin from one another.

    Args:
        names: Names of the rows, each of which begins from the next; the first is also the last.
    """
    first = names.index(min(names[:-1]))
    around = [*names[first:-1], *names[: first + 1]]
    row = by_name[around[0]]
    one = next(
        one
        for one in references_of_row(row, of)
        if around[1] == (one.target if one.source == "run" else of.sweeps.get(one.target))
    )
    chain = f"begins from itself: {' from '.join(around)}"
    found = "names the row itself" if len(around) == 2 else chain
    remedy = "name another base, or write null in this cell to begin from initial weights"
    if one.key != "init_from":
        remedy = "name other runs"
    return ConfigError(
        f"{row.where}: {one.key}={one.text} {found}, expected a run that does not depend on it; {remedy}"
    )
