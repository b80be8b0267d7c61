"""Every text of the page, English and Chinese side by side, so that neither can be forgotten.

``{name}`` is filled in by the page. Quantities are named as in the pages on watch; findings come from the diagnosis in both languages.
"""

from __future__ import annotations

from ..runs import RULE_NAMES, TRIALS_TABLE

LANGUAGES = ("en", "zh")

WORDS: dict[str, tuple[str, str]] = {
    # the page
    "sweep": ("Comparison", "比较"),
    "no_script": ("Figures need JavaScript; tables do not.", "看图需要 JavaScript；看表不需要。"),
    "incomplete": (
        "Not complete: {ended} of {planned} trials have ended. Everything below may change.",
        "尚未完成：{planned} 次试验中已结束 {ended} 次。以下内容都可能变化。",
    ),
    "incomplete_some": (
        "Not complete: {ended} trials have ended. Everything below may change.",
        "尚未完成：已结束 {ended} 次试验。以下内容都可能变化。",
    ),
    "some_failed": (
        "All trials have ended, but {n} failed: the answer rests on the others.",
        "全部试验已结束，但有 {n} 次出错：结论只依据其余试验。",
    ),
    "none": ("none", "无"),
    # the table
    "ranking": ("Ranking", "排名"),
    "ranking_read": (
        "Each cell at its own best learning rate. Brackets: 95 % intervals over n seeds (Student t); a cell's own leaves out that other "
        "held-out examples would give another loss, which differences hardly feel. Lower loss is better.",
        "每个组合取自己的最佳学习率。方括号里是 n 个随机种子的 95 % 置信区间（Student t）；组合自己的区间不含换一批留出样本带来的变化，"
        "差距几乎不受它影响。损失越低越好。",
    ),
    "cross_fitted_read": (
        "Other seeds' rate: the mean over seeds, each at the rate that is best on the others; free of what choosing the rate on the same "
        "runs flatters.",
        "由其他种子选学习率：每个种子取其余种子最好的学习率，再求平均；不占在同一批运行上选学习率的便宜。",
    ),
    "difference_read": (
        "Differences: cell minus {baseline}, and cell minus the best, paired by seed; their intervals and p hold for all pairs of cells "
        "together (95 %). Undecided: the interval holds zero.",
        "差距：该组合减 {baseline}，以及减最佳者，逐种子相减；置信区间和 p 对所有组合的配对同时成立（95 %）。尚无定论：区间包含零。",
    ),
    "broke_read": (
        "Broke: share of all trials of the cell, at every rate, that diverged, collapsed, or at a rate above the best ended with less than "
        "half of its gain over a blind predictor.",
        "失稳：该组合在所有学习率下的全部试验里，发散、坍缩，或在高于最佳的学习率下，相对盲预测器的降幅不到最佳学习率的一半，这些共占多少。",
    ),
    "target_read": ("Target: held-out loss {target}.", "目标：留出损失 {target}。"),
    "rank": ("rank", "名次"),
    "cell": ("cell", "组合"),
    "loss_unit": ("held-out loss, {unit}", "留出损失，{unit}"),
    "loss": ("held-out loss", "留出损失"),
    "no_loss": ("no rate trained", "没有学习率训练成功"),
    "difference": ("against {baseline}", "与 {baseline} 的差距"),
    "behind_best": ("behind the best", "落后最佳者"),
    "cross_fitted": ("other seeds' rate", "由其他种子选学习率"),
    "best_rate": ("best learning rate", "最佳学习率"),
    "stable_rate": ("largest stable rate", "最大稳定学习率"),
    "broke": ("broke", "失稳"),
    "steps_to_target": ("steps to target", "到目标的步数"),
    "speed": ("tokens/s", "词元/秒"),
    "memory": ("peak memory, MiB", "峰值内存，MiB"),
    "baseline_mark": ("baseline", "基线"),
    "tied": ("tied with the best", "与最佳者分不出高下"),
    "chosen": ("not its usual form: see below", "不是通常的形式：见下"),
    "undecided": ("undecided", "尚无定论"),
    "undecided_seeds": (
        "undecided; about {n} seeds ({low} to {high}) in all would decide",
        "尚无定论；共约需 {n} 个种子（{low} 到 {high}）",
    ),
    "undecided_open": (
        "undecided; about {n} seeds ({low} to over {high}) in all would decide",
        "尚无定论；共约需 {n} 个种子（{low} 到 {high} 以上）",
    ),
    "undecided_many": ("undecided; {n} seeds or more would be needed", "尚无定论；需要 {n} 个或更多种子"),
    "equal": ("equal within {margin}", "相差不超过 {margin}"),
    "the_best": ("best", "最佳"),
    "edge_low": ("lowest tried", "试过的最低"),
    "edge_high": ("highest tried", "试过的最高"),
    "of": ("{k} of {n}", "{n} 次中 {k} 次"),
    "failed_too": ("{n} failed", "{n} 次出错"),
    "metric_read": (
        "Ranks and differences are those of: {metric}; the loss stands beside them.",
        "名次和差距按“{metric}”计算；旁边列出损失。",
    ),
    "figures": ("More than loss", "损失之外"),
    "figures_read": (
        "Each cell at its best rate: means over seeds, in brackets 95 % intervals (Student t).",
        "每个组合取最佳学习率：对种子的平均，方括号里是 95 % 置信区间（Student t）。",
    ),
    "figures_target": (
        "Target: held-out loss {target}, which every compared trial reaches.",
        "目标：留出损失 {target}，参与比较的试验都达到。",
    ),
    # the map
    "map": ("Stability map", "稳定性图"),
    "map_read": (
        "Mean held-out loss ({unit}) of the seeds that ended, by learning rate; the best rate of each cell is outlined. "
        "Words count seeds that did not train, and say how many a square rests on where that differs: a rate whose first seed was hopeless got no other.",
        "各学习率下，已结束的种子的平均留出损失（{unit}）；每个组合的最佳学习率加框。文字是没有训练成功的种子数；各格种子数不同时，也写明用了几个："
        "第一个种子就没有希望的学习率，不再跑别的种子。",
    ),
    "rate": ("learning rate", "学习率"),
    "diverged_of": ("{k} of {n} diverged", "{n} 个中 {k} 个发散"),
    "collapsed_of": ("{k} of {n} collapsed", "{n} 个中 {k} 个坍缩"),
    "untrained_of": ("{k} of {n} untrained", "{n} 个中 {k} 个训练不足"),
    "failed_of": ("{k} of {n} failed", "{n} 个中 {k} 个出错"),
    "lost_of": ("{k} of {n} lost half the gain", "{n} 个中 {k} 个降幅不到一半"),
    "rests_on": ("seeds: {n}", "种子：{n}"),
    "not_run": ("not run", "未运行"),
    # figures
    "curves": ("Loss curves", "损失曲线"),
    "shown": ("Shown, each at this learning rate", "显示的组合及其学习率"),
    "train": ("Training loss", "训练损失"),
    "heldout": ("Held-out loss", "留出损失"),
    "mean_read": (
        "Lines: means ({n}). Bands: from the lowest to the highest seed.",
        "线是平均（{n}），带是最低的种子到最高的种子。",
    ),
    "point_read": ("Each point is the mean of {width} steps.", "每点是 {width} 步的平均。"),
    "lost_read": ("×: a seed diverged; the mean goes on without it.", "×：一个种子发散，此后的平均不含它。"),
    "blind_read": ("Dotted: a predictor that never sees the input.", "点线：从不看输入的盲预测器。"),
    "cut": ("Values above {top} are cut off.", "高于 {top} 的值未画出。"),
    "seeds": ("n = {n} seeds", "n = {n} 个种子"),
    "seeds_range": ("n = {low} to {high} seeds", "n = {low} 到 {high} 个种子"),
    "blind": ("blind predictor", "盲预测器"),
    "step": ("step", "步"),
    "loss_axis": ("loss, {unit}", "损失，{unit}"),
    "no_unit": ("no unit", "无单位"),
    # filled in by Plotly: its braces are doubled here
    "hover_curve": (
        "%{{fullData.name}}<br>step %{{x}}: %{{y:.4g}}<br>%{{customdata[0]:.4g}} to %{{customdata[1]:.4g}}, "
        "n = %{{customdata[2]}}<extra></extra>",
        "%{{fullData.name}}<br>第 %{{x}} 步：%{{y:.4g}}<br>%{{customdata[0]:.4g}} 到 %{{customdata[1]:.4g}}，"
        "n = %{{customdata[2]}}<extra></extra>",
    ),
    "hover_lost": (
        "%{{fullData.name}}<br>diverged at step %{{x}}<extra></extra>",
        "%{{fullData.name}}<br>在第 %{{x}} 步发散<extra></extra>",
    ),
    "hover_block": (
        "%{{fullData.name}}<br>%{{customdata[0]}}: %{{y:.4g}}<br>"
        "%{{customdata[1]:.4g}} to %{{customdata[2]:.4g}}<extra></extra>",
        "%{{fullData.name}}<br>%{{customdata[0]}}：%{{y:.4g}}<br>"
        "%{{customdata[1]:.4g}} 到 %{{customdata[2]:.4g}}<extra></extra>",
    ),
    "hover_difference": (
        "%{{fullData.name}}: %{{x:+.4g}}<br>%{{customdata[0]:+.4g}} to %{{customdata[1]:+.4g}}<extra></extra>",
        "%{{fullData.name}}：%{{x:+.4g}}<br>%{{customdata[0]:+.4g}} 到 %{{customdata[1]:+.4g}}<extra></extra>",
    ),
    "differences": ("Differences", "差距"),
    "difference_title": ("Difference from the baseline, {cell}", "与基线 {cell} 的差距"),
    "behind_best_title": ("Behind the best, {cell}", "落后最佳者 {cell} 的差距"),
    "difference_axis": ("difference of the {what}, {unit}", "{what}之差，{unit}"),
    "interval_read": (
        "Points: means over seeds, paired. Lines: intervals that hold for all pairs of cells together (95 %). Hollow: the interval holds zero. "
        "Left of zero is better.",
        "点是逐种子相减的平均，线是对所有组合的配对同时成立的 95 % 置信区间。空心：区间包含零。零的左边更好。",
    ),
    "few_shown": (
        "The first {n} are shown; tick others to add them to every figure.",
        "只显示前 {n} 个；勾选其他组合，就加进每张图。",
    ),
    "no_curves": ("No losses were recorded.", "没有记录损失。"),
    "depth": ("By depth", "随深度"),
    "depth_read": (
        "Means ({n}), bars from the lowest to the highest seed.",
        "平均（{n}），误差线是最低的种子到最高的种子。",
    ),
    "depth_step": ("Last recorded step with finite values: {low}.", "数值全部有限的最后一个记录步：{low}。"),
    "depth_steps": (
        "Last recorded steps with finite values: {low} to {high}.",
        "数值全部有限的最后一个记录步：{low} 到 {high}。",
    ),
    "logarithmic": ("Logarithmic axis.", "对数坐标。"),
    "block": ("block (1 is next to the input)", "块（1 最靠近输入）"),
    "stream_rms": ("RMS of the residual stream", "残差流的 RMS"),
    "stream_grad": ("Gradient norm of the residual stream", "残差流的梯度范数"),
    "param_grad": ("Gradient norm of the block's parameters", "块内参数的梯度范数"),
    "angle": ("Turn of the stream by the block", "残差流过块的转角"),
    "stream_rms_axis": ("RMS after the block", "块之后的 RMS"),
    "stream_grad_axis": ("|dL/d stream|", "|dL/d 残差流|"),
    "param_grad_axis": ("|dL/d parameters|", "|dL/d 参数|"),
    "angle_axis": ("angle / π", "角 / π"),
    # findings
    "findings": ("Findings", "诊断结果"),
    "findings_read": (
        "Rules of normlab diagnose over one run of each cell, at the rate named; trials that did not train have theirs below. Silence is no proof of health.",
        "用 normlab diagnose 的规则检查每个组合在所示学习率下的一份运行记录；没有训练成功的试验各有诊断，见下文。没有诊断结果不等于没有问题。",
    ),
    "few_recorded": (
        "{k} recorded steps; most rules need {few} and stayed silent.",
        "记录了 {k} 步；多数规则需要 {few} 步，所以没有判断。",
    ),
    "no_finding": ("No finding", "没有诊断结果"),
    "no_finding_few": (
        "No finding, with fewer than the {few} recorded steps that most rules need",
        "没有诊断结果，但记录步少于多数规则需要的 {few} 步",
    ),
    "critical": ("critical", "严重"),
    "warning": ("warning", "警告"),
    "note": ("note", "提示"),
    "why": ("Why", "原因"),
    "try": ("Try", "可试"),
    "evidence": ("Evidence", "依据"),
    "whole_model": ("the whole model", "整个模型"),
    "seed": ("seed", "种子"),
    # what did not work
    "refused": ("Refused cells", "拒绝运行的组合"),
    "refused_read": ("Combinations that are not defined; they were not run.", "没有定义的组合，没有运行。"),
    "reason": ("reason", "原因"),
    "failures": ("Trials that did not train", "没有训练成功的试验"),
    "failures_read": (
        "Diverged: a loss that is not finite. Collapsed: not 2 % better than a predictor that never sees the input. "
        "Untrained: the same, but still falling. Failed: the program broke.",
        "发散：损失不是有限值。坍缩：没有比从不看输入的盲预测器好 2 %。训练不足：同样没有，但损失还在降。出错：程序中断。",
    ),
    "outcome": ("outcome", "结果"),
    "cause": ("cause", "起因"),
    "alike": ("(seed {seed}; {n} more alike)", "（种子 {seed}；另有 {n} 个相同）"),
    "trained": ("trained", "训练成功"),
    "diverged": ("diverged", "发散"),
    "collapsed": ("collapsed", "坍缩"),
    "untrained": ("untrained", "训练不足"),
    "failed": ("failed", "出错"),
    "left_out": (f"{{n}} more rows are in {TRIALS_TABLE}.", f"其余 {{n}} 行见 {TRIALS_TABLE}。"),
    "unreadable": ("Runs that could not be read", "无法读取的运行记录"),
    "not_opened": (
        "The runs of {n} further cells were not opened: no training curve, depth or findings for them.",
        "另有 {n} 个组合的运行记录没有打开：缺它们的训练曲线、深度图和诊断结果。",
    ),
    # facts
    "facts": ("What ran", "跑的是什么"),
    "task": ("task", "任务"),
    "unit": ("unit of the loss", "损失的单位"),
    "steps": ("steps", "步数"),
    "parameters": ("parameters", "参数个数"),
    "given_alike": ("what all cells were given alike", "各组合相等的量"),
    "samples": ("samples", "样本数"),
    "tokens": ("tokens", "词元数"),
    "seeds_list": ("seeds", "种子"),
    "trials": ("trials", "试验次数"),
    "baseline": ("baseline", "基线"),
    "blind_loss": ("loss of a predictor that never sees the input", "盲预测器（从不看输入）的损失"),
    "target_loss": ("target loss", "目标损失"),
    "created": ("created", "创建时间"),
    "seconds": ("seconds", "秒数"),
    "status": ("status", "状态"),
    "accuracy": ("accuracy", "准确率"),
    "error": ("error", "错误"),
    "machine": ("machine", "机器"),
    "data": ("data (SHA-256)", "数据（SHA-256）"),
    "versions": ("versions", "版本"),
    "settings": ("Settings common to all trials", "全部试验共用的设置"),
    "made_by": ("Made by normlab. This file needs no network.", "由 normlab 生成。看这个文件不用联网。"),
    **RULE_NAMES,
    # statuses of normlab.runs
    "running": ("running", "进行中"),
    "finished": ("finished", "已完成"),
    "interrupted": ("interrupted", "已中断"),
    # units of the tasks; others are shown as they are
    "nats per byte": ("nats per byte", "奈特/字节"),
    "nats per token": ("nats per token", "奈特/词元"),
    "nats per document": ("nats per document", "奈特/文档"),
    "nats per image": ("nats per image", "奈特/图像"),
    "nats per character": ("nats per character", "奈特/字符"),
    "own loss": ("own loss", "自定损失"),
}


def both(key: str, **values: object) -> dict[str, str]:
    """{language: text}. A value that is itself such a pair is used language by language."""
    return {
        language: text.format(**{k: v[language] if isinstance(v, dict) else v for k, v in values.items()})
        for language, text in zip(LANGUAGES, WORDS[key], strict=True)
    }


def known(text: str) -> dict[str, str]:
    """The same for a name out of data, such as a unit: translated if it is a word here, else as it is."""
    return both(text) if text in WORDS else dict.fromkeys(LANGUAGES, text)


def joined(*sentences: dict[str, str]) -> dict[str, str]:
    return {language: {"en": " ", "zh": ""}[language].join(s[language] for s in sentences) for language in LANGUAGES}
