"""What a definition is written as: texts, and references that are resolved later."""

from dataclasses import dataclass, field

from shardline.identity.scopes import Imported


@dataclass(frozen=True)
class Ref:
    """A name of the module, with the attributes behind it.

    Attributes:
        chain: `("helpers", "f")` of `helpers.f`.
        line: where it stands.
        use: nothing where it is read, else `Store` or `Del`.
        imported: what an import inside the function binds the first name to; none
            where that is a name of the module.
        deferred: whether this stands in the body of a function, which runs later.
    """

    chain: tuple[str, ...]
    line: int = 0
    use: str = ""
    imported: tuple[Imported, ...] = ()
    deferred: bool = False


@dataclass(frozen=True)
class Run:
    """An import that stands where it is executed.

    Attributes:
        modules: absolute dotted names; of `from a import b` both `a` and `a.b`.
        line: where it stands.
        escapes: whether code gets the module itself, as from `import_module`.
    """

    modules: tuple[str, ...]
    line: int = 0
    escapes: bool = False


@dataclass(frozen=True)
class Note:
    """Something that lets code reach more than it names.

    Attributes:
        effect: what counts because of it, see `escapes`.
        text: as shown to users.
        line: where it stands.
    """

    effect: str
    text: str
    line: int


Token = str | Ref | Run | Note


@dataclass
class Written:
    """A definition, written.

    Attributes:
        tokens: all of it, in order.
        parts: of a class, where the tokens of each method begin and end, by its name.
    """

    tokens: list[Token] = field(default_factory=list)
    parts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
