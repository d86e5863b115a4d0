"""Write the descriptions of the installed packages as text files: python make_data.py FOLDER."""

import re
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

SIZE = 1_000_000  # bytes of text, enough for an epoch of half a minute


def main(folder: Path) -> None:
    """Write a file for each package in the order of names, until there are `SIZE` bytes."""
    folder.mkdir(exist_ok=True)
    written = 0
    for package in sorted(distributions(), key=lambda one: one.name.lower()):
        text = page(package)
        if written < SIZE and len(text) > 1000:
            (folder / f"{package.name.lower()}.txt").write_text(text)
            written += len(text)


def page(package: Distribution) -> str:
    """Return a package's description in ASCII, without lines of tables, markup or long words."""
    text = package.metadata.get_payload() or package.metadata.get("Description") or ""
    lines = [line for line in text.splitlines() if not re.search(r"\S{40}|[<>|{}]", line)]
    return "\n".join(lines).encode("ascii", "ignore").decode()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
