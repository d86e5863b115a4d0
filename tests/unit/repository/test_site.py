"""The site: its navigation, its size, its links, and the pages that are written from the code."""

import importlib.util
import os
import re
import unicodedata
from functools import cache
from pathlib import Path

import pytest
import yaml

from tests.support.workspace import REPOSITORY

DOCS = REPOSITORY / "docs"
REFERENCE, DECISIONS = "reference/", "decisions/"
MAX_WORDS = 1200
# the first site had 32,000, before tables, folds and torch datasets; then came Lightning projects, and
# runs that grow out of runs
MAX_WORDS_OF_ALL = 43_800
# Figures as they were measured.
LABORATORY = "contributing/laboratory.md"

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
ELSEWHERE = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in (
        "*.md",
        "config/*.md",
        "examples/*.md",
        "examples/*/*.md",
        "plugins/*/README.md",
    )
    for path in REPOSITORY.glob(pattern)
)
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"\]\(<?([^)<>\s]+)>?(?: +\"[^\"]*\")?\)|<(?:a|img)\b[^>]*?\b(?:href|src)=\"([^\"]+)\""
)


def in_navigation() -> list[str]:
    """Return the pages that mkdocs.yml names."""

    def pages(part):
        if isinstance(part, str):
            yield part
        else:
            for one in part.values() if isinstance(part, dict) else part:
                yield from pages(one)

    return list(
        pages(yaml.safe_load((REPOSITORY / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])
    )


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def words(page: str) -> int:
    """Return how many words a page has, in prose, tables and code alike."""
    return sum(any(map(str.isalnum, token)) for token in read(page).split())


def is_record(page: str) -> bool:
    """Return whether a page is a decision record, which the index of decisions names."""
    return re.match(r"decisions/\d", page) is not None


def joined_tables(text: str) -> list[str]:
    """Return the headers of tables that follow the line before, and so render as rows or text."""
    before = r"^(?!```|<!--).*\S.*\n"
    return re.findall(before + r"(\|.+\|)\n\|(?: *:?-{3,}:? *\|)+$", text, re.MULTILINE)


@cache
def anchors(path: Path) -> set[str]:
    """Return what a link to a page may name, by the rules of Python-Markdown's `toc` and `attr_list`."""
    text = FENCE.sub("", path.read_text(encoding="utf-8"))
    found = set(re.findall(r"\{:? *#([^ }]+)[^}]*\}", text)) | set(
        re.findall(r"\b(?:id|name)=\"([^\"]+)\"", text)
    )
    found |= set(re.findall(r"^::: (\S+)", text, re.MULTILINE))
    for title in re.findall(r"^#+ +(.+)$", text, re.MULTILINE):
        if re.search(r"\{:? *#", title):
            continue
        plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", title)
        plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        slug = base = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())
        number = 0
        while slug in found:
            number += 1
            slug = f"{base}_{number}"
        found.add(slug)
    return found


def dead_links(path: Path, root: Path) -> list[str]:
    """Return the links of a page that lead nowhere, or out of a folder."""
    text = re.sub(
        r"(`+)(?!`).+?(?<!`)\1(?!`)",
        "",
        FENCE.sub("", path.read_text(encoding="utf-8")),
        flags=re.DOTALL,
    )
    dead = []
    for found in LINK.findall(text):
        link = found[0] or found[1]
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = Path(os.path.normpath(path.parent / name)) if name else path
        is_dead = not target.exists() or not target.is_relative_to(root)
        if is_dead or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    return dead


def test_every_page_of_the_navigation_exists():
    assert sorted(set(in_navigation()) - set(PAGES)) == []


def test_every_page_is_in_the_navigation_once():
    named = in_navigation()
    assert sorted({page for page in named if named.count(page) > 1}) == []
    assert sorted(page for page in PAGES if page not in named and not is_record(page)) == []


def test_the_first_page_leads_to_every_page_for_users():
    named = set(re.findall(r"\]\(([^)#]+)", read("index.md")))
    of_users = {
        page for page in in_navigation() if not page.startswith(("contributing/", DECISIONS))
    }
    assert sorted(of_users - named - {"index.md"}) == []


# what a tutorial contains, and the extra that it then needs
EXTRA_OF = {
    r"type: csv": "tables",
    r"import pandas": "notebook",
    r"--to onnx": "onnx",
    r"sampler: tpe": "sweeps",
    r"from lightning import": "lightning",
    r"\.save\(\"\w+\.pdf": "figures",
    r"profiles/slurm": "slurm",
}


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("tutorials/")])
def test_a_tutorial_names_the_extras_that_it_needs(page):
    text = read(page)
    needed = {extra for found, extra in EXTRA_OF.items() if re.search(found, text)}
    named = re.findall(r"pip install 'shardline\[([\w,-]+)\]'", text)
    assert needed <= {extra for one in named for extra in one.split(",")}


def test_every_decision_is_in_the_index_of_decisions():
    index = read("decisions/index.md")
    records = {page.removeprefix(DECISIONS) for page in PAGES if is_record(page)}
    assert sorted(records - set(re.findall(r"\]\(([^)]+)\)", index))) == []


def test_no_page_is_too_long():
    long = {
        page: words(page)
        for page in PAGES
        if not page.startswith((REFERENCE, DECISIONS)) and page != LABORATORY
    }
    assert {page: number for page, number in long.items() if number > MAX_WORDS} == {}


def test_the_site_is_not_too_long():
    counted = [
        page for page in PAGES if not page.startswith((REFERENCE, DECISIONS)) and page != LABORATORY
    ]
    assert sum(map(words, counted)) <= MAX_WORDS_OF_ALL


def test_a_table_begins_after_an_empty_line():
    table = "| a |\n| --- |\n| 1 |\n"
    assert joined_tables(table + "| b |\n| --- |\n") == ["| b |"]
    assert joined_tables(f"A sentence.\n\n{table}\n{table}") == []
    assert {page: found for page in PAGES if (found := joined_tables(read(page)))} == {}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_place_of_the_site(page):
    assert dead_links(DOCS / page, DOCS) == []


@pytest.mark.parametrize("page", ELSEWHERE)
def test_every_link_of_a_page_beside_the_site_leads_somewhere(page):
    assert dead_links(REPOSITORY / page, REPOSITORY) == []


def test_no_page_needs_a_script_from_a_network():
    assert [
        page for page in PAGES if re.search(r"^ *(```|~~~) *mermaid", read(page), re.MULTILINE)
    ] == []


def test_the_reference_is_current(golden):
    spec = importlib.util.spec_from_file_location("generate", DOCS / "reference/generate.py")
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    written = generate.pages()
    assert sorted(written) == sorted(path.name for path in DOCS.glob("reference/*.md"))
    for name, text in written.items():
        golden(DOCS / "reference" / name, text)  # renew it: make reference
    files = generate.json_schemas()
    assert sorted(files) == sorted(path.name for path in DOCS.glob("reference/schemas/*"))
    for name, text in files.items():
        golden(DOCS / "reference/schemas" / name, text)
