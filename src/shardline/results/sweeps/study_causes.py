"""Differences between the studies that two averages or ensembles combine."""

from collections.abc import Callable, Mapping
from typing import Any

from shardline.config.causes import Cause
from shardline.config.layout import ResultsLayout
from shardline.config.settings import Plain
from shardline.config.sweeps import SweepPlan
from shardline.core.canonical import DIGEST_LENGTH
from shardline.core.nested import flatten
from shardline.records.identities import IdentityDocument
from shardline.results.states import read_if_sound


def causes_of_studies(
    layout: ResultsLayout, cause: Cause, before: Plain, after: Plain, sweeps: Mapping[str, SweepPlan],
    of_bases: Callable[[IdentityDocument, IdentityDocument], list[Cause]],
) -> list[Cause]:  # fmt: skip
    """Return the differences between two studies, and within their base runs.

    Args:
        cause: Difference that names the studies, returned if nothing is known of one of them.
        before: Study in the identity document of the older run.
        after: Study in that of the newer run.
        sweeps: Sweeps of the config by id.
        of_bases: Function that returns the differences between the identity documents of two base runs.
    """
    ids = [str(one["sweep"])[:DIGEST_LENGTH] for one in (before, after)]
    sweep = sweeps.get(ids[1])
    file = layout.study(ids[0]) / f"study-{before.get('trials')}.json"
    old = sweep.document if sweep and ids[0] == ids[1] else read_if_sound(file).get("identity")
    if sweep is None or not isinstance(old, Mapping):
        return [cause]
    texts = [one.text for one in of_bases(old.get("base", {}), sweep.document["base"])]
    texts = [f"its base run: {text}" for text in texts] + texts_of(old, sweep.document)
    if before.get("trials") != after.get("trials"):
        texts.append(f"trials {before.get('trials')} -> {after.get('trials')}")
    return [Cause("base", f"through sweep {sweep.name}: {text}") for text in texts]


def texts_of(old: Plain, new: Plain) -> list[str]:
    """Return the settings, code and versions that differ between the documents of two studies."""

    def parts(document: Plain) -> dict[str, Any]:
        return flatten({key: document.get(key, {}) for key in ("settings", "code", "versions")})

    before, after = parts(old), parts(new)
    return [
        f"{key.removeprefix('settings.')} {_shown(before.get(key))} -> {_shown(after.get(key))}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]


def _shown(value: object) -> str:
    return "unset" if value is None else str(value)
