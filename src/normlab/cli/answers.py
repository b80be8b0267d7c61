"""The answer of a sweep on the terminal, in English or Chinese: the words of the page, the sentences of the verdict."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from .show import say_wrapped, table
from .words import LANGUAGES

if TYPE_CHECKING:
    from ..runs import Cell, Difference, Estimate, Summary

FIGURES = (
    "accuracy",
    "gap",
    "steps_to_target",
    "seconds_to_target",
    "tokens_to_target",
)  # of the table beside loss and cost
# What the terminal says; the page has texts of its own.
WORDS = {
    "title": (
        "{what}, {unit}, at each cell's best rate (95 % intervals over seeds; = not told apart from the best)",
        "{what}，{unit}，各组合取最佳学习率（对种子的 95 % 置信区间；= 与最佳者分不出高下）",
    ),
    "title_bare": (
        "{what} at each cell's best rate (95 % intervals over seeds; = not told apart from the best)",
        "{what}，各组合取最佳学习率（对种子的 95 % 置信区间；= 与最佳者分不出高下）",
    ),
    "figures": ("more than loss (95 % intervals over seeds)", "损失之外（对种子的 95 % 置信区间）"),
    "figures_target": (
        "more than loss (95 % intervals over seeds); target: held-out loss {target}, which every trial here reaches",
        "损失之外（对种子的 95 % 置信区间）；目标：留出损失 {target}，这里的试验都达到",
    ),
    "cell": ("cell", "组合"),
    "difference": ("against {baseline}", "与 {baseline} 的差距"),
    "behind_best": ("behind the best", "落后最佳者"),
    "baseline": ("baseline", "基线"),
    "best": ("best", "最佳"),
    "undecided": ("undecided", "尚无定论"),
    "equal": ("equal within {margin}", "相差不超过 {margin}"),
    "costs": ("rates and cost", "学习率与代价"),
    "best_rate": ("best rate", "最佳学习率"),
    "edge_low": ("lowest tried", "试过的最低"),
    "edge_high": ("highest tried", "试过的最高"),
    "cross_fitted": ("other seeds' rate", "由其他种子选学习率"),
    "broke": ("broke", "失稳"),
    "steps_to_target": ("steps to target", "到目标的步数"),
    "speed": ("tokens/s", "词元/秒"),
    "stable_up_to": ("stable up to", "稳定上限"),
    "megabytes": ("MiB", "MiB"),
    "matmul_share": (
        "training ran at {share} of this machine's matrix-product rate (median trial)",
        "训练速度达到本机矩阵乘法的 {share}（试验的中位数）",
    ),
    "chosen": (
        "* something was chosen for this cell that changes what its norm computes: see the verdict.",
        "* 为该组合作了选择，归一化的算法因此不同：见结论。",
    ),
    "sampling": (
        "A cell's interval leaves out the sampling of held-out examples; differences between cells are hardly affected by it.",
        "组合自己的置信区间不含留出样本的抽样误差；组合之间的差距几乎不受它影响。",
    ),
}


def language(asked: str | None) -> str:
    """The one asked for, else that of the locale."""
    said = next((v for name in ("LC_ALL", "LC_MESSAGES", "LANG") if (v := os.environ.get(name))), "")
    return asked or ("zh" if said.lower().startswith("zh") else "en")


def add_language(to: Any, what: str = "of the answer") -> None:
    to.add_argument("--lang", choices=LANGUAGES, help=f"{what} (default: the locale's)")


def add_metric(to: Any) -> None:
    to.add_argument(
        "--metric",
        default="loss",
        help="what is ranked and compared: loss, accuracy, gap (held-out minus training loss), steps_to_target, seconds_to_target, "
        "tokens_to_target, tokens_per_second, peak_memory (default loss)",
    )


def add_margin(to: Any) -> None:
    to.add_argument(
        "--margin",
        type=float,
        metavar="LOSS",
        help="call cells equal whose difference, with its interval, lies within this",
    )


def _number(value: float | None, form: str, none: str = "-") -> str:
    return none if value is None else format(value, form)


def show_answer(summary: Summary, lang: str = "en") -> None:
    """Losses, rates and cost as tables, and the verdict's sentences."""
    from ..answer import METRICS
    from ..report.words import named as name_in
    from ..runs import Cell

    def word(key: str, **values: Any) -> str:
        return WORDS[key][LANGUAGES.index(lang)].format(**values)

    def pair(of: Difference | None) -> str:
        if of is None:
            return "-"
        form = f"+.{of.decimals}f"
        interval = "" if of.low is None or of.high is None else f" [{of.low:{form}}, {of.high:{form}}]"
        p = "" if of.p is None else f" p {of.p:.2g}"
        said = word("equal", margin=f"{summary.margin:g}") if of.equal else "" if of.decided else word("undecided")
        return f"{of.mean:{form}}{interval}{p} {said}".rstrip()

    def estimate(of: Cell | Estimate | None) -> str:
        if of is None or of.mean is None:
            return "-"
        form = ".4f" if isinstance(of, Cell) else f",.{of.decimals}f"
        return f"{of.mean:{form}}" + (
            "" if of.low is None or of.high is None else f" [{of.low:{form}}, {of.high:{form}}]"
        )

    def named(cell: Cell) -> str:
        return cell.name + "*" * bool(cell.choices)

    def losses(cell: Cell) -> list[str]:
        own = estimate(cell if summary.metric == "loss" else cell.figures.get(summary.metric))
        against = word("baseline") if cell.name == summary.baseline else pair(cell.difference)
        behind = word("best") if cell.name == summary.best else pair(cell.behind_best)
        rank = f"{cell.rank}{'=' if cell.tied_with_best else ''}"
        return [rank, named(cell), own, against, *([] if summary.best == summary.baseline else [behind])]

    def costs(cell: Cell) -> list[str]:
        edge = "" if cell.best_at_edge is None else f" ({word('edge_' + cell.best_at_edge)})"
        stable = _number(cell.largest_stable_lr, "g")
        return [
            _number(cell.best_lr, "g") + edge, _number(cell.cross_fitted, ".4f"),
            "≥ " * cell.stable_up_to_edge + stable, _number(cell.divergence_rate, ".0%"),
            _number(cell.steps_to_target, ".0f"), _number(cell.tokens_per_second, ",.0f"),
            "-" if cell.peak_memory is None else f"{cell.peak_memory / 2**20:.0f}",
        ]  # fmt: skip

    judged = METRICS[summary.metric]
    what, own = judged.title[LANGUAGES.index(lang)], judged.unit and judged.unit[LANGUAGES.index(lang)]
    unit = name_in(summary.unit or "", lang) if own is None else own
    title = word("title", what=what, unit=unit) if unit else word("title_bare", what=what)
    first = ["", word("cell"), what, word("difference", baseline=summary.baseline)]
    first += [] if summary.best == summary.baseline else [word("behind_best")]
    second = [
        word(key)
        for key in ("best_rate", "cross_fitted", "stable_up_to", "broke", "steps_to_target", "speed", "megabytes")
    ]
    table(title, first, [losses(c) for c in summary.cells])
    table(word("costs"), [word("cell"), *second], [[named(c), *costs(c)] for c in summary.cells])
    also = [name for name in FIGURES if name != summary.metric and any(name in c.figures for c in summary.cells)]
    if also:
        target = summary.common_target
        head = word("figures") if target is None else word("figures_target", target=f"{target:.4g}")
        titles = [METRICS[name].title[LANGUAGES.index(lang)] for name in also]
        table(head, [word("cell"), *titles],
              [[named(c), *(estimate(c.figures.get(name)) for name in also)] for c in summary.cells])  # fmt: skip
    if any(c.choices for c in summary.cells):
        say_wrapped(word("chosen"))
    if any(c.low is not None for c in summary.cells):
        say_wrapped(word("sampling"))
    shares = sorted(t.matmul_share for t in summary.trials if t.matmul_share)
    if shares:
        say_wrapped(word("matmul_share", share=f"{shares[len(shares) // 2]:.0%}"))
    for sentence in getattr(summary.verdict, lang):
        say_wrapped(f"- {sentence}", "  ")
