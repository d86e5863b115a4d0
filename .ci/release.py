#!/usr/bin/env python3
"""Print the notes of a release, or say what is not ready for its tag: `python .ci/release.py v0.1.0`.

`python .ci/release.py v0.1.0 --readme` prints README.md as the page on PyPI needs it.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "shardline/shardline"


def versions(root: Path) -> dict[str, str]:
    """Return the version that each file of the repository has."""
    found = {
        path.relative_to(root).as_posix(): tomllib.loads(path.read_text())["project"]["version"]
        for path in [root / "pyproject.toml", *sorted(root.glob("plugins/*/pyproject.toml"))]
    }
    for name, pattern in {
        "CITATION.cff": r"^version: (.+)$",
        "conda/recipe.yaml": r'^  version: "(.+)"$',
        "src/shardline/__init__.py": r'^__version__ = "(.+)"$',
    }.items():
        match = re.search(pattern, (root / name).read_text(), re.MULTILINE)
        found[name] = match[1] if match else "missing"
    return found


def absolute_links(text: str, version: str) -> str:
    """Return Markdown whose links and images name the files of a version's tag on GitHub."""
    local = r"\((?!\w+:|#)"
    for link, host, folder in (
        (rf"(!\[[^\]]*\]){local}", "raw.githubusercontent.com", ""),
        (rf"(\]){local}", "github.com", "/blob"),
    ):
        text = re.sub(link, rf"\1(https://{host}/{REPOSITORY}{folder}/v{version}/", text)
    return text


def notes(root: Path, version: str) -> str:
    """Return the section of a version in CHANGELOG.md. Its links name the files of the tag.

    Raises:
        ValueError: there is no such section, its title has no date, or a change has no version yet.
    """
    text = (root / "CHANGELOG.md").read_text()
    match = re.search(rf"^## {re.escape(version)}(.*)\n(?s:(.*?))(?=^## |\Z)", text, re.MULTILINE)
    if match is None:
        raise ValueError(f"CHANGELOG.md has no section {version}, expected its changes; write it")
    if not re.fullmatch(r" - \d{4}-\d\d-\d\d", match[1]):
        raise ValueError(
            f"CHANGELOG.md: the title is '## {version}{match[1]}', expected the day of the release; "
            f"write '## {version} - YYYY-MM-DD'"
        )
    waiting = re.search(r"^## Unreleased\n(?s:(.*?))(?=^## |\Z)", text, re.MULTILINE)
    if waiting and waiting[1].strip():
        raise ValueError(
            f"CHANGELOG.md has entries below '## Unreleased', expected none; move them to the section {version}"
        )
    # on a release's page, a line that ends is a new line
    joined = re.sub(r"(?<=\S)\n +(?=[^-\s])|(?<=\S)\n(?=[^-#|\s])", " ", match[2].strip())
    return absolute_links(joined, version) + "\n"


def main() -> int:
    """Check the tag that is named, and print its notes or the README."""
    version = sys.argv[1].removeprefix("v")
    if "--readme" in sys.argv:
        print(absolute_links((ROOT / "README.md").read_text(), version), end="")
        return 0
    problems = [
        f"{name} has version {found}, expected {version} of the tag; change one of them"
        for name, found in versions(ROOT).items()
        if found != version
    ]
    try:
        text = notes(ROOT, version)
    except ValueError as error:
        problems.append(str(error))
    if problems:
        print("\n".join(problems), file=sys.stderr)
        return 1
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
