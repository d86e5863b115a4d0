"""The digest of user code behind one narrow function, whatever the product digests it by."""

from collections.abc import Sequence
from pathlib import Path

from shardline.core.canonical import digest as digest_of_document
from shardline.identity import CodeIndex
from shardline.identity.user_code import reach


def digest(entry: str, roots: Sequence[Path]) -> str:
    """Return the digest of the definitions that `call` of an entry module can reach.

    Args:
        entry: the module's dotted name.
        roots: the project's folders in import order; the code runs in the first.
    """
    code = reach(CodeIndex(roots), f"{entry}:call")
    return digest_of_document({"code": code.digest, "third party": sorted(code.third_party)})
