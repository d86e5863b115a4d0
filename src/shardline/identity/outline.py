"""Outline of a module: its definitions and statements, the names they bind, and their effects."""

import ast
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from shardline.core.canonical import DIGEST_LENGTH
from shardline.identity.definition_writer import write
from shardline.identity.literals import Bindings, Literals
from shardline.identity.module_imports import never_run_conditions, parse_quietly, static_importers
from shardline.identity.names import (
    DEFINITIONS,
    Imported,
    Scope,
    Written,
    collect,
    imported_modules,
    imported_names,
    is_text,
    source_of,
)
from shardline.identity.purity import Setting, dotted_name, has_effects

_MAIN = {"__name__ == '__main__'", "'__main__' == __name__"}


@dataclass
class Unit:
    """Top-level statement of a module, which counts or not as a whole.

    Attributes:
        label: label in `shardline why`; `<module>` for a statement.
        node: the statement; None for a compiled module.
        position: position in the module, counted in statements.
        binds: names of the module that the statement binds.
        has_effects: whether the statement does more than bind these names.
        is_ordered: whether its place among the other units counts.
    """

    label: str
    node: ast.stmt | None
    position: int
    binds: tuple[str, ...]
    has_effects: bool
    is_ordered: bool = False


@dataclass(frozen=True)
class Importing:
    """Import statement at the top level of a module.

    Attributes:
        modules: imported modules, see `names.ImportRun`.
        names: names imported from these modules.
        binds: names of the module that the statement binds.
        star: module from which `*` is imported; else empty.
    """

    position: int
    line: int
    modules: tuple[str, ...]
    names: tuple[Imported, ...]
    binds: tuple[str, ...]
    star: str = ""

    @property
    def required(self) -> tuple[str, ...]:
        """Modules that must exist: `a` for `from a import b`, where `a.b` may be no module."""
        return self.modules[:1] if self.names or self.star else self.modules


@dataclass
class Outline:
    """Parsed module.

    Attributes:
        name: dotted name.
        units: units in the order of the source.
        importing: top-level import statements.
        symbols: bindings of each name: indices in `units`, or imports.
        setting: context for the writer of definitions; None for a compiled module.
        source: lines of the source.
        exports: texts in `__all__`.
        binary: digest of a compiled module; else empty.
    """

    name: str
    units: list[Unit] = field(default_factory=list)
    importing: list[Importing] = field(default_factory=list)
    symbols: dict[str, list[int | Imported]] = field(default_factory=dict)
    setting: Setting | None = None
    source: tuple[str, ...] = ()
    exports: tuple[str, ...] = ()
    binary: str = ""
    _written: dict[tuple[int, frozenset[str]], Written] = field(default_factory=dict)

    def written(self, place: int, options: frozenset[str]) -> Written:
        """Return the text and references of a unit."""
        if (place, options) not in self._written:
            self._written[place, options] = self._write(self.units[place], options)
        return self._written[place, options]

    def _write(self, unit: Unit, options: frozenset[str]) -> Written:
        if unit.node is None or self.setting is None:
            return Written([f"compiled {self.binary}"])
        written = write(unit.node, self.setting, options - {"text"}, unit.position)
        if "text" in options:
            decorators = getattr(unit.node, "decorator_list", ())
            first = min([unit.node.lineno, *(one.lineno for one in decorators)])
            written.tokens.append("".join(self.source[first - 1 : unit.node.end_lineno]))
        return written


def compiled_outline(content: bytes, name: str) -> Outline:
    """Return the outline of a compiled module, in which any name stands for the file's bytes."""
    digest = hashlib.sha256(content).hexdigest()[:DIGEST_LENGTH]
    return Outline(name=name, units=[Unit("<binary>", None, 0, (), True, True)], binary=digest)


def outline_of(
    content: bytes, name: str, *, is_package: bool, is_main: bool, is_own: Callable[[str], bool]
) -> Outline:
    """Return the outline of a module's source.

    Args:
        content: the source.
        name: dotted name of the module.
        is_package: whether the module is the `__init__` of a package.
        is_main: whether code under `if __name__ == "__main__"` is executed.
        is_own: function that returns whether the project has a module of a name.

    Raises:
        SyntaxError, ValueError, RecursionError: the source is not valid Python.
    """
    tree = parse_quietly(content)
    package = name if is_package else name.rpartition(".")[0]
    never_run = (
        never_run_conditions(list(ast.walk(tree))) if b"TYPE_CHECKING" in content else frozenset()
    )
    hidden = never_run if is_main or b"__main__" not in content else never_run | _MAIN
    body = list(_executed(tree.body, hidden, package))
    outline = Outline(
        name=name, source=tuple(content.decode(errors="replace").splitlines(keepends=True))
    )
    _add_bindings(outline, body, package, has_globals=b"global" in content)
    outline.setting = Setting(
        package=package,
        scope=Scope("module"),
        dotted=lambda node: dotted_name(node, outline.symbols, is_own),
        positions=_positions(outline),
        imported_by=static_importers(tree, content, name, package, never_run),
        never_run=never_run,
        lazy=any(one.module == "__future__" for one in body if isinstance(one, ast.ImportFrom)),
    )
    if b"__all__" in content:
        bindings = Bindings(list(ast.walk(tree)))
        outline.exports = Literals(bindings=bindings, known={}).texts(ast.Name("__all__"))
    for unit in outline.units:
        _set_effects(unit, outline, is_main=name == "__main__")
    return outline


def _executed(
    body: list[ast.stmt], never_run: frozenset[str], package: str, bound: set[str] | None = None
) -> Iterator[ast.stmt]:
    """Yield the executed statements, without bodies of false conditions."""
    bound = {"__name__"} if bound is None else bound
    for statement in body:
        if not never_run:
            yield statement
            continue
        if isinstance(statement, ast.If) and ast.unparse(statement.test) in never_run:
            names = {one.id for one in ast.walk(statement.test) if isinstance(one, ast.Name)}
            if names <= bound:
                yield from _executed(statement.orelse, never_run, package, bound)
                continue
        scope = Scope("module")
        collect([statement], scope, package)
        bound |= scope.local | scope.kept | scope.imports.keys()
        if scope.binds("__name__"):  # which may then have any value
            bound.discard("__name__")
        yield statement


def _add_bindings(
    outline: Outline, body: list[ast.stmt], package: str, *, has_globals: bool
) -> None:
    for position, statement in enumerate(body):
        if isinstance(statement, ast.Import | ast.ImportFrom):
            bound = list(imported_names(statement, package))
            for name, imported in bound:
                outline.symbols.setdefault(name, []).append(imported)
            outline.importing.append(_importing(statement, position, package, bound))
            continue
        if isinstance(statement, ast.Pass) or (is_text(statement) and position):
            continue
        scope = Scope("module")
        collect([statement], scope, package)
        place = len(outline.units)
        binds = _bound_by(statement, scope)
        label = getattr(statement, "name", binds[0] if len(binds) == 1 else "<module>")
        outline.units.append(Unit(label, statement, position, binds, False))
        for name in binds:
            outline.symbols.setdefault(name, []).append(place)
        for name, imports in scope.imports.items():
            outline.symbols[name] += imports
        if has_globals:
            _add_globals(outline, statement, place)


def _bound_by(statement: ast.stmt, scope: Scope) -> tuple[str, ...]:
    if is_text(statement):
        return ("__doc__",)
    if isinstance(statement, ast.AnnAssign) and statement.value is None:
        return ()
    return tuple(sorted(scope.kept | scope.local | scope.imports.keys()))


def _add_globals(outline: Outline, statement: ast.stmt, place: int) -> None:
    """Bind names that functions in a statement declare `global` to the statement too."""
    declared = (one.names for one in ast.walk(statement) if isinstance(one, ast.Global))
    for name in sorted({name for names in declared for name in names}):
        bound = outline.symbols.setdefault(name, [])
        if place not in bound:
            bound.append(place)


def _importing(
    node: ast.Import | ast.ImportFrom,
    position: int,
    package: str,
    bound: list[tuple[str, Imported]],
) -> Importing:
    modules, binds = imported_modules(node, package), tuple(name for name, _ in bound)
    if isinstance(node, ast.Import):
        return Importing(position, node.lineno, modules, (), binds)
    star = source_of(node, package) if any(alias.name == "*" for alias in node.names) else ""
    taken = tuple(imported for _, imported in bound)
    return Importing(position, node.lineno, modules, taken, binds, star)


def _positions(outline: Outline) -> dict[str, int]:
    """Return the position of the first binding of each name."""
    imported = {name: one.position for one in outline.importing[::-1] for name in one.binds}
    found: dict[str, int] = {}
    for unit in reversed(outline.units):
        found.update(dict.fromkeys(unit.binds, unit.position))
    for name, position in imported.items():
        found[name] = min(position, found.get(name, position))
    return found


def _set_effects(unit: Unit, outline: Outline, *, is_main: bool) -> None:
    """Set whether a unit has effects, and whether its place counts."""
    node, setting = unit.node, outline.setting
    assert node is not None
    assert setting is not None
    unit.has_effects = has_effects(node, unit.position, setting)
    unit.has_effects |= is_main and not isinstance(node, DEFINITIONS)
    rebound = any(len(outline.symbols[name]) > 1 for name in unit.binds)
    unit.is_ordered = unit.has_effects or rebound
