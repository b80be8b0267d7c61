"""A plain convolutional network, where norm and activation follow each other: which of the two comes first is its placement."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..placements import apply_norm, reset_inside
from .config import ACTIVATIONS, TransformerConfig
from .embeddings import make_head
from .images import check_images
from .text import Model


class ConvolutionBlock(nn.Module):
    """A 3 x 3 convolution, a norm, an activation on (B, height, width, channels); no residual sum.

    pre    activation(N(conv(x)))        the order of Ioffe, Szegedy 2015 (arXiv 1502.03167)
    post   N(activation(conv(x)))
    none   activation(conv(x))
    """

    def __init__(self, config: TransformerConfig, channels: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, config.dim, 3, padding=1, bias=config.bias)
        self.curve = ACTIVATIONS[config.activation]
        self.first = config.placement == "pre"
        self.norm = None if config.placement == "none" else norm(config.dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The norm as at construction; the matrix drawn anew, with the variance that keeps a rectified signal's size."""
        reset_inside(self)
        nn.init.kaiming_normal_(self.conv.weight, nonlinearity="relu")
        if self.conv.bias is not None:
            nn.init.zeros_(self.conv.bias)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        if self.norm is None:
            return self.curve(y)
        return self.curve(apply_norm(self.norm, y)) if self.first else apply_norm(self.norm, self.curve(y))


class ConvolutionStack(nn.Module):
    """Blocks one after the other: (B, height, width, channels) -> (B, height, width, d)."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        norm = config.norm_factory(causal=False)
        widths = [config.channels, *[config.dim] * (config.num_layers - 1)]
        self.layers = nn.ModuleList(ConvolutionBlock(config, width, norm) for width in widths)

    def reset_parameters(self) -> None:
        reset_inside(self)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class PlainConvNet(Model):
    """Images (B, C, size, size) -> class scores, by convolutions with norm and activation and the mean over the image.

    >>> model = build(TransformerConfig(architecture="plain-convolution", dim=16, num_layers=2, norm="batch"))
    >>> model(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.stack = ConvolutionStack(config)
        self.head = make_head(config, config.num_classes or 10, None)

    def forward(self, images: Tensor) -> Tensor:
        check_images(self.config, images)
        x = images.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1)
        return self.head(self.stack(x).mean((1, 2)))
