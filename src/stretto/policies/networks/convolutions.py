"""Convolutions: what a network makes of images before its layers. They run agent by agent; what follows is stacked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from stretto.policies.networks.initial import orthogonal
from stretto.policies.networks.inputs import Image
from stretto.policies.networks.parameters import VECTOR, padded
from stretto.seeding.streams import SeedTree

CHANNELS = 16, 32, 32
"""How many channels the convolutions have, one after the other. A small image has fewer of them."""

FEATURES = 128
"""How many features an image becomes."""


class Convolutions:
    """A small CNN for each image that is seen. Its features stand behind the numbers that are no images.

    Rows of (agents, rows, inputs) become (agents, rows, `width`).
    """

    def __init__(self, images: Sequence[Image], numbers: int) -> None:
        self._images, self._numbers = images, numbers
        self._layers = [_layers(image) for image in images]
        self.shapes: dict[str, tuple[int, ...]] = {}
        for k, (image, layers) in enumerate(zip(images, self._layers, strict=True)):
            for layer, (inputs, outputs, kernel, _) in enumerate(layers):
                self.shapes[f"image {k} convolution {layer}"] = outputs, inputs, kernel, kernel
                self.shapes[f"image {k} convolution bias {layer}"] = (outputs,)
            self.shapes[f"image {k} weight"] = padded(_flat_size(image, layers)), FEATURES
            self.shapes[f"image {k} bias"] = 1, FEATURES
        self.width = numbers + FEATURES * len(images)

    def begin(self, weights: Mapping[str, Tensor], agent: int, tree: SeedTree) -> None:
        """Draw the first weights of an agent."""
        for k, (image, layers) in enumerate(zip(self._images, self._layers, strict=True)):
            for layer, (inputs, outputs, kernel, _) in enumerate(layers):
                drawn = orthogonal(tree.child("image", k, "convolution", layer), inputs * kernel**2, outputs)
                weight = weights[f"image {k} convolution {layer}"][agent]
                weight[...] = torch.from_numpy(drawn.T.copy()).view(weight.shape) * math.sqrt(2.0)
            size = _flat_size(image, layers)
            drawn = orthogonal(tree.child("image", k, "features"), size, FEATURES)
            weights[f"image {k} weight"][agent, :size] = torch.from_numpy(drawn) * math.sqrt(2.0)

    def __call__(self, weights: Mapping[str, Tensor], rows: Tensor) -> Tensor:
        """Return the features of rows."""
        parts = [rows[..., : self._numbers]] if self._numbers else []
        for k, image in enumerate(self._images):
            flat = self._convolved(weights, k, image.of(rows))
            parts.append(torch.relu_(torch.baddbmm(weights[f"image {k} bias"], flat, weights[f"image {k} weight"])))
        return torch.cat(parts, -1)

    def _convolved(self, weights: Mapping[str, Tensor], k: int, pixels: Tensor) -> Tensor:
        """Return what the convolutions make of pixels: (agents, rows, padded size)."""
        images = list(pixels.unbind(0))
        for layer, (_, _, _, stride) in enumerate(self._layers[k]):
            kernels = weights[f"image {k} convolution {layer}"].unbind(0)
            biases = weights[f"image {k} convolution bias {layer}"].unbind(0)
            images = [
                torch.relu_(functional.conv2d(image, kernel, bias, stride))
                for image, kernel, bias in zip(images, kernels, biases, strict=True)
            ]
        flat = torch.stack([image.flatten(1) for image in images])
        size = flat.shape[-1]
        return functional.pad(flat, (0, padded(size) - size)) if size % VECTOR else flat


def _layers(image: Image) -> list[tuple[int, int, int, int]]:
    """Return channels in, channels out, kernel and stride of each convolution."""
    inputs, side = image.channels, min(image.height, image.width)
    layers = []
    for outputs in CHANNELS:
        if side < 3:
            break
        kernel, stride = (8, 4) if side >= 32 else (4, 2) if side >= 8 else (3, 1)
        layers.append((inputs, outputs, kernel, stride))
        inputs, side = outputs, (side - kernel) // stride + 1
    return layers


def _flat_size(image: Image, layers: Sequence[tuple[int, int, int, int]]) -> int:
    """Return how many numbers the last convolution gives."""
    sides = [image.height, image.width]
    for _, _, kernel, stride in layers:
        sides = [(side - kernel) // stride + 1 for side in sides]
    return (layers[-1][1] if layers else image.channels) * math.prod(sides)
