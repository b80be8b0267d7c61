"""The table of architectures, and build."""

from __future__ import annotations

from typing import Any

from torch import nn

from ..errors import Table
from ..norms import NoisyNorm
from .config import TransformerConfig
from .images import ConvNet, VisionTransformer
from .plain import PlainConvNet
from .recurrent import Recurrent
from .text import Decoder, Encoder, EncoderDecoder

MODELS: Table[type[nn.Module]] = Table(
    "architecture",
    {
        "encoder": Encoder,
        "decoder": Decoder,
        "encoder-decoder": EncoderDecoder,
        "vision": VisionTransformer,
        "convolution": ConvNet,
        "recurrent": Recurrent,
        "plain-convolution": PlainConvNet,
    },
)


def build(config: TransformerConfig | None = None, **settings: Any) -> Any:
    """A model from a config, or from its settings.

    >>> sum(p.numel() for p in build(architecture="decoder", dim=16, num_layers=2, vocab_size=11).parameters())
    6944
    """
    if config is None:
        config = TransformerConfig.from_dict(settings)
    elif settings:
        raise ValueError(f"give a config or settings, not both; got settings {', '.join(settings)}")
    model = MODELS[config.architecture](config)
    for stream, noisy in enumerate(m for m in model.modules() if isinstance(m, NoisyNorm)):
        noisy.stream = stream  # each norm of a model has noise of its own
    return model
