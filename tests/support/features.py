"""Ways by which Python code reaches a definition, read from `features.txt`."""

from pathlib import Path

Feature = tuple[str, dict[str, str]]  # an expression in `app`, text by dotted name of a module


def read_features() -> dict[str, Feature]:
    """Return the parts that generated projects are made of, by name."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    return dict(map(_feature, text.split("\n=== ")[1:]))


def _feature(text: str) -> tuple[str, Feature]:
    head, *modules = text.rstrip("\n").split("\n--- ")
    name, _, call = head.partition("\ncall: ")
    return name, (call, {place: code for place, _, code in (m.partition("\n") for m in modules)})
