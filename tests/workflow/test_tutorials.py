"""Each tutorial is followed as it is written: its commands are typed, and its screens are what is shown."""

import re

import pytest

from tests.support.tutorials import Page, Shell, follow, read_page
from tests.support.workspace import REPOSITORY, SNAKEMAKE

TUTORIALS = REPOSITORY / "docs/tutorials"
HERE = (
    "first-experiment",
    "your-model-and-data",
    "from-lightning",
    "cross-validate-a-table",
    "a-study",
    "share-a-result",
)
ON_SLURM = "cluster"  # tests/slurm/test_tutorial.py
EXECUTED = "results-in-a-notebook"  # test_notebook.py
NOT_RUN = {**dict.fromkeys(HERE, 0), "first-experiment": 1, ON_SLURM: 2}
COMMITTER = {
    f"GIT_{role}_{key}": value
    for role in ("AUTHOR", "COMMITTER")
    for key, value in (("NAME", "Kim Doe"), ("EMAIL", "kim@example.org"))
}


def page_of(name: str) -> Page:
    return read_page(TUTORIALS / f"{name}.md")


def test_each_tutorial_is_followed_somewhere():
    followed_somewhere = sorted((*HERE, ON_SLURM, EXECUTED))
    assert sorted(path.stem for path in TUTORIALS.glob("*.md")) == followed_somewhere


@pytest.mark.parametrize("name", [*HERE, ON_SLURM])
def test_a_tutorial_is_typed_but_for_the_screens_that_say_why_not(name):
    page = page_of(name)
    assert len(page.commands) >= 10, "a tutorial without commands would pass whatever it says"
    assert [step.line for step in page.commands if step.shown], "nothing would be compared"
    assert len(page.left_out) == NOT_RUN[name], page.left_out
    fences = re.findall(r"^```(\w*)(.*)$", page.path.read_text(), re.MULTILINE)
    opened = [(kind, options) for kind, options in fences if kind]
    assert [one for one in opened if one[0] != "console" and "title=" not in one[1]] == [], (
        "neither typed nor written"
    )


@pytest.mark.rotating
@pytest.mark.parametrize("name", HERE)
def test_a_tutorial_shows_what_the_screen_shows(name, tmp_path):
    page = page_of(name)
    folder = tmp_path / "followed"
    folder.mkdir()
    shell = Shell(
        folder, env={"PATH": f"{SNAKEMAKE.parent}:/usr/local/bin:/usr/bin:/bin", **COMMITTER}
    )
    differences = follow(page, shell)
    print(f"{len(page.commands)} commands, {len(page.left_out)} screens not run: {page.left_out}")
    assert differences == [], "\n\n".join(differences)


def followed(text, folder):
    """Return how a page differs from its screens."""
    (folder / "page.md").write_text(text)
    (folder / "followed").mkdir()
    return follow(read_page(folder / "page.md"), Shell(folder / "followed"))


GOOD = """
```text title="mypkg/word.txt"
one
```

<!-- not run: there is no such program -->
```console
$ nosuchprogram
```

```console
$ cd mypkg && export WORD=two
$ cat word.txt; echo $WORD
one
two
$ echo 0123456789ab 3.14159 s at 12:00:00
ba9876543210 2.71 s at 13:30:59
$ seq 1 5
1
...
5
$ false
$ echo $?
1
$ echo begun; sleep 60; echo never
begun
^C
```
"""


def test_a_page_that_shows_what_its_commands_show_is_followed(tmp_path):
    assert followed(GOOD, tmp_path) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("\none\ntwo", "\none\nthree"),
        ("$ false\n$ echo $?\n1", "$ false"),
        ("$ seq 1 5", "$ seq 1 4"),
        ("3.14159 s", "seconds"),
    ],
)
def test_a_page_that_shows_something_else_is_not(good, bad, tmp_path):
    assert good in GOOD
    assert len(followed(GOOD.replace(good, bad), tmp_path)) == 1


def test_a_screen_begins_with_a_command(tmp_path):
    with pytest.raises(ValueError, match="a screen begins with a command"):
        followed("```console\nsome output\n```\n", tmp_path)
