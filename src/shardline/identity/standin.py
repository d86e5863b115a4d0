"""The user's own code behind a model, source or script, by import closure.

To be replaced by `CodeIndex.reach`, which digests definitions.
"""

from dataclasses import dataclass, field

from shardline.identity.canonical import short_digest
from shardline.identity.code import CodeIndex
from shardline.identity.versions import PUBLIC

_LIBRARY = "shardline"


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """What an entry point reaches of the user's code, and of what else counts like it.

    Attributes:
        digest: of all of it; enters the identity document.
        definitions: digests by `module:definition`; tell what changed.
        third_party: top-level names of the packages that it imports.
        whole: modules that count as a whole, with the reason.
    """

    digest: str
    definitions: dict[str, str]
    third_party: frozenset[str]
    whole: dict[str, str] = field(default_factory=dict)


def user_code(index: CodeIndex, entry: str) -> UserCode:
    """Return the code behind an entry point.

    Args:
        entry: `module:Class`, or `__main__` of an index with a script.
    """
    module, _, name = entry.partition(":")
    code, packages = index.closure(module)
    surface, _ = index.closure(*(name for name in PUBLIC if name in code))
    counted = {
        key: definitions
        for key, definitions in code.items()
        if key.partition(".")[0] != _LIBRARY or key not in surface
    }
    definitions = {f"{key}:{one}": d for key, found in counted.items() for one, d in found.items()}
    imports = set(packages)
    if not any(" " in key for key in counted):  # a module of a folder that is added to sys.path
        imports &= {i.partition(".")[0] for key in counted for i in index.module(key).imports}
    return UserCode(
        digest=short_digest({"name": name, "definitions": definitions}),
        definitions=definitions,
        third_party=frozenset(imports),
    )
