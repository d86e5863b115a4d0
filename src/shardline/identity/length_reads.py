"""Code of the user that reads the length of a training, so that a longer training may be another one."""

import ast
from collections.abc import Iterable, Iterator

from shardline.identity.code_index import CodeIndex
from shardline.identity.user_code import reached_statements

LENGTHS = frozenset({"max_epochs", "max_steps", "estimated_stepping_batches"})
# the loops of a Trainer have the same numbers, and the data of its training has the steps
_BEHIND = frozenset({"fit_loop", "datamodule"})
# what is set by the run's own arguments, which are equal
_OWN = frozenset({"self", "cls", "hparams"})


def length_reads(index: CodeIndex, entries: Iterable[str]) -> list[str]:
    """Return a clause for each definition that reads the length of the training, sorted.

    A length that the code keeps in an attribute of its own (`self.max_epochs`, `self.hparams.max_epochs`) comes from an
    argument, or from a place that is found here.

    Args:
        index: index of the project's modules.
        entries: import paths of the model, its callbacks and other objects.
    """
    found = set()
    for entry in dict.fromkeys(entries):
        for name, statement in reached_statements(index, entry):
            found |= {f"{name} reads {shown}" for shown in _reads(statement)}
    return sorted(found)


def _reads(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        match node:
            case ast.Attribute(value=owner, attr=name, ctx=ast.Load()) if _is_length(owner, name):
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id="getattr"), args=[_, ast.Constant(value=str(name)), *_]):
                if name in LENGTHS | _BEHIND:
                    yield ast.unparse(node)


def _is_length(owner: ast.expr, name: str) -> bool:
    last = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    return name in LENGTHS | _BEHIND and last not in _OWN
