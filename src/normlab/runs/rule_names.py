"""The rules of the diagnosis in words: files hold their names, and whoever shows a file says what they mean."""

from __future__ import annotations

# English, Chinese
RULE_NAMES: dict[str, tuple[str, str]] = {
    "nonfinite": ("non-finite values", "出现非有限值"),
    "leak": ("leak from the future", "未来信息泄漏"),
    "stale-gradient": ("gradients not cleared", "梯度未清零"),
    "stuck-weights": ("weights that do not move", "权重不动"),
    "large-initialization": ("initialization too large", "初始值太大"),
    "eps-swallows": ("eps too large", "eps 过大"),
    "constant-answer": ("the same answer for every input", "答案不随输入变化"),
    "gain-explosion": ("gain explosion", "增益爆炸"),
    "padding-contamination": ("padding contamination", "填充污染"),
    "loss-divergence": ("loss divergence", "损失发散"),
    "learning-rate-high": ("learning rate too high", "学习率过高"),
    "exploding-gradient": ("exploding gradient", "梯度爆炸"),
    "vanishing-gradient": ("vanishing gradient", "梯度消失"),
    "learning-rate-low": ("learning rate too low", "学习率过低"),
    "missing-final-norm": ("missing final norm", "缺少最后的归一化层"),
    "unstable-batch-statistics": ("unstable batch statistics", "批统计量不稳定"),
    "train-inference-gap": ("gap between training and inference", "训练与推理不一致"),
    "attention-logit-growth": ("growing attention logits", "注意力 logit 增长"),
    "stream-growth": ("growing stream", "残差流增长"),
    "token-collapse": ("token collapse", "词元坍缩"),
    "dead-upper-blocks": ("dead upper blocks", "上层块不起作用"),
    "dead-gain": ("dead gain", "增益趋零"),
    "loss-spike": ("loss spike", "损失尖峰"),
}


def in_chinese(rule: str) -> str:
    """With its name, which the documentation, JSON and English texts use; one of a later version as it is.

    >>> in_chinese("vanishing-gradient")
    '梯度消失（vanishing-gradient）'
    """
    return f"{RULE_NAMES[rule][1]}（{rule}）" if rule in RULE_NAMES else rule
