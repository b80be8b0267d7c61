"""What a plan says before it is carried out, in English and Chinese."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runs import LR, SEED

if TYPE_CHECKING:
    from .sweep import Plan

LANGUAGES = ("en", "zh")
EQUALS = {"samples": "样本数", "tokens": "词元数", "seconds": "训练时间"}
WORDS = {
    "grid": ("{cells} cells x {rates} rates x {seeds} seeds = {total} trials of {steps}, task {task}, {workers} at a time",
             "{cells} 个组合 x {rates} 个学习率 x {seeds} 个种子 = {total} 次试验，每次 {steps}，任务 {task}，同时跑 {workers} 次"),
    "at_most": ("at most {count}", "至多 {count}"),
    "steps": ("{low} steps", "{low} 步"),
    "steps_between": ("{low} to {high} steps", "{low} 到 {high} 步"),
    "equal": ("cells are compared at equal {what}, those of {steps} steps of the base", "各组合的{what}相等，以基准实验的 {steps} 步为准"),
    "further": ("{first} seeds at every rate that its first does not show to be hopeless, {seeds} at the best rate of each cell",
                "第一个种子就看出无望的学习率不再跑，其余各跑 {first} 个种子；每个组合的最佳学习率跑 {seeds} 个"),
    "done": ("{count} are finished and stay as they are", "其中 {count} 次已完成，保持不变"),
    "refused": ("refused: {name}: {reason}", "拒绝运行：{name}：{reason}"),
    "estimate": ("estimated time: {time}", "预计时间：{time}"),
    "no_estimate": ("no estimate of the time: {why}", "无法预计时间：{why}"),
    "hours": ("{hours} h {minutes} min", "{hours} 小时 {minutes} 分"),
    "minutes": ("{minutes} min {seconds} s", "{minutes} 分 {seconds} 秒"),
    "seconds": ("{seconds} s", "{seconds} 秒"),
}  # fmt: skip


def _say(language: str, key: str, **facts: object) -> str:
    return WORDS[key][LANGUAGES.index(language)].format(**facts)


def duration(seconds: float, language: str = "en") -> str:
    """
    >>> duration(75), duration(7265, "zh")
    ('1 min 15 s', '2 小时 1 分')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    form = "hours" if hours else "minutes" if minutes else "seconds"
    return _say(language, form, hours=hours, minutes=minutes, seconds=rest)


def told(plan: Plan, language: str = "en") -> str:
    sweep = plan.sweep

    def say(key: str, **facts: object) -> str:
        return _say(language, key, **facts)

    seeds, first = len(sweep.within(SEED)), sweep.first_seeds
    count = len(plan.done) + len(plan.missing) + plan.later
    low, high = sweep.fewest_and_most_steps()
    lines = [say(
        "grid", cells=len(sweep.cells()) - len(sweep.refused), rates=len(sweep.within(LR)),
        seeds=seeds if first is None else f"{first}+{seeds - first}", total=say("at_most", count=count) if plan.later else count,
        steps=say("steps" if low == high else "steps_between", low=low, high=high), task=sweep.base.task, workers=plan.workers,
    )]  # fmt: skip
    if sweep.steps:
        what = EQUALS.get(sweep.equal, sweep.equal) if language == "zh" else sweep.equal
        lines.append(say("equal", what=what, steps=sweep.base.steps))
    if first is not None and seeds > first:
        lines.append(say("further", first=first, seeds=seeds))
    if plan.done:
        lines.append(say("done", count=len(plan.done)))
    for refused in sweep.refused:
        reason = (refused.reason_zh if language == "zh" else None) or refused.reason
        lines.append(say("refused", name=refused.name, reason=reason))
    if plan.seconds is not None and plan.missing:
        lines.append(say("estimate", time=duration(plan.seconds, language)))
    if plan.unknown is not None:
        lines.append(say("no_estimate", why=plan.unknown))
    return "\n".join(lines)
