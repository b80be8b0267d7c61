"""Words for names out of data, English and Chinese side by side, so that neither can be forgotten. Names without one are shown as they are.

The texts of the pages lie in ``web/texts``; findings come from the diagnosis in both languages.
"""

from __future__ import annotations

from ..runs import RULE_NAMES
from .bundle import LANGUAGES

WORDS: dict[str, tuple[str, str]] = {
    **RULE_NAMES,
    # severities of findings
    "critical": ("critical", "严重"),
    "warning": ("warning", "警告"),
    "note": ("note", "提示"),
    # outcomes of trials
    "trained": ("trained", "训练成功"),
    "diverged": ("diverged", "发散"),
    "collapsed": ("collapsed", "坍缩"),
    "untrained": ("untrained", "训练不足"),
    "failed": ("failed", "出错"),
    # what cells of a sweep were given alike
    "steps": ("steps", "步数"),
    "samples": ("samples", "样本数"),
    "tokens": ("tokens", "词元数"),
    "seconds": ("seconds", "秒数"),
    # statuses of runs
    "running": ("running", "进行中"),
    "finished": ("finished", "已完成"),
    "interrupted": ("interrupted", "已中断"),
    # units of the tasks
    "nats per byte": ("nats per byte", "奈特/字节"),
    "nats per token": ("nats per token", "奈特/词元"),
    "nats per document": ("nats per document", "奈特/文档"),
    "nats per image": ("nats per image", "奈特/图像"),
    "nats per character": ("nats per character", "奈特/字符"),
    "own loss": ("own loss", "自定损失"),
    # the budget of claims that is no option
    "default": ("default", "默认"),
    # what a benchmark times, and against what
    "kernels": ("kernels", "内核"),
    "training step": ("training step", "训练步"),
    "layer, fwd+bwd": ("layer, fwd+bwd", "层，前向加反向"),
    "masked, fwd+bwd": ("masked, fwd+bwd", "带掩码，前向加反向"),
    "outputs preallocated": ("outputs preallocated", "输出预先分配"),
    "torch, flattened": ("torch, flattened", "torch，展平"),
    "torch, transposed": ("torch, transposed", "torch，转置"),
    "ours, masked": ("ours, masked", "normlab，带掩码"),
    "unfused": ("unfused", "未融合"),
}


def named(name: str, language: str) -> str:
    """As it is shown in this language."""
    return dict(zip(LANGUAGES, WORDS.get(name, (name, name)), strict=True))[language]
