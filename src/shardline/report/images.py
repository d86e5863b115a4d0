"""Images of samples for the page: each image once, up to a budget of bytes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from msgspec import UNSET
from msgspec.structs import replace

from shardline.records.evaluations import SampleView, ShownSamples
from shardline.records.reports import ReportedRun

BUDGET_BYTES = 800_000  # of 5 MB for a page of 100 runs
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
        num_left_out: Number of distinct images beyond the budget.
    """

    tokens: dict[str, str] = field(default_factory=dict)
    num_left_out: int = 0

    @property
    def by_token(self) -> dict[str, str]:
        """Images by token."""
        return {token: image for image, token in self.tokens.items()}


def choose_images(runs: Sequence[ReportedRun], budget_bytes: int = BUDGET_BYTES) -> Images:
    """Choose images: the hardest sample of every run comes before the second hardest of any run."""
    columns = zip_longest(*(list(_images(run)) for run in runs))
    distinct = dict.fromkeys(image for column in columns for image in column if image)
    chosen, room = Images(), budget_bytes
    for image in distinct:
        if len(image) <= room:
            chosen.tokens[image] = f"#image-{len(chosen.tokens)}"
            room -= len(image)
    chosen.num_left_out = len(distinct) - len(chosen.tokens)
    return chosen


def with_tokens(run: ReportedRun, images: Images) -> ReportedRun:
    """Return a run with tokens instead of images in its samples; other addresses are removed."""
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


def _images(run: ReportedRun) -> Iterator[str]:
    samples = run.samples or ShownSamples()
    for found in (samples.hardest, samples.typical):
        for sample in found or ():
            mask = sample.get("mask")
            drawn = [mask.get(name) for name in _MASKS] if isinstance(mask, Mapping) else []
            yield from (
                one for one in map(str, [sample.get("image"), *drawn]) if _IMAGE.fullmatch(one)
            )
