"""What of a model was seen in a recorded step, and why the rest was not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hooks import Hooks


def covered(hooks: Hooks, outer: nn.Module, looks_at_norms: bool) -> dict[str, Any]:
    """Of the step just recorded, for run.json. ``fired`` is None where no probe looks at norms (the preset lite)."""
    found: dict[str, Any] = {"norms": len(hooks.norms), "fired": None, "skipped": {}, "blocks": len(hooks.blocks),
                             "attention": hooks.attention_calls}  # fmt: skip
    if looks_at_norms:
        silent = [site.name for site in hooks.norms if site.name not in hooks.fired]
        found["fired"] = len(hooks.norms) - len(silent)
        found["skipped"] = {name: _why_silent(name, hooks.model, outer) for name in silent}
    return found


def _why_silent(site: str, model: nn.Module, outer: nn.Module) -> str:
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and site.startswith(name + ".") and not module.training:
            return "nn.TransformerEncoderLayer ran its fused path, which calls no norm; train mode or a hook turns it off"
    if isinstance(outer, torch.jit.ScriptModule):
        return "a scripted model runs no Python hooks"
    return "its forward was not called in the recorded step"


def told(found: dict[str, Any] | None) -> str:
    """In words."""
    if found is None:
        return "nothing has been recorded yet"
    if found["fired"] is None:
        return f"{found['norms']} norms, which no probe of this run looks at"
    text = f"{found['fired']} of {found['norms']} norms fired"
    if found["skipped"]:
        text += f"; {len(found['skipped'])} skipped: " + "; ".join(
            f"{n} ({why})" for n, why in found["skipped"].items()
        )
    return text
