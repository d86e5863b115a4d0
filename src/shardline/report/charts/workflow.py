"""Layout of the boxes and arrows of a workflow graph."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_BOX = (168, 72)  # width and height
_GAP = (40, 22)  # along and across the flow


@dataclass(frozen=True, kw_only=True)
class Box:
    """Box of a rule.

    Attributes:
        node: Node of the rule in the graph.
        x: Left edge, in pixels.
        y: Upper edge, in pixels.
    """

    node: Mapping[str, Any]
    x: float
    y: float


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Drawing of a graph; lengths in pixels.

    Attributes:
        boxes: One box per rule.
        arrows: One SVG path per edge.
        box: Width and height of every box.
    """

    boxes: Sequence[Box]
    arrows: Sequence[str]
    width: float
    height: float
    box: tuple[int, int] = _BOX


def lay_out(graph: Mapping[str, Any], *, downwards: bool = False) -> Layout:
    """Lay out a workflow in layers, with each rule behind the rules that it waits for.

    Args:
        graph: `nodes` with a `rule` each, and acyclic `edges` as pairs of rules.
        downwards: Whether to draw from top to bottom, for phones, instead of left to right.
    """
    edges = [(first, then) for first, then in graph["edges"]]
    depths = _depths([node["rule"] for node in graph["nodes"]], edges)
    layers: dict[int, list[Mapping[str, Any]]] = {}
    for node in graph["nodes"]:
        layers.setdefault(depths[node["rule"]], []).append(node)
    flow = 1 if downwards else 0
    breadth = max(len(layer) for layer in layers.values())
    strides = _BOX[flow] + _GAP[0], _BOX[1 - flow] + _GAP[1]
    places: dict[str, tuple[float, float]] = {
        node["rule"]: (depth * strides[0], (index + (breadth - len(layer)) / 2) * strides[1])
        for depth, layer in layers.items()
        for index, node in enumerate(layer)
    }
    if downwards:
        places = {rule: (across, along) for rule, (along, across) in places.items()}
    sizes = len(layers) * strides[0] - _GAP[0], breadth * strides[1] - _GAP[1]
    width, height = sizes[::-1] if downwards else sizes
    return Layout(
        boxes=[Box(node=n, x=places[n["rule"]][0], y=places[n["rule"]][1]) for n in graph["nodes"]],
        arrows=[_arrow(places[first], places[then], downwards) for first, then in edges],
        width=width,
        height=height,
    )


def _depths(rules: Sequence[str], edges: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return the layer of each rule, as late as possible, so that arrows are short."""
    after = dict.fromkeys(rules, 0)
    for _ in rules:
        for first, then in edges:
            after[first] = max(after[first], after[then] + 1)
    return {rule: max(after.values()) - length for rule, length in after.items()}


def _arrow(first: tuple[float, float], then: tuple[float, float], downwards: bool) -> str:
    width, height = _BOX
    if downwards:
        x1, y1, x2, y2 = first[0] + width / 2, first[1] + height, then[0] + width / 2, then[1] - 6
        return f"M{x1:g} {y1:g}C{x1:g} {y1 + 20:g} {x2:g} {y2 - 20:g} {x2:g} {y2:g}"
    x1, y1, x2, y2 = first[0] + width, first[1] + height / 2, then[0] - 6, then[1] + height / 2
    return f"M{x1:g} {y1:g}C{x1 + 20:g} {y1:g} {x2 - 20:g} {y2:g} {x2:g} {y2:g}"
