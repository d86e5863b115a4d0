"""One term for one thing: words that the project has replaced do not come back."""

import re

import pytest

from tests.support.workspace import REPOSITORY

# Replaced everywhere, with the term that took its place.
EVERYWHERE = {
    r"rehears\w*": "preflight check",
    r"roll call": "membership check",
    r"leash": "exit_on_stdin_close",
    r"guilty": "hang suspect, diagnosis",
    r"lingering": "stuck launcher",
}
# Replaced in packages whose language is finished; others follow.
FINISHED = (
    "README.md",
    "benchmarks",
    "docs",
    "plugins/snakemake-executor-plugin-azureml",
    "rules",
    "scripts",
    "src/shardline/checkpoints",
    "src/shardline/cli",
    "src/shardline/config",
    "src/shardline/core",
    "src/shardline/data",
    "src/shardline/drills",
    "src/shardline/environments",
    "src/shardline/identity",
    "src/shardline/launch",
    "src/shardline/pipeline",
    "src/shardline/provenance",
    "src/shardline/report",
    "src/shardline/results",
    "src/shardline/supervision",
    "src/shardline/tracking",
    "src/shardline/training",
)
IN_FINISHED = {
    r"pulse": "heartbeat",
    r"told|said|says": "reported, recorded",
    r"mend(s|ed|ing)?": "fix",
    r"anew": "again",
    r"befalls?": "injected fault",
    r"judg(e|ed|es)": "evaluated, diagnosed",
    r"goes on|went on": "resumes, continues",
    r"held against": "verified against",
    r"put right": "restore",
    r"forget": "reset",
}
ALLOWED = {
    ("benchmarks/reliability.py", "said"),  # a key of `benchmarks/results/reliability.json`
    # a key that `report/charts.js` reads, whose text counts in reports' identities
    ("src/shardline/report/charts/scaling_curves.py", "said"),
    ("src/shardline/report/charts/resource_curves.py", "said"),
    ("src/shardline/report/charts/varied.py", "said"),
}


def texts(*roots: str) -> dict[str, str]:
    kinds = {".py", ".md", ".smk", ".j2"}
    found = [REPOSITORY / root for root in roots]
    paths = [p for root in found for p in ([root] if root.is_file() else sorted(root.rglob("*")))]
    read = {str(p.relative_to(REPOSITORY)): p.read_text() for p in paths if p.suffix in kinds}
    # records of decisions keep the words of their time
    return {name: text for name, text in read.items() if not name.startswith("docs/decisions/")}


def uses(words: dict[str, str], found: dict[str, str]) -> list[str]:
    return [
        f"{name}: {match[0]!r}, say {term!r}"
        for name, text in found.items()
        for word, term in words.items()
        for match in re.finditer(rf"\b({word})\b", text, re.IGNORECASE)
        if (name, match[0]) not in ALLOWED
    ]


@pytest.mark.parametrize("word", EVERYWHERE)
def test_a_replaced_word_is_nowhere(word):
    found = texts("README.md", "docs", "src", "rules", "scripts", "config")
    assert len(found) > 300
    assert uses({word: EVERYWHERE[word]}, found) == []


def test_finished_packages_use_the_terms():
    found = texts(*FINISHED)
    assert len(found) > 15
    assert uses(IN_FINISHED, found) == []


def test_the_readme_is_short():
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= 110


def test_a_replaced_word_would_be_found():
    assert uses(EVERYWHERE, {"a.md": "Before the rehearsal."}) == [
        "a.md: 'rehearsal', say 'preflight check'"
    ]
