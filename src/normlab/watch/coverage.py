"""What of a model was seen in a recorded step, and why the rest was not."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .hooks import Hooks


def covered(hooks: Hooks, outer: nn.Module) -> dict[str, Any]:
    """Of the step just recorded, for run.json: norms and blocks that fired, each silent one with the reason; sites at which a
    padding mask of the call was not used; blocks whose attention, or whose axis of features, could not be told; blocks whose gradient
    did not come by, where one was asked for."""
    silent = [site.name for site in hooks.norms if site.name not in hooks.fired]
    still = [block.name for block in hooks.blocks if block.name not in hooks.blocks_seen]
    found: dict[str, Any] = {
        "norms": len(hooks.norms), "fired": len(hooks.norms) - len(silent),
        "skipped": {n: hooks.set_aside.get(n) or _why_silent(n, hooks.model, outer) for n in silent},
        "blocks": len(hooks.blocks), "blocks_fired": len(hooks.blocks) - len(still), "blocks_skipped": still,
        "attention": hooks.attention_calls, "attention_not_seen": _attention_not_seen(hooks),
        "mask_not_used": dict(hooks.masks_unused), "features_unknown": sorted(hooks.features.unknown),
        "without_gradient": [],
    }  # fmt: skip
    if "block gradient" in hooks.wanted():
        found["without_gradient"] = sorted(hooks.blocks_seen - hooks.with_gradient)
    return found


def _attention_not_seen(hooks: Hooks) -> dict[str, str]:
    """Block: why. Where attention was seen as well the rest is something else: a choice of experts has three axes, too."""
    return {block: why for block, why in hooks.missed.items() if f"{block}.attention" not in hooks.attention_sites}


def _why_silent(site: str, model: nn.Module, outer: nn.Module) -> str:
    for name, module in model.named_modules():
        if isinstance(module, nn.TransformerEncoderLayer) and site.startswith(name + ".") and not module.training:
            return "nn.TransformerEncoderLayer ran its fused path, which calls no norm, in an evaluation"
    if isinstance(outer, torch.jit.ScriptModule):
        return "a scripted model runs no Python hooks"
    return "its forward was not called in the recorded step"


def told(found: dict[str, Any] | None) -> str:
    """In words."""
    if found is None:
        return "nothing has been recorded yet"
    parts = [f"{found['fired']} of {found['norms']} norms fired"]
    if found["skipped"]:
        parts.append(
            f"{len(found['skipped'])} skipped: " + "; ".join(f"{n} ({w})" for n, w in found["skipped"].items())
        )
    if found["blocks_skipped"]:
        parts.append(
            f"{len(found['blocks_skipped'])} of {found['blocks']} blocks silent: {', '.join(found['blocks_skipped'])}"
        )
    if found["mask_not_used"]:
        parts.append("mask not used: " + "; ".join(f"{n} ({w})" for n, w in found["mask_not_used"].items()))
    if found["attention_not_seen"]:
        parts.append("attention not seen: " + "; ".join(f"{n} ({w})" for n, w in found["attention_not_seen"].items()))
    if found["features_unknown"]:
        parts.append(f"features taken from the last axis: {', '.join(found['features_unknown'])}")
    if found["without_gradient"]:
        parts.append(f"no gradient seen after {', '.join(found['without_gradient'])}")
    return "; ".join(parts)
