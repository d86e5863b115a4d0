"""Composition of transforms."""

from collections.abc import Callable, Sequence

import numpy as np

from shardline.data.transforms.transform_steps import Sample


class Compose:
    """A transform that calls other transforms in order.

    Args:
        transforms: Transforms. Each is called with the sample, and with the generator if there
            is one.
    """

    def __init__(self, transforms: Sequence[Callable[..., Sample]]) -> None:
        self.transforms = tuple(transforms)

    def __call__(self, sample: Sample, generator: np.random.Generator | None = None) -> Sample:
        """Return the transformed sample."""
        given = () if generator is None else (generator,)
        for transform in self.transforms:
            sample = transform(sample, *given)
        return sample
