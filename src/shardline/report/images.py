"""Images of samples for the page: each image once, up to a budget of bytes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from msgspec import UNSET
from msgspec.structs import replace

from shardline.records.evaluations import SampleView, ShownSamples
from shardline.records.reported_runs import ReportedRun
from shardline.records.reported_tables import ReportedLog

BUDGET_BYTES = 800_000  # of 5 MB for a page of 100 runs, and again for images that models logged
_MASKS = ("true", "predicted")
_IMAGE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/]+={0,2}")


def is_png(url: str) -> bool:
    """Return whether a text is a PNG data URL."""
    return _IMAGE.fullmatch(url) is not None


@dataclass(kw_only=True)
class Images:
    """Images of the page and their tokens, which replace them in the details of runs.

    Attributes:
        tokens: Tokens by image.
        num_left_out: Number of distinct images of samples beyond the budget.
    """

    tokens: dict[str, str] = field(default_factory=dict)
    num_left_out: int = 0

    @property
    def by_token(self) -> dict[str, str]:
        """Images by token."""
        return {token: image for image, token in self.tokens.items()}


def choose_images(runs: Sequence[ReportedRun], budget_bytes: int = BUDGET_BYTES) -> Images:
    """Choose images: the hardest sample of every run comes before the second hardest of any run."""
    chosen = Images()
    chosen.num_left_out = _choose(chosen, [list(_images(run)) for run in runs], budget_bytes)
    _choose(chosen, [list(_logged_images(run)) for run in runs], budget_bytes)
    return chosen


def _choose(chosen: Images, by_run: Sequence[Sequence[str]], room: int) -> int:
    """Add the first images of each run as far as there is room; return the number of distinct others."""
    distinct = dict.fromkeys(image for column in zip_longest(*by_run) for image in column if image)
    new = [image for image in distinct if image not in chosen.tokens]
    for image in new:
        if len(image) <= room:
            chosen.tokens[image] = f"#image-{len(chosen.tokens)}"
            room -= len(image)
    return sum(image not in chosen.tokens for image in new)


def with_tokens(run: ReportedRun, images: Images) -> ReportedRun:
    """Return a run with tokens instead of images in its samples; other addresses are removed."""
    if run.logged:
        run = replace(run, logged=[_log_with_tokens(one, images) for one in run.logged])
    samples = run.samples
    if not samples:
        return run
    typical, hardest = (
        UNSET if found is UNSET else [_with_token(one, images) for one in found]
        for found in (samples.typical, samples.hardest)
    )
    return replace(run, samples=ShownSamples(typical=typical, hardest=hardest))


def _with_token(sample: SampleView, images: Images) -> SampleView:
    token = images.tokens.get(str(sample.get("image")))
    rest = {key: value for key, value in sample.items() if key not in ("image", "mask")}
    mask = sample.get("mask")
    if isinstance(mask, Mapping):
        kept = {kind: images.tokens.get(str(mask.get(kind))) for kind in _MASKS}
        rest["mask"] = {"classes": mask.get("classes", {}), **{k: t for k, t in kept.items() if t}}
    return rest | ({"image": token} if token else {})


def _log_with_tokens(log: ReportedLog, images: Images) -> ReportedLog:
    entries = [
        replace(
            entry,
            images=[
                replace(one, image=images.tokens.get(str(one.image), UNSET)) for one in entry.images
            ],
        )
        if entry.images
        else entry
        for entry in log.entries
    ]
    return replace(log, entries=entries)


def _logged_images(run: ReportedRun) -> Iterator[str]:
    """Yield the images that a model logged: the last step of every name first, and each name's first image first."""
    steps = zip_longest(*(reversed(log.entries) for log in run.logged or ()))
    for found in steps:
        rows = zip_longest(*(entry.images or () for entry in found if entry))
        yield from (
            str(one.image)
            for row in rows
            for one in row
            if one and _IMAGE.fullmatch(str(one.image))
        )


def _images(run: ReportedRun) -> Iterator[str]:
    samples = run.samples or ShownSamples()
    for found in (samples.hardest, samples.typical):
        for sample in found or ():
            mask = sample.get("mask")
            drawn = [mask.get(name) for name in _MASKS] if isinstance(mask, Mapping) else []
            yield from (
                one for one in map(str, [sample.get("image"), *drawn]) if _IMAGE.fullmatch(one)
            )
