"""Images: patches into a stack, or convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .config import TransformerConfig
from .embeddings import Positions, make_head, start_input
from .stacks import Stack
from .text import Model


class VisionTransformer(Model):
    """Images (B, C, size, size) -> class scores, by patches and the mean over them.

    >>> model = build(TransformerConfig(architecture="vision", dim=16, num_layers=1))
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.patch = nn.Linear(config.channels * config.patch_size**2, config.dim)
        start_input(self.patch)
        self.position = Positions(config)
        self.stack = Stack(config, "encoder", config.num_layers)
        self.head = make_head(config, config.num_classes or 10, None)

    def forward(self, images: Tensor) -> Tensor:
        check_images(self.config, images)
        p = self.config.patch_size
        patches = images.unflatten(2, (-1, p)).unflatten(4, (-1, p))  # (B, C, rows, p, columns, p)
        x = self.patch(patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2))
        x = F.dropout(self.position(x), self.config.dropout, self.training)
        return self.head(self.stack(x).mean(1))


class ConvNet(Model):
    """Images (B, C, size, size) -> class scores, by a stack whose attention is a 3 x 3 convolution.

    >>> model = build(TransformerConfig(architecture="convolution", dim=16, num_layers=1))
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.stem = nn.Conv2d(config.channels, config.dim, 3, padding=1)
        start_input(self.stem)
        self.stack = Stack(config, "encoder", config.num_layers)
        self.head = make_head(config, config.num_classes or 10, None)

    def forward(self, images: Tensor) -> Tensor:
        check_images(self.config, images)
        x = self.stem(images.contiguous(memory_format=torch.channels_last)).permute(0, 2, 3, 1).contiguous()
        return self.head(self.stack(x).mean((1, 2)))


def check_images(config: TransformerConfig, images: Tensor) -> None:
    size = config.image_size
    if images.dim() != 4 or tuple(images.shape[1:]) != (config.channels, size, size):
        raise ValueError(
            f"images must have shape (B, {config.channels}, {size}, {size}) as configured, got {tuple(images.shape)}"
        )
