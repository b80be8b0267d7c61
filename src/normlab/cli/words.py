"""What `normlab compare` says while it runs, in English and Chinese. Errors stay English: they are searched for as they are."""

from __future__ import annotations

from collections.abc import Callable

LANGUAGES = ("en", "zh")
Words = Callable[..., str]  # (key, **facts) -> the text

TEXTS = {
    # ---- progress
    "trials": ("trials", "试验"),
    "left": ("{time} left", "还剩 {time}"),
    "with": ("; {note}", "；{note}"),
    "ended": ("{ended}/{total} {name}: {how}", "{ended}/{total} {name}：{how}"),
    "told": ("{name}: {what}", "{name}：{what}"),
    "trained": ("loss {loss:.4f} ({seconds:.1f} s)", "损失 {loss:.4f}（{seconds:.1f} 秒）"),
    "failed": ("FAILED: {error}", "出错：{error}"),
    "loss": ("loss {loss:.3f}", "损失 {loss:.3f}"),
    "diverged": ("diverged", "发散"),
    "collapsed": ("collapsed", "坍缩"),
    "untrained": ("untrained", "训练不足"),
    # ---- what is about to run
    "folder": ("folder: {folder}", "目录：{folder}"),
    "rates": ("rates: {rates}", "学习率：{rates}"),
    "seeds": ("seeds: {seeds}", "种子：{seeds}"),
    "cells": ("cells:", "组合："),
    "cell": ("  {cell}  {ended} of at most {most} trials finished", "  {cell}  至多 {most} 次试验，已完成 {ended} 次"),
    # ---- rounds of seeds
    "best": ("best", "最佳者"),
    "baseline": ("baseline", "基线"),
    "decided": ("decided with {seeds} seeds: every cell is told apart from the {whom}{or_equal}",
                "{seeds} 个种子已有定论：每个组合都与{whom}分得出高下{or_equal}"),
    "or_equal": (" or equal to it within {margin:g}", "，或相差不超过 {margin:g}"),
    "too_long": ("undecided with {seeds} seeds; {total} would take about {needed} more, and {left} are left",
                 "{seeds} 个种子还没有定论；加到 {total} 个约需再跑 {needed}，只剩 {left}"),
    "next_round": ("undecided with {seeds} seeds: on to {total}", "{seeds} 个种子还没有定论：加到 {total} 个"),
    # ---- the end
    "time_over": ("--time-limit {limit} is over. {saved} Go on with: {go_on}", "--time-limit {limit} 已到。{saved}继续运行：{go_on}"),
    "at_most": ("at most {count}", "至多 {count}"),
    "saved": ("{done} of {of} trials are finished, {begun} more are saved part-way.", "{of} 次试验已完成 {done} 次，另有 {begun} 次中途保存。"),
    "broken": ("failed: {name}: {error} (traceback in {where})", "出错：{name}：{error}（调用栈见 {where}）"),
    "more": ("... and {count} more", "……另有 {count} 次"),
    "without_result": ("{count} trials have no result; try again: {go_on}", "{count} 次试验没有结果；再试一次：{go_on}"),
    "report": ("report: {file}", "报告：{file}"),
}  # fmt: skip


def words_in(language: str) -> Words:
    """
    >>> words_in("zh")("folder", folder="runs/a")
    '目录：runs/a'
    """
    place = LANGUAGES.index(language)
    return lambda key, **facts: TEXTS[key][place].format(**facts)
