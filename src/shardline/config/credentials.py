"""Settings that hold a credential, refused before anything reads them: every result would publish them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from shardline.core.credentials import credential_in
from shardline.core.errors import ConfigError
from shardline.core.redaction import assigned, is_secret
from shardline.identity.conda_pins import without_token

# Nobody's model takes one of these for anything else; a passphrase is long and of ordinary words.
_PASSWORD = re.compile(r"(?:.*[_-])?(?:passw(?:or)?d|passphrase|pwd)s?", re.IGNORECASE)
_LONG = 16
_REGISTRY = "leave it out and log in with the tool (`podman login REGISTRY`), which keeps it"
# Where nothing of the user's reads a variable.
_REMEDIES = {
    "environments": _REGISTRY,
    "image": _REGISTRY,
    "runtime.hosts": "leave it out and name the user and a key of this host in ~/.ssh/config",
    "conda.channels": "leave it out and let RATTLER_AUTH_FILE name a file that holds it",
}


def allowed_of(config: Mapping[str, Any]) -> Sequence[str]:
    """Return `runtime.not_secret` of a config that is not validated yet."""
    runtime = config.get("runtime")
    listed = runtime.get("not_secret", ()) if isinstance(runtime, Mapping) else ()
    return [str(key) for key in listed] if isinstance(listed, list | tuple) else []


def refuse_credentials(settings: Mapping[str, Any], where: str, allowed: Sequence[str]) -> None:
    """Refuse a setting whose value has a credential's form.

    Args:
        where: file and row, as messages begin.
        allowed: dotted keys whose values, and those below them, are no credentials; `defaults.`
            in front of a key of the settings may be left out.

    Raises:
        ConfigError: names key, kind of credential and remedy, and not the value.
    """
    for key, text in _texts(settings, ""):
        if (kind := _credential(key, text)) and not _is_allowed(key, allowed):
            raise ConfigError(
                f"{where}: {key} holds {kind}, expected none, since settings are recorded with every result; "
                f"{_remedy(key, kind)}, or, if it is no credential, add {key} to runtime.not_secret"
            )


def _remedy(key: str, kind: str) -> str:
    for begin, remedy in _REMEDIES.items():
        if key == begin or key.startswith(f"{begin}."):
            return remedy
    place = "write ${NAME} in its place (for a source's URL), " if "URL" in kind else ""
    return f"{place}put it into an environment variable that runtime.pass_env names and have the code read it there"


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield dotted key and text of each value; items of a list have the list's key."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield key or name, name  # a name may be what was to be the value
            yield from _texts(item, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, str):
        yield key, value


@lru_cache(4096)
def _credential(key: str, text: str) -> str | None:
    if key == "conda.channels" and without_token(text) != text:
        return "a URL with a token"
    # below a name such as `credentials` all are
    named = any(map(is_secret, key.split(".")))
    if kind := credential_in(text, has_secret_name=named):
        return kind
    is_password = any(map(_PASSWORD.fullmatch, key.split(".")))
    if is_password and len(text) >= _LONG and text[0] not in "$/~":
        return "a long password"
    for value in assigned(text):  # as in the words of a script's command line
        if kind := credential_in(value, has_secret_name=True):
            return kind
    return None


def _is_allowed(key: str, allowed: Sequence[str]) -> bool:
    names = (key, key.removeprefix("defaults."))
    return any(name == one or name.startswith(f"{one}.") for name in names for one in allowed)
