"""Transformers with one norm slot and one placement slot: encoder, decoder, encoder-decoder, images. And two networks without
a residual stream, for what was said of norms before: recurrent, and plain convolutions.

Every one of the former is a :class:`Stack` of the same :class:`Layer`: sub-layers (attention, feed-forward, convolution) that
know nothing of norms around them, and placements that know nothing of what they surround. :func:`build` makes a model
from a :class:`TransformerConfig`; combinations that cannot work are refused there, with the reason.

Shapes: B batch, L tokens, S tokens of the other stack, d width, H heads, C channels of an image. Masks are (B, L),
boolean, True = real, and reach every norm whose statistics span tokens.
"""

from __future__ import annotations

from .config import ACTIVATIONS, ARCHITECTURES, CAUSAL_FORMS, POSITIONS, WITHOUT_STREAM, TransformerConfig
from .embeddings import Embedding
from .images import ConvNet, VisionTransformer
from .plain import PlainConvNet
from .recurrent import Recurrent
from .stacks import Layer, Stack
from .sublayers import Attention, Cache, Convolution, FeedForward
from .table import MODELS, build
from .text import Decoder, Encoder, EncoderDecoder

__all__ = [
    "ACTIVATIONS",
    "ARCHITECTURES",
    "CAUSAL_FORMS",
    "MODELS",
    "POSITIONS",
    "WITHOUT_STREAM",
    "Attention",
    "Cache",
    "ConvNet",
    "Convolution",
    "Decoder",
    "Embedding",
    "Encoder",
    "EncoderDecoder",
    "FeedForward",
    "Layer",
    "PlainConvNet",
    "Recurrent",
    "Stack",
    "TransformerConfig",
    "VisionTransformer",
    "build",
]
