"""Entities of a crate, each once, with deterministic ids."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rocrate.model.contextentity import ContextEntity
from rocrate.model.entity import Entity
from rocrate.rocrate import ROCrate

from shardline.core.canonical import short_digest
from shardline.provenance.crate.contents import Item

_WFRUN = "https://w3id.org/ro/terms/workflow-run"
_TYPES = {
    ".jsonl": "application/jsonl", ".safetensors": "application/octet-stream", ".tsv": "text/tab-separated-values",
    ".yaml": "application/yaml", ".smk": "text/x-snakemake", ".cff": "application/yaml", ".py": "text/x-python",
    ".json": "application/json", ".html": "text/html", ".csv": "text/csv", ".svg": "image/svg+xml",
    ".png": "image/png", ".md": "text/markdown",
}  # fmt: skip


class Entities:
    """Crate under construction, which creates each entity on first use."""

    def __init__(self) -> None:
        self.crate = ROCrate(version="1.1")
        self.crate.metadata.extra_contexts.append(f"{_WFRUN}/context")
        # by path or id; the lookup of rocrate reads every entity at each miss
        self._known: dict[str, Entity] = {}
        self._examples: set[tuple[str, str]] = set()

    @property
    def root(self) -> Entity:
        """Root data entity."""
        return self.crate.root_dataset

    def entity(self, identifier: str, kind: str | list[str], /, **properties: Any) -> Entity:
        """Return a contextual entity, and create it if needed; properties of None are left out."""
        if identifier not in self._known:
            given = {key: value for key, value in properties.items() if value is not None}
            made = ContextEntity(self.crate, identifier, {"@type": kind, **given})
            self._known[identifier] = self.crate.add(made)
        return self._known[identifier]

    def get(self, name: str) -> Entity | None:
        """Return the entity of a path or an id; None if it does not exist."""
        return self._known.get(name)

    def alias(self, name: str, path: str) -> None:
        """Make a name refer to the entity of a path with the same content."""
        if path in self._known:
            self._known.setdefault(name, self._known[path])

    def local(self, kind: str, name: str, types: str | list[str], /, **properties: Any) -> Entity:
        """Return a local contextual entity with the id `#kind/name`."""
        return self.entity(self.local_id(kind, name), types, **properties)

    @staticmethod
    def local_id(kind: str, name: str) -> str:
        """Return the id of a local entity."""
        return f"#{kind}/{_quoted(name)}"

    def file(self, path: str, item: Item, /, **properties: Any) -> Entity:
        """Add a file, with its digest and size.

        A file that is not in the crate has a local id (RO-Crate issue 400).
        """
        size = item.bytes
        described = {
            "name": path.rpartition("/")[2],
            "encodingFormat": _type_of(path),
            **({} if item.sha256 is None else {"sha256": item.sha256}),
            **({} if size is None else {"contentSize": str(size)}),
            **properties,
        }
        if not item.is_here:
            described["description"] = f"Not in this crate. Path in the project: {path}."
            self._known[path] = self.entity(f"#{_quoted(path)}", "File", **described)
        else:
            self._known[path] = self.crate.add_file(dest_path=path, properties=described)
        return self._known[path]

    def folder(self, path: str, /, *, is_here: bool, **properties: Any) -> Entity:
        """Add a folder as one entity."""
        if is_here:
            self._known[path] = self.crate.add_dataset(dest_path=path, properties=properties)
        else:
            self._known[path] = self.entity(f"#{_quoted(path)}", "Dataset", **properties)
        return self._known[path]

    def workflow(self, path: str, version: str, /, **properties: Any) -> Entity:
        """Add the main workflow with its version of Snakemake."""
        self._known[path] = self.crate.add_workflow(
            dest_path=path, main=True, lang="snakemake", lang_version=version, properties=properties
        )
        return self._known[path]

    def value(self, kind: str, name: str, value: Any, **properties: Any) -> Entity:
        """Return the PropertyValue of a name and value, which several actions can share."""
        text = value if isinstance(value, str) else json.dumps(value)
        # limits the length of the id
        shown = text if len(text) <= 80 else f"{text[:60]}-{short_digest(text)}"
        plain = text if isinstance(value, list | dict) or value is None else value
        return self.local(
            kind, f"{name}={shown}", "PropertyValue", name=name, value=plain, **properties
        )

    def parameter(self, tool: Entity, direction: str, name: str, kind: str) -> Entity:
        """Return the FormalParameter of an `input` or `output` of a tool or of the workflow."""
        identifier = f"{tool.id}#{direction}/{_quoted(name)}"
        if identifier not in self._known:
            made = self.crate.add_formal_parameter(name, kind, identifier)
            self._known[identifier] = made
            self.link(tool, direction, made)
        return self._known[identifier]

    def exemplify(self, what: Entity, parameter: Entity) -> None:
        """Record that an entity is the value of a parameter."""
        if (what.id, parameter.id) not in self._examples:
            self._examples.add((what.id, parameter.id))
            self.link(what, "exampleOfWork", parameter)

    def link(self, entity: Entity, key: str, *others: Entity) -> None:
        """Add references in order; a single reference is not put into a list."""
        for other in others:
            entity.append_to(key, other, compact=True)

    def person(self, login: str) -> Entity:
        """Return the person who ran an action, by login name."""
        return self.local("agent", login, "Person", name=login)

    def document(self) -> dict[str, Any]:
        """Return the metadata document."""
        return dict(self.crate.metadata.generate())


def refer(entities: Iterable[Entity]) -> list[Entity] | Entity | None:
    """Return entities as the value of a property: None, one entity, or a list."""
    found = list({entity.id: entity for entity in entities}.values())
    return found[0] if len(found) == 1 else found or None


def _quoted(text: str) -> str:
    return quote(text, safe="/=,+@~:")


def _type_of(path: str) -> str:
    name = Path(path).name
    if name == "Snakefile":
        return _TYPES[".smk"]
    return _TYPES.get(Path(name).suffix, "text/plain")


def image(entities: Entities, digest: str, reference: Mapping[str, Any]) -> Entity:
    """Return a container image by its digest, with registry and name if known."""
    named = str(reference.get("reference") or "").partition("@")[0]
    registry, _, name = named.rpartition("/")
    return entities.local(
        "image", digest, "ContainerImage",
        additionalType={"@id": f"{_WFRUN}#DockerImage"},
        name=name or "shardline",
        registry=registry or "localhost",
        sha256=digest.removeprefix("sha256:"),
    )  # fmt: skip
