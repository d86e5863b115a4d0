"""Documents of our own, validated against the types that describe them when they are read."""

from pathlib import Path
from typing import Any

from shardline.core.errors import DataError
from shardline.core.files import read_object


def read_formed(path: Path, form: type, *, remedy: str) -> dict[str, Any]:
    """Read a JSON file that holds an object of a form, and return the object as it is.

    Raises:
        DataError: it is missing, not JSON or has another form; ends with the remedy.
    """
    document = read_object(path, remedy=remedy)
    if problem := problem_of_form(path, document, form):
        raise DataError(f"{problem}; {remedy}")
    return document


def problem_of_form(path: Path, document: object, form: type) -> str | None:
    """Return in which place a document has another form; None if it has this one.

    Args:
        form: a `msgspec.Struct`; keys that it does not name may have any value.
    """
    import msgspec  # 40 ms, which a start of Snakemake is spared

    try:
        msgspec.convert(document, form)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # half of a character
        return f"{path} has not the form that the pipeline writes: {error}"
    return None
