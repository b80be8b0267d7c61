"""The answer of a sweep as a table and sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .show import say, table

if TYPE_CHECKING:
    from ..runs import Difference, Summary


def _number(value: float | None, form: str, none: str = "-") -> str:
    return none if value is None else format(value, form)


def _against(difference: Difference) -> str:
    interval = "" if difference.low is None else f" [{difference.low:+.3f}, {difference.high:+.3f}]"
    p = "" if difference.p_holm is None else f" p {difference.p_holm:.2g}"
    return f"{difference.mean:+.3f}{interval}{p}" + ("" if difference.decided else " undecided")


def show_answer(summary: Summary) -> None:
    """The ranked table and the verdict."""
    rows = []
    for cell in summary.cells:
        against = "baseline" if cell.name == summary.baseline else "-"
        if cell.difference is not None:
            against = _against(cell.difference)
        edge = {"low": " (lowest tried)", "high": " (highest tried)", None: ""}[cell.best_at_edge]
        stable = _number(cell.largest_stable_lr, "g") + (" or more" if cell.stable_up_to_edge else "")
        rows.append([
            f"{cell.rank}{'=' if cell.tied_with_best and cell.rank != 1 else ''}", cell.name,
            _number(cell.mean, ".4f") + ("" if cell.low is None else f" [{cell.low:.4f}, {cell.high:.4f}]"), against,
            _number(cell.best_lr, "g") + edge, stable, _number(cell.divergence_rate, ".0%"), _number(cell.steps_to_target, ".0f"),
            _number(cell.tokens_per_second, ",.0f"), "-" if cell.peak_memory is None else f"{cell.peak_memory / 2**20:.0f} MiB",
        ])  # fmt: skip
    table(f"held-out loss, {summary.unit}, at each cell's best rate (95 % intervals over seeds; = not told apart from the best)",
          ["", "cell", "loss", f"against {summary.baseline}", "best rate", "stable up to", "broke", "steps to target",
           "tokens/s", "memory"], rows)  # fmt: skip
    shares = [t.matmul_share for t in summary.trials if t.matmul_share]
    if shares:
        say(
            f"training ran at {sorted(shares)[len(shares) // 2]:.0%} of this machine's matrix-product rate (median trial)"
        )
    for sentence in summary.verdict.en:
        say(f"- {sentence}")
