"""Put the figures of one `normlab bench --json FILE` run into the benchmark pages, English and Chinese.

python benchmarks/write_results.py benchmarks/results/2026-11-16.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
WORDS = {
    "en": {
        "title": "## Results",
        "run": "{cpu}, {isa}, {threads} threads, torch {torch}, normlab {normlab}. From `{file}`, one run. [log.md](log.md) gives the spread between runs.",
        "goals": ("what", "measured", "reach", "met"),
        "yes": "yes",
        "no": "**no**",
        "ratios": "Time of the other side / ours, forward + backward as users run the layer:",
        "rows": ("norm", "against", "dtype"),
        "shares": "Kernels alone, outputs allocated beforehand, share of the copy limit:",
        "kernel": ("kernel", "dtype"),
        "steps": "Whole training steps of a decoder (batch x tokens x width given): time of the other side / ours, and the share of a step that goes to normalization, measured as the norm alone (its data in the cache, so at least this much) times its number:",
        "step": ("norm", "size", "dtype", "ratios", "share with torch's norms", "share with ours"),
    },
    "zh": {
        "title": "## 结果",
        "run": "{cpu}，{isa}，{threads} 线程，torch {torch}，normlab {normlab}。数据来自 `{file}`，只跑了一次；各次之间相差多少，见 [log.md](log.md)。",
        "goals": ("项目", "实测", "目标", "达到"),
        "yes": "是",
        "no": "**否**",
        "ratios": "对方用时 / 我方用时，照用户的用法做前向加反向：",
        "rows": ("归一化", "对手", "数据类型"),
        "shares": "只测内核，输出事先分配好，达到拷贝极限的百分之几：",
        "kernel": ("内核", "数据类型"),
        "steps": "解码器的完整训练步（大小为批 x 词元 x 宽度）：对方用时 / 我方用时，以及归一化占一步的比例。比例是单独测一个归一化层，再乘以个数；单独测时数据在缓存里，所以实际只会更高：",
        "step": ("归一化", "大小", "数据类型", "比值", "占比（torch 的归一化层）", "占比（我方的归一化层）"),
    },
}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def render(result: dict[str, Any], file: str, words: dict[str, Any]) -> str:
    steps = [r for r in result["rows"] if r["family"] == "training step"]
    rows = [r for r in result["rows"] if r["family"] != "training step"]
    shapes = list(dict.fromkeys(tuple(r["shape"]) for r in rows))
    names = ["x".join(map(str, s)) for s in shapes]
    goals = [
        [g["what"], f"{g['measured']:.3g}{g['unit']}", f"{'<=' if g['at_most'] else '>='} {g['target']:.3g}{g['unit']}",
         words["yes"] if g["met"] else words["no"]]
        for g in result["goals"]
    ]  # fmt: skip
    ratios, shares = [], []
    pairs = dict.fromkeys(
        (r["family"], r["case"], rival) for r in rows if r["family"] != "kernels" for rival in r["ratios"]
    )
    for family, case, rival in pairs:
        for dtype in ("float32", "bfloat16"):
            found = {tuple(r["shape"]): r["ratios"][rival] for r in rows
                     if (r["family"], r["case"], r["dtype"]) == (family, case, dtype) and rival in r["ratios"]}  # fmt: skip
            label = family if case.endswith("fwd+bwd") else f"{family} ({case})"
            ratios.append([label, rival, dtype, *(f"{found[s]:.2f}x" if s in found else "-" for s in shapes)])
    for kernel in ("LayerNorm", "RMSNorm", "BatchNorm", "torch LayerNorm"):
        for dtype in ("float32", "bfloat16"):
            found = {tuple(r["shape"]): r["share_of_limit"][kernel] for r in rows
                     if r["family"] == "kernels" and r["dtype"] == dtype}  # fmt: skip
            shares.append([kernel, dtype, *(f"{found[s]:.0%}" for s in shapes)])
    return "\n\n".join([
        words["title"],
        words["run"].format(**result["machine"], file=file),
        table(list(words["goals"]), goals),
        words["ratios"],
        table([*words["rows"], *names], ratios),
        words["shares"],
        table([*words["kernel"], *names], shares),
        words["steps"],
        table(list(words["step"]), [
            [r["case"], "x".join(map(str, r["shape"])), r["dtype"],
             ", ".join(f"{rival} {ratio:.2f}x" for rival, ratio in r["ratios"].items()),
             *(f"{share:.1%}" for side, share in sorted(r["share_of_step"].items(), key=lambda item: item[0] == "ours"))]
            for r in steps
        ]),
    ]) + "\n"  # fmt: skip


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    path = Path(sys.argv[1]).resolve()
    result = json.loads(path.read_text())
    for language, words in WORDS.items():
        page = ROOT / "docs" / language / "benchmark.md"
        text = page.read_text(encoding="utf-8")
        head, _, rest = text.partition(words["title"])
        after = rest[rest.index("\n## ") :] if "\n## " in rest else ""  # sections after the results stay
        page.write_text(head + render(result, path.relative_to(ROOT).as_posix(), words) + after, encoding="utf-8")
        print(f"wrote {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
