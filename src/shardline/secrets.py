"""Secrets in texts that are kept or shown: found by their form and their names, and masked."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASK = "***"
_NAME = (
    r"[\w-]*(?:token|secret|passw(?:or)?d|pwd|[_-]pass|[_-]pat|credentials?|(?:api|access|account|private)[_-]?key)"
    r"|(?<=[?&;\s])(?:sig|key)"
)
# Each has what stays in its first group; the secret follows it.
_PATTERNS = (
    re.compile(r"(://)[^/@\s'\"]+(?=@)"),  # user:password@
    re.compile(r"(://[^\s?'\"]*\?)[^\s'\")]+"),  # a query: signatures have many names
    re.compile(r"(?i)(\bbearer )[^\s'\"]+"),
    re.compile(rf"(?i)((?:{_NAME})['\"]?\s*[=:]\s*['\"]?)[^\s&;,'\"}}]+"),
    re.compile(rf"(?i)(--(?:{_NAME})\s+)[^\s-][^\s]*"),
)


def mask(text: str, values: Iterable[str] = ()) -> str:
    """Return a text without what looks like a secret.

    Masked are users and passwords of URLs and their whole queries, bearer
    tokens, and what follows a name such as `token`, `..._PASSWORD` or `--api-key`.

    Args:
        values: secrets that are known, masked wherever they stand.
    """
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = text.replace(value, MASK)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def mask_values(document: Any) -> Any:
    """Return a JSON document whose strings went through `mask`, those of secret names as a whole."""
    if isinstance(document, Mapping):
        return {
            key: MASK if is_secret(key) and isinstance(value, str) else mask_values(value)
            for key, value in document.items()
        }
    if isinstance(document, list | tuple):
        return [mask_values(value) for value in document]
    return mask(document) if isinstance(document, str) else document


def is_secret(name: str) -> bool:
    """Return whether what has this name is a secret."""
    return re.fullmatch(_NAME, name, re.IGNORECASE) is not None
