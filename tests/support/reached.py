"""What a small project's entry point reaches."""

from collections.abc import Mapping
from pathlib import Path

from shardline.identity import CodeIndex, UserCode
from shardline.identity.user_code import reach

ENTRY = "models:Net"


def reached(root: Path, files: Mapping[str, str], entry: str = ENTRY) -> UserCode:
    """Write files below a folder, and return what an entry point there reaches.

    Args:
        files: text by path; without a suffix, by dotted name of a module.
    """
    for name, text in files.items():
        path = root / name if "/" in name or name.endswith((".json", ".txt")) else None
        path = path or root.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    main = root / "train.py" if entry == "__main__" else None
    return reach(CodeIndex((root,), main=main, workdir=root), entry)
