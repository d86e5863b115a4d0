"""Order in which a program executes its modules, as far as the order counts."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from shardline.identity.code_index import with_parents
from shardline.identity.names import DEFINITIONS, ImportRun, Ref
from shardline.identity.outline import Importing
from shardline.identity.reach import Key, Reach
from shardline.identity.resolution import Defined, Named, Part
from shardline.identity.versions import is_public

_LITERAL = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.Name,
            ast.Attribute, ast.expr_context)  # fmt: skip

Task = tuple[str, str, Importing | Key | None]  # action, label of a module, subject
Early = tuple[Key | str, str]  # executed unit, and a name that it needs before the name is bound


@dataclass
class RunOrder:
    """Order of execution of the reached units whose place counts.

    Attributes:
        reach: the reached code.
        entry: dotted name of the module that is imported first.
        early: units that need a name before it is bound; such a program fails, or an edit made it fail.
    """

    reach: Reach
    entry: str
    early: list[Early] = field(default_factory=list)
    _bound: set[Key] = field(default_factory=set)
    _named: set[tuple[str, str]] = field(default_factory=set)
    _events: dict[str, list[Importing | Key]] = field(default_factory=dict)
    _imports: dict[tuple[str, ...], list[Key]] = field(default_factory=dict)
    _open: dict[str, None] = field(default_factory=dict)  # modules in execution

    def __post_init__(self) -> None:
        self.fixed = Fixed(self.reach)
        done: dict[str, None] = {}
        self.sequence = list(self._executed([self.entry], done))
        # modules that functions import run where the import is
        for label, outline in sorted(self.reach.run.items()):
            if label not in done:
                list(self._executed([outline.name], done))

    def of_import(self, token: ImportRun) -> list[Key]:
        """Return the units that an import executes if it is the first import of its modules."""
        if token.modules not in self._imports:
            early, self.early = self.early, []
            self._imports[token.modules] = list(self._executed(token.modules, {}))
            self.early = early
        return self._imports[token.modules]

    def _executed(self, names: Iterable[str], done: dict[str, None]) -> Iterator[Key]:
        """Yield the ordered units that an import of modules executes, and record early names.

        Args:
            names: dotted names of the modules.
            done: labels of executed modules; the modules are added.
        """
        # tasks instead of recursion, since modules may import each other in a long chain
        tasks: list[Task] = self._openings(names)
        while tasks:
            kind, label, event = tasks.pop()
            if kind == "close":
                del self._open[label]
            elif kind == "bind" and isinstance(event, Importing):
                self._import_names(event, label)
            elif kind == "open" and label not in done:
                done[label] = None
                self._open[label] = None
                tasks.append(("close", label, None))
                tasks.extend(("event", label, one) for one in reversed(self._events_of(label)))
            elif isinstance(event, Importing):
                tasks.append(("bind", label, event))
                tasks.extend(self._openings(event.modules))
            elif event:
                self._check(event)
                self._bound.add(event)
                self._named.update((label, name) for name in self.reach.unit(event).binds)
                if self.fixed.is_ordered(event):
                    yield event

    def _openings(self, names: Iterable[str]) -> list[Task]:
        """Return tasks that execute modules and their parent packages, in reverse order."""
        tasks: list[Task] = [
            ("open", label, None)
            for name in names
            for one in with_parents(name)
            if not is_public(one)
            for label in self.reach.program.find(one)
            if label in self.reach.run
        ]
        return tasks[::-1]

    def _events_of(self, label: str) -> list[Importing | Key]:
        if label not in self._events:
            outline = self.reach.run[label]
            units = ((label, place) for place in range(len(outline.units)))
            placed: list[tuple[int, Importing | Key]] = [
                (outline.units[key[1]].position, key) for key in units if key in self.reach.units
            ]
            placed += [(one.position, one) for one in outline.importing]
            placed.sort(key=lambda item: item[0])
            self._events[label] = [event for _, event in placed]
        return self._events[label]

    # --- names that are needed too early ------------------------------------------------------

    def _import_names(self, event: Importing, label: str) -> None:
        """Bind the names of an import statement, and record names that its module has not bound yet."""
        for one in event.names:
            if one.name and one.module in self._open and self._is_late(one.module, one.name):
                self.early.append(("import", one.name))
        self._named.update((label, name) for name in event.binds)

    def _is_late(self, label: str, name: str) -> bool:
        bound = self.reach.run[label].symbols.get(name)
        return bool(bound) and (label, name) not in self._named

    def _check(self, key: Key) -> None:
        """Record the names that a unit needs and that modules in execution bind later."""
        effects = self.reach.unit(key).has_effects
        seen, pending = {key}, [key]
        found: dict[str, None] = {}
        while pending:
            one = pending.pop()
            for token in self.reach.written(one).tokens:
                if not isinstance(token, Ref) or token.use == "Import":
                    continue
                if token.deferred and not effects:
                    continue
                if not token.imported and self._misses(one, key, token.chain[0]):
                    found[token.chain[0]] = None
                for part in self.reach.resolve(one[0], token):
                    if not isinstance(part, Defined) or (part.label, part.place) in seen:
                        continue
                    target = (part.label, part.place)
                    if part.label not in self._open:
                        continue
                    if (
                        target not in self._bound
                        and target in self.reach.units
                        and part.label != one[0]
                    ):
                        found[self.reach.unit(target).label] = None
                    if effects and target in self.reach.units:
                        seen.add(target)
                        pending.append(target)
        self.early += [(key, name) for name in found]

    def _misses(self, one: Key, key: Key, name: str) -> bool:
        own = one == key and name in self.reach.unit(key).binds
        return not own and one[0] in self._open and self._is_late(one[0], name)


@dataclass
class Fixed:
    """Distinguishes ordered units from units whose place does not count.

    Attributes:
        reach: the reached code.
    """

    reach: Reach
    _ordered: dict[Key, bool] = field(default_factory=dict)
    _fixed: dict[Key, bool] = field(default_factory=dict)

    def is_ordered(self, key: Key) -> bool:
        """Return whether the place of a unit in the execution counts."""
        if key not in self._ordered:
            self._ordered[key] = self._has_place(key) or any(
                not self._is_fixed_part(part)
                for token in self.reach.written(key).tokens
                if isinstance(token, Ref) and not token.deferred and token.use != "Import"
                for part in self.reach.resolve(key[0], token)
            )
        return self._ordered[key]

    def _has_place(self, key: Key) -> bool:
        unit = self.reach.unit(key)
        if unit.is_ordered or key[0] in self.reach.ordered or self._patches_anything:
            return True
        return isinstance(unit.node, ast.ClassDef) and (
            "classes" in self.reach.flags
            or self.reach.hooks.tells(*key, self.reach.outline(key[0]))
        )

    def _is_fixed_part(self, part: Part) -> bool:
        if isinstance(part, Named):
            return True
        return isinstance(part, Defined) and self._is_fixed((part.label, part.place))

    def _is_fixed(self, key: Key) -> bool:
        """Return whether a unit binds its name to one value that nothing changes."""
        if key not in self._fixed:
            self._fixed[key] = False  # until its references are checked
            self._fixed[key] = self._looks_fixed(key)
        return self._fixed[key]

    def _looks_fixed(self, key: Key) -> bool:
        unit = self.reach.unit(key)
        changed = unit.has_effects or unit.is_ordered or key in self._patched
        if changed or key[0] in self.reach.escaped | self.reach.ordered:
            return False
        if isinstance(unit.node, DEFINITIONS):
            return True
        value = getattr(unit.node, "value", None)
        if value is None or not all(isinstance(one, _LITERAL) for one in ast.walk(value)):
            return False
        return all(
            self._is_fixed_part(part)
            for token in self.reach.written(key).tokens
            if isinstance(token, Ref)
            for part in self.reach.resolve(key[0], token)
        )

    @cached_property
    def _patched(self) -> set[Key]:
        """Units whose name or attribute other code binds again."""
        return {
            (part.label, part.place)
            for key, token in self._stores()
            for part in self.reach.resolve(key[0], token)
            if isinstance(part, Defined)
        }

    @cached_property
    def _patches_anything(self) -> bool:
        """Whether code sets attributes of objects outside the project, or by a computed name."""
        return "patches" in self.reach.flags or any(
            not isinstance(part, Defined)
            for key, token in self._stores()
            for part in self.reach.resolve(key[0], token)
        )

    def _stores(self) -> list[tuple[Key, Ref]]:
        return [
            (key, token)
            for key in self.reach.units
            for token in self.reach.written(key).tokens
            if isinstance(token, Ref) and token.use in ("Store", "Del")
        ]
