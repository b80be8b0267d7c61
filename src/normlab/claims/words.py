"""What is said of verdicts, sources and numbers, in both languages."""

from __future__ import annotations

from collections.abc import Sequence

from ..runs import CheckResult, ClaimResult
from .claim import Claim, Words
from .judge import unmeasured

LANGUAGES = ("en", "zh")

VERDICT: dict[str, Words] = {
    "holds": ("holds", "成立"),
    "conditions": ("holds with conditions", "有条件成立"),
    "fails": ("does not hold", "不成立"),
    "undecided": ("undecided at this scale", "此规模下尚无定论"),
    "untestable": ("not testable", "无法检验"),
    "not run": ("not run", "未运行"),
}
SEVERAL = {
    "holds": "hold",
    "conditions": "hold with conditions",
    "fails": "do not hold",
}  # where English tells several from one
KIND: dict[str, Words] = {
    "exact": ("exact", "精确"),
    "empirical": ("experiment", "实验"),
    "definition": ("facts", "事实核对"),
}
BUDGET: dict[str, Words] = {
    "quick": ("--quick", "--quick"),
    "default": ("default", "默认"),
    "full": ("--full", "--full"),
}
SOURCE: dict[str, Words] = {
    "S0": ("S0: types of norms, pre-norm and post-norm", "S0：归一化的种类，前置与后置"),
    "S1": ("S1: BatchNorm and LayerNorm, placement, DeepNorm", "S1：批归一化与层归一化、位置、DeepNorm"),
    "S2": ("S2: LayerNorm in the Transformer", "S2：Transformer 的层归一化"),
    "S3": ("S3: why LayerNorm and not BatchNorm, in ten minutes", "S3：十分钟讲清为何用 LayerNorm 而不用 BatchNorm"),
    "S4": ("S4: why LayerNorm on text; LayerNorm and embeddings", "S4：文本为何用 LayerNorm；LayerNorm 与嵌入"),
}
REASON: dict[str, Words] = {
    "budget": ("its experiment runs from the budget {budget} on", "它的实验要更大的预算才运行（{budget}）"),
    "lacking": ("normlab cannot measure yet what it needs", "它所需要的量 normlab 还测不了"),
    "unfinished": ("its experiment has not finished", "它的实验还没跑完"),
}
OUTCOME: dict[str, Words] = {
    "true": ("as claimed", "与说法相符"),
    "small": ("as claimed, but less than matters", "方向相符，但小到无关紧要"),
    "false": ("not as claimed", "与说法不符"),
    "undecided": ("undecided", "尚无定论"),
}


def pick(words: Words, lang: str) -> str:
    return words[LANGUAGES.index(lang)]


def cell(text: str) -> str:
    """One that breaks no table of Markdown."""
    return text.replace("|", "\\|").replace("*", "\\*")


def figure(value: float | None) -> str:
    """Four digits, as short as they go."""
    return "-" if value is None else f"{value:.4g}"


def claimed_range(check: CheckResult, lang: str) -> str:
    """What the claim says of the number."""
    if check.least is not None and check.most is not None:
        if check.least == check.most:
            return f"= {figure(check.least)}"
        return pick(
            (f"{figure(check.least)} to {figure(check.most)}", f"{figure(check.least)} 至 {figure(check.most)}"), lang
        )
    if check.least is None and check.most is None:
        return "-"
    sign, border = ("≥", check.least) if check.least is not None else ("≤", check.most)
    margin = (
        ""
        if check.margin is None
        else pick((f", matters from {figure(check.margin)}", f"，{figure(check.margin)} 起才算数"), lang)
    )
    return f"{sign} {figure(border)}{margin}"


def measured(check: CheckResult, lang: str) -> str:
    """The number with its interval and seeds; of a fact, where it was read."""
    if check.value is None:
        return check.quantity if check.least is None and check.most is None else "-"
    if not check.n:
        return figure(check.value)
    low, high = (pick(("unknown", "未知"), lang) if v is None else figure(v) for v in (check.low, check.high))
    return pick(
        (
            f"{figure(check.value)} [{low}, {high}], {check.n} seeds",
            f"{figure(check.value)}（{low} 至 {high}，{check.n} 个种子）",
        ),
        lang,
    )


def declared(claim: Claim) -> list[CheckResult]:
    """The claim's numbers and ranges, nothing measured."""
    known = [unmeasured(check) for check in claim.checks]
    return known + [CheckResult(quantity=f.source, core=f.core, outcome="undecided") for f in claim.facts]


def what_of(claim: Claim, number: int) -> Words:
    """What the check of this number measures: checks first, then facts."""
    return (*(c.what for c in claim.checks), *(f.what for f in claim.facts))[number]


def reason(result: ClaimResult, claim: Claim, lang: str) -> str:
    if claim.untestable is not None:
        return pick(claim.untestable, lang)
    if result.reason is None:
        return ""
    key, _, budget = result.reason.partition(" ")
    if key not in REASON:  # of another version
        return result.reason
    return pick(REASON[key], lang).format(budget=named_budget(budget, lang))


def named_budget(budget: str, lang: str) -> str:
    return pick(BUDGET.get(budget, (budget, budget)), lang)


def summary_line(results: Sequence[ClaimResult], expected: float, lang: str) -> str:
    counts = {v: sum(r.verdict == v for r in results) for v in VERDICT}
    parts = [
        f"{n} {SEVERAL.get(v, VERDICT[v][0]) if n > 1 else VERDICT[v][0]}" if lang == "en" else f"{n} 条{VERDICT[v][1]}"
        for v, n in counts.items()
        if n
    ]
    joint, stop = pick((", ", "，"), lang), pick((". ", "。"), lang)
    false = pick((f"Of the verdicts from samples, at most {expected:.1f} are expected to be wrong by chance (5 % each).",
                  f"由抽样得出的结论里，预期至多 {expected:.1f} 条因偶然出错（每条 5 %）。"), lang)  # fmt: skip
    return joint.join(parts) + (stop + false if expected else pick((".", "。"), lang))


def deciding(claim: Claim, result: ClaimResult, lang: str) -> str:
    """The number that decided, in a few words: what spoke against it, else what is open, else the first."""
    if why := reason(result, claim, lang):
        return why
    order = ("false", "undecided", "small", "true")
    known = result.checks[: len(claim.checks) + len(claim.facts)]  # another version's run may hold more, or none
    if not known:
        return "-"
    ranked = sorted(enumerate(known), key=lambda c: (order.index(c[1].outcome), not c[1].core, c[0]))
    number, check = ranked[0]
    said = pick(what_of(claim, number), lang)
    return said if check.value is None else f"{said}{pick((': ', '：'), lang)}{measured(check, lang)}"
