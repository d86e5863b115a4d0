"""Transforms in turn, for a transform that is made of others."""

from collections.abc import Callable, Sequence

import numpy as np

from shardline.data.transforms.transform_steps import Sample


class Compose:
    """Calls transforms one after another.

    Args:
        transforms: each called with sample and generator, or with the sample alone where there is
            no generator.
    """

    def __init__(self, transforms: Sequence[Callable[..., Sample]]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the sample transformed."""
        given = () if generator is None else (generator,)
        for transform in self.transforms:
            sample = transform(sample, *given)
        return sample
