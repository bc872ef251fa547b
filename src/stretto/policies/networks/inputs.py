"""What a network sees: observations of any space as rows of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from stretto.errors import InvalidSpace
from stretto.policies.masks import mask_among
from stretto.policies.networks.parameters import padded
from stretto.spaces import Array, Leaf, leaves

SMALL_IMAGE = 1024
"""An image of at most so many values is taken as plain numbers, unless the settings ask for convolutions."""


@dataclass(frozen=True)
class Image:
    """Where the pixels of an image begin in a row, and how they lie there."""

    begin: int
    channels: int
    height: int
    width: int
    channels_first: bool

    def of(self, rows: Tensor) -> Tensor:
        """Return the pixels of (agents, rows, ...) as (agents, rows, channels, height, width) between 0 and 1."""
        size = self.channels * self.height * self.width
        pixels = rows[..., self.begin : self.begin + size].float()
        if rows.dtype == torch.uint8:
            pixels = pixels.div_(255.0)
        if self.channels_first:
            return pixels.view(*rows.shape[:-1], self.channels, self.height, self.width)
        return pixels.view(*rows.shape[:-1], self.height, self.width, self.channels).movedim(-1, -3)


class Inputs:
    """Turns batches of observations into rows of `width` numbers.

    First come those that are no images: `numbers` of them with zeros behind the `size` that count. Discrete parts become
    one-hot codes, uint8 parts are divided by 255, other numbers stay as they are. Then come `images`, pixel by pixel.
    Rows of nothing but uint8 images stay uint8, which takes a quarter of the memory, and are divided when they are used.

    In a `balanced` network all parts that are no images have the same weight: `weights` says by what each number is
    multiplied. It is `None` if that is 1.
    """

    def __init__(self, space: spaces.Space[Any], body: str = "auto", *, balanced: bool = False) -> None:
        found = list(leaves(space))
        if loose := [leaf for leaf in found if not leaf.fixed]:
            raise InvalidSpace(
                f"a network sees spaces of a fixed shape, got {loose[0].space}; wrap the world, or write a learner"
            )
        self.mask = mask_among(found)  # which is no input of a network
        seen = [leaf for leaf in found if leaf is not self.mask]
        if not seen:
            raise InvalidSpace(f"a network must see something, got {space}; add a part besides the action mask")
        pictures = [leaf for leaf in seen if _is_image(leaf, body)]
        if body == "cnn" and not pictures:
            raise InvalidSpace(f"a CNN must see an image (a Box of 3 axes), got {space}; use body='auto' or 'mlp'")
        plain = [leaf for leaf in seen if leaf not in pictures]
        self.leaves = plain + pictures
        self._sizes = [_size(leaf) for leaf in self.leaves]
        self.size = sum(self._sizes[: len(plain)])
        self.numbers = self.width = padded(self.size)
        self._begins = np.cumsum([0, *self._sizes[: len(plain)]]).tolist()[: len(plain)]
        self.weights = _weights(self._sizes[: len(plain)], self.numbers) if balanced else None
        self.images: list[Image] = []
        for leaf in pictures:
            self._begins.append(self.width)
            self.images.append(_image(leaf, self.width))
            self.width += _size(leaf)
        self.bytes = not plain and all(leaf.dtype == np.uint8 for leaf in pictures)

    def rows(self, observations: Any) -> Tensor:
        """Return the numbers of a batch with any leading axes."""
        first = self.leaves[0]
        axes = np.shape(first.get(observations))[: -len(first.shape) or None]
        rows = np.zeros((*axes, self.width), np.uint8 if self.bytes else np.float32)
        for leaf, begin, size in zip(self.leaves, self._begins, self._sizes, strict=True):
            part = rows[..., begin : begin + size]
            _write(part, leaf, np.asarray(leaf.get(observations)))
            if self.weights is not None and begin < self.numbers and self.weights[begin] != 1:
                part *= self.weights[begin]
        return torch.from_numpy(rows)

    def allowed(self, observations: Any) -> Array | None:
        """Return which actions are allowed, or `None` if all are."""
        return None if self.mask is None else np.asarray(self.mask.get(observations)) != 0


def _weights(sizes: Sequence[int], width: int) -> Array | None:
    """Return factors that give parts of any size the same share of what a layer with random weights makes of them.

    The largest part stays as it is. Where one number says how the others are to be read, as what an agent carries does, it
    would be lost beside hundreds of them.
    """
    if len(set(sizes)) < 2:
        return None
    factors = np.ones(width, np.float32)
    factors[: sum(sizes)] = np.repeat(np.sqrt(max(sizes) / np.maximum(sizes, 1)), sizes)
    return factors


def _is_image(leaf: Leaf, body: str) -> bool:
    return (
        body != "mlp"
        and isinstance(leaf.space, spaces.Box)
        and len(leaf.shape) == 3
        and (body == "cnn" or _size(leaf) > SMALL_IMAGE)
    )


def _image(leaf: Leaf, begin: int) -> Image:
    """Say how an image lies; its shorter outer axis is taken for its channels."""
    first = leaf.shape[0] < leaf.shape[2]
    channels, height, width = leaf.shape if first else (leaf.shape[2], *leaf.shape[:2])
    return Image(begin, channels, height, width, first)


def _size(leaf: Leaf) -> int:
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return int(np.prod(leaf.shape))


def _write(part: Array, leaf: Leaf, values: Array) -> None:
    """Write the values of a leaf, with leading axes as `part` has them, behind each other."""
    space = leaf.space
    if isinstance(space, spaces.Discrete):
        np.put_along_axis(part, (values - space.start)[..., None].astype(np.intp), 1.0, -1)
    elif isinstance(space, spaces.MultiDiscrete):
        starts = np.concatenate([[0], np.cumsum(space.nvec.reshape(-1))[:-1]])
        codes = (values - space.start).reshape(*part.shape[:-1], -1).astype(np.intp) + starts
        np.put_along_axis(part, codes, 1.0, -1)
    else:
        part[...] = values.reshape(part.shape)
        if values.dtype == np.uint8 and part.dtype != np.uint8 and not isinstance(space, spaces.MultiBinary):
            part /= 255.0
