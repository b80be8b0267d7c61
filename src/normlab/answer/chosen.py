"""What was chosen for the user, in words: whoever reads a result must see that a norm did not stand in its usual form."""

from __future__ import annotations

from ..runs import Choice, Summary
from .phrases import Sentence


def said(kind: str, norm: str | None, values: str, text: str | None) -> Sentence:
    """A choice as a sentence; of a later version's, what its file says."""
    if kind == "causal-position":
        return (f"{norm} norm is not in its usual form, which would read ahead in causal text: in training each position has statistics of "
                f"its own, over at most {values} values; in evaluation, running statistics over all positions together "
                "(--task masked has the usual form)",
                f"{norm} 归一化不是通常的形式，因为那样会在因果文本里看到后文：训练时每个位置用自己的统计量，最多 {values} 个值；"
                "评估时用所有位置合在一起的运行统计量（--task masked 用的是通常的形式）")  # fmt: skip
    if kind == "causal-running":
        return (f"{norm} norm is not in its usual form, which would read ahead in causal text: it uses the running statistics of earlier "
                "batches in training as well",
                f"{norm} 归一化不是通常的形式，因为那样会在因果文本里看到后文：训练时也用之前各批的运行统计量")  # fmt: skip
    if kind == "causal-token":
        return (f"{norm} norm is not in its usual form, which would read ahead in causal text: each token has statistics of its own",
                f"{norm} 归一化不是通常的形式，因为那样会在因果文本里看到后文：每个词元用自己的统计量")  # fmt: skip
    if kind == "sync":
        return (f"{norm} norm takes its statistics over all {values} processes",
                f"{norm} 归一化的统计量取自全部 {values} 个进程")  # fmt: skip
    if kind == "own-model":
        return (f"{norm} is no argument of the model's function: the model is as it makes it",
                f"模型函数没有参数 {norm}：模型是它自己造的样子")  # fmt: skip
    return (text or kind,) * 2


def sentences(answer: Summary) -> list[tuple[list[str], Sentence]]:
    """(cells, what was chosen for them). Cells that differ only in how many values share a statistic have one sentence."""
    alike: dict[tuple[str, str | None, str | None], list[tuple[str, Choice]]] = {}
    for cell in answer.cells:
        for choice in cell.choices:
            alike.setdefault((choice.kind, choice.norm, choice.text), []).append((cell.name, choice))
    found = []
    for (kind, norm, text), those in alike.items():
        counts = sorted({choice.values for _, choice in those if choice.values is not None})
        values = "/".join(map(str, counts))
        found.append((list(dict.fromkeys(name for name, _ in those)), said(kind, norm, values, text)))
    return found
