"""Title, authors and license of a crate, from the project's CITATION.cff.

Format: Citation File Format 1.2.0, https://doi.org/10.5281/zenodo.5171937.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from rocrate.model.entity import Entity

from shardline.core.errors import ConfigError
from shardline.provenance.crate.contents import CITATION, Contents
from shardline.provenance.crate.entities import Entities, refer


def read_citation(contents: Contents) -> dict[str, Any]:
    """Return the content of CITATION.cff; empty if the file does not exist.

    Raises:
        ConfigError: The file is not YAML of the expected form.
    """
    item = contents.items.get(str(CITATION))
    try:
        cited = yaml.safe_load(item.source) if item and isinstance(item.source, bytes) else {}
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{CITATION} is not valid YAML ({' '.join(str(error).split())}); fix or delete the file"
        ) from None
    authors = cited.get("authors", []) if isinstance(cited, dict) else None
    if not isinstance(authors, list) or not all(isinstance(one, dict) for one in authors):
        raise ConfigError(
            f"{CITATION} has no list of named `authors`; expected Citation File Format 1.2.0; fix or delete the file"
        )
    return dict(cited)


def license_of(entities: Entities, cited: Mapping[str, Any]) -> Entity | list[Entity] | None:
    """Return the license by its SPDX identifier, or an entity for no license."""
    names = cited.get("license") or []
    if names:
        return refer(
            spdx(entities, name) for name in ([names] if isinstance(names, str) else names)
        )
    return entities.entity(
        "#no-license", "CreativeWork", name="No license was given",
        description=f"No license was stated for these results; {CITATION} in the project's folder can state one.",
    )  # fmt: skip


def spdx(entities: Entities, name: str) -> Entity:
    """Return a license of the SPDX list."""
    url = f"https://spdx.org/licenses/{name}"
    return entities.entity(
        url, "CreativeWork", name=name, description=f"License {name} of the SPDX list"
    )


def authors_of(entities: Entities, cited: Mapping[str, Any]) -> list[Entity]:
    """Return the authors: organizations and persons."""
    return [_author(entities, author) for author in cited.get("authors", [])]


def publisher_of(authors: Sequence[Entity]) -> Entity | None:
    """Return the first organization among the authors, otherwise the first affiliation."""
    first = next((one for one in authors if one.type == "Organization"), None)
    return first or next((one["affiliation"] for one in authors if "affiliation" in one), None)


def _author(entities: Entities, author: Mapping[str, Any]) -> Entity:
    url = author.get("orcid") or author.get("website")
    if "name" in author:
        name = str(author["name"])
        identifier = url or entities.local_id("organization", name)
        return entities.entity(identifier, "Organization", name=name, url=url)
    names = [author.get("given-names"), author.get("family-names")]
    name = " ".join(filter(None, names)) or str(author.get("alias", "unknown"))
    works_at = author.get("affiliation")
    affiliation = works_at and entities.local(
        "organization", works_at, "Organization", name=works_at
    )
    identifier = url or entities.local_id("author", name)
    return entities.entity(identifier, "Person", name=name, affiliation=affiliation or None)
