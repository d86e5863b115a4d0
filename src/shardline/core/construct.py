"""Construction of the objects that settings name, in jobs and in the check."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardline.core.error_texts import import_class, short_traceback
from shardline.core.errors import ConfigError, ShardlineError
from shardline.core.objects import NamedObject, read_value
from shardline.core.suggest import did_you_mean


def make_values(values: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """Return values in which each table that names an object is the constructed object.

    Objects are made in the order of their keys by name, not as written, since the order in which they draw initial
    weights must depend on what counts in the identity only.

    Args:
        values: Values as written, such as `model_args`.
        key: Dotted key of the values.
        where: Start of messages.

    Raises:
        ConfigError: An object cannot be imported, does not take its arguments, or its constructor fails.
    """
    made = {
        name: _made(read_value(values[name], f"{key}.{name}"), where) for name in sorted(values)
    }
    return {name: made[name] for name in values}


def make_object(
    named: NamedObject, where: str, *, first: Sequence[Any] = (), more: Mapping[str, Any] | None = None,
    shipped: Mapping[str, str] | None = None,
) -> Any:  # fmt: skip
    """Make an object with the objects among its arguments.

    Args:
        where: Start of messages; may be empty.
        first: Positional arguments that Shardline passes before the others.
        more: Arguments that Shardline passes by name, unless the settings have them.
        shipped: Import paths of names that the setting accepts.

    Raises:
        ConfigError: See `make_values`.
    """
    begin = f"{where}: " if where else ""
    what = f"{begin}{named.shown}"
    path = (shipped or {}).get(named.path, named.path)
    target = import_class(path, f"{begin}{named.path_key}")
    if not callable(target):
        raise ConfigError(
            f"{what} is of type {type(target).__name__}, expected a class or a function; name one"
        )
    check_call(target, named, what, first=first, more=more)
    positional = [*first, *(_made(one, where) for one in named.positional)]
    arguments = {name: _made(named.arguments[name], where) for name in sorted(named.arguments)}
    arguments = {**(more or {}), **arguments}
    if named.is_partial:
        return functools.partial(target, *positional, **arguments)
    try:
        return target(*positional, **arguments)
    except ShardlineError as error:
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{what} cannot be made: {short_traceback(error)}") from error


def parameters_of(target: Callable[..., Any]) -> tuple[list[str], bool]:
    """Return the names of the parameters of a class or function, and whether it has `**kwargs`.

    For compiled code without a signature, there are no names.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):
        return [], True
    has_kwargs = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    return [*_named(signature)], has_kwargs


def check_call(
    target: Callable[..., Any], named: NamedObject, what: str, *, first: Sequence[Any] = (),
    more: Mapping[str, Any] | None = None,
) -> None:  # fmt: skip
    """Reject arguments that a class or function does not take. Arguments of a partial may be missing.

    Args:
        what: Start of the message: key and import path.
        first: Positional arguments that Shardline passes.
        more: Arguments that Shardline passes by name.

    Raises:
        ConfigError: The message lists the parameters of the class.
    """
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # compiled code
        return
    bind = signature.bind_partial if named.is_partial else signature.bind
    positional, arguments = [*first, *named.positional], {**(more or {}), **named.arguments}
    try:
        bind(*positional, **arguments)
    except TypeError as error:
        parameters = dict([*_named(signature).items()][len(first) :])
        takes = f"takes {', '.join(_shown(one) for one in parameters.values()) or 'no arguments'}"
        unknown = [name for name in named.arguments if name not in parameters]
        has_kwargs = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
        if unknown and not has_kwargs:
            free = [name for name in parameters if name not in arguments]
            remedy = did_you_mean(unknown[0], free, otherwise=f"remove {unknown[0]}")
            raise ConfigError(f"{what} {takes}, but not {', '.join(unknown)}; {remedy}") from None
        given = list(parameters)[: len(named.positional)]
        missing = [
            name
            for name, one in parameters.items()
            if one.default is one.empty and name not in arguments and name not in given
        ]
        if missing and not named.is_partial:
            keys = ", ".join(f"{named.key_of_arguments}.{name}" for name in missing)
            raise ConfigError(
                f"{what} {takes}, and lacks {', '.join(missing)}; add {keys}"
            ) from None
        raise ConfigError(f"{what} {takes} ({error}); change its arguments") from None


def _made(value: Any, where: str) -> Any:
    if isinstance(value, NamedObject):
        return make_object(value, where)
    if isinstance(value, Mapping):
        made = {name: _made(value[name], where) for name in sorted(value)}
        return {name: made[name] for name in value}
    return [_made(item, where) for item in value] if isinstance(value, list) else value


def _named(signature: inspect.Signature) -> dict[str, inspect.Parameter]:
    return {
        name: one
        for name, one in signature.parameters.items()
        if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }


def _shown(one: inspect.Parameter) -> str:
    if one.default is one.empty:
        return one.name
    text = repr(one.default)
    is_plain = one.default is None or isinstance(one.default, bool | int | float | str)
    return f"{one.name}={text}" if is_plain and len(text) <= 20 else f"{one.name}=..."
