"""An input for a model that nobody gave one for: made where the model says what it takes, asked for where it does not."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import nn

LENGTH = 8  # tokens; prime numbers would not survive patches and pooling


def example_inputs_of(model: nn.Module) -> Any:
    """Arguments for one forward pass on one row; ValueError where they cannot be guessed.

    >>> list(example_inputs_of(nn.Sequential(nn.Embedding(10, 4)))[0].shape)
    [1, 8]
    """
    config = getattr(model, "config", None)
    if hasattr(config, "causal_statistics"):
        return _of_ours(config, _device(model))
    if config is not None and hasattr(model, "main_input_name"):
        made = _of_hugging_face(model, config)
        if made is not None:
            return made
    first = next((m for m in model.modules() if next(m.parameters(recurse=False), None) is not None), None)
    if isinstance(first, nn.Embedding):
        return (_tokens(first.num_embeddings, _device(model)),)
    raise ValueError(
        f"inspect cannot tell what {type(model).__name__} takes; give example_inputs, for instance "
        "example_inputs=torch.randn(1, 8, width), a tuple of arguments, or a dictionary of them"
    )


def _device(model: nn.Module) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _tokens(vocabulary: int, device: torch.device) -> torch.Tensor:
    """Small ids, none of them 0 or 1, which are often padding."""
    return (torch.arange(LENGTH, device=device) % max(1, vocabulary - 3) + 2).clamp(max=vocabulary - 1).unsqueeze(0)


def _noise(*shape: int, device: torch.device) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(device)


def _of_ours(config: Any, device: torch.device) -> Any:
    if config.architecture in ("vision", "convolution"):
        return (_noise(1, config.channels, config.image_size, config.image_size, device=device),)
    tokens = _tokens(config.vocab_size, device)[:, : config.max_length]
    return (tokens, tokens) if config.architecture == "encoder-decoder" else (tokens,)


def _of_hugging_face(model: Any, config: Any) -> dict[str, Any] | None:
    device = _device(model)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    takes = inspect.signature(model.forward).parameters
    made: dict[str, Any] = {}
    if model.main_input_name == "pixel_values" or ("pixel_values" in takes and "input_ids" not in takes):
        size = getattr(config, "image_size", 32)
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        made["pixel_values"] = _noise(1, getattr(config, "num_channels", 3), height, width, device=device)
    elif model.main_input_name == "input_values":
        made["input_values"] = _noise(1, 2000, device=device)
    elif model.main_input_name == "input_features":
        bins = getattr(config, "num_mel_bins", None) or getattr(config, "feature_projection_input_dim", None)
        if bins is None:
            return None
        frames = 2 * getattr(config, "max_source_positions", 100)
        made["input_features"] = (
            _noise(1, bins, frames, device=device)
            if hasattr(config, "num_mel_bins")
            else _noise(1, 50, bins, device=device)
        )
    elif getattr(text, "vocab_size", None):
        made["input_ids"] = _tokens(text.vocab_size, device)
    else:
        return None
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in takes:
        made["decoder_input_ids"] = _tokens(text.vocab_size, device)
    if "use_cache" in takes:
        made["use_cache"] = False
    return made
