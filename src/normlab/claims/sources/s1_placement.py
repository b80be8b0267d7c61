"""S1, second half: where the norm stands, MiniMax's comparison, DeepNorm, RMSNorm (C36 to C46)."""

from __future__ import annotations

from ..claim import Check, Claim, Fact, Numbers
from ..exact import moments, structure

MINIMAX = "MiniMax-01, arXiv 2501.08313, section 2.3 and Table 5"
# Benchmarks of MiniMax-01, Table 5: (pre, post with DeepNorm).
TABLE_5 = {
    "BBH": (29.9, 32.6), "DROP": (26.8, 27.6), "MMLU": (43.9, 50.2), "CMMLU": (41.8, 49.2), "MATH": (4.8, 5.7),
    "GSM8k": (12.2, 16.8), "ARC-C": (43.5, 46.2), "WinoGrande": (65.5, 65.4),
}  # fmt: skip


def minimax_table() -> Numbers:
    """From the paper's printed figures."""
    gains = [post - pre for pre, post in TABLE_5.values()]
    return {"benchmarks": float(len(gains)), "won": float(sum(g > 0 for g in gains)), "least_gain": min(gains)}


CLAIMS = (
    Claim(
        id="C36", source="S1", kind="definition",
        says=("Pre-norm (Baevski and Auli 2018, Child 2019, Wang 2019) puts the norm before attention", "PreNorm（Baevski 与 Auli 2018、Child 2019、Wang 2019）把归一化放在注意力之前"),
        how=("The paper that the sentence is translated from", "这句话所译自的论文"),
        facts=(Fact(what=("MiniMax-01 names these three papers for pre-norm", "MiniMax-01 引用这三篇论文说明 PreNorm"), source=MINIMAX, agrees=True),),
    ),
    Claim(
        id="C37", source="S1", kind="empirical",
        says=("Pre-norm lets gradients pass by the sub-layers, which lowers the effective depth", "PreNorm 让梯度绕过子层，因而降低了有效深度"),
        how=("Effective depth of eight trained blocks from the angles by which they turn the stream: pre-norm minus post-norm", "由各块转动残差流的角度算八个训练好的块的有效深度：前置减后置"),
        designs=("effective-depth",),
        checks=(Check(quantity="effective depth, pre", against="effective depth, post", most=0.0, margin=0.3, what=("effective depth of 8 blocks, pre minus post", "8 个块的有效深度，前置减后置")),),
    ),
    Claim(
        id="C38", source="S1", kind="empirical",
        says=("Post-norm keeps the effective depth but is prone to vanishing and exploding gradients", "PostNorm 保留有效深度，但容易梯度消失和爆炸"),
        how=("Effective depth of eight blocks; 24 layers trained without warm-up, post-norm against DeepNorm; first and last gradients at the start", "八个块的有效深度；24 层不预热训练，后置归一化对 DeepNorm；训练开始时首末层梯度"),
        designs=("effective-depth", "deep", "gradients"),
        checks=(
            Check(quantity="effective depth, post", against="effective depth, pre", least=0.0, what=("effective depth of 8 blocks, post minus pre", "8 个块的有效深度，后置减前置")),
            Check(quantity="post, deep", against="deepnorm, deep", least=0.0, margin=0.1, what=("24 layers without warm-up, post minus DeepNorm, nats per byte", "24 层不预热，后置减 DeepNorm，奈特/字节")),
            Check(quantity="last over first, post", least=1.0, core=False, what=("vanishing at the start: log10 of last over first gradient, at least 1", "一开始就消失：末层比首层梯度的对数 log10，至少为 1")),
        ),
        literature=("DeepNet, section 3: the root is an exploding model update, which then makes gradients vanish; exploding gradients are not the root cause.", "DeepNet 第 3 节：根源是模型更新量爆炸，随后才是梯度消失；梯度爆炸不是根本原因。"),
    ),
    Claim(
        id="C39", source="S1", kind="empirical",
        says=("Most large models use pre-norm because wider and deeper networks hardly differ, and stability comes first", "大多数大模型用 PreNorm，因为更宽与更深的网络差别可忽略，稳定优先"),
        how=("Two layers of width 96 against eight of width 48, as in C21: equal within 0.05 nats; and pre-norm against post-norm without warm-up", "两层宽 96 与八层宽 48，同 C21：差距在 0.05 奈特以内；以及不预热时前置对后置"),
        designs=("depth-or-width", "warm-up"),
        checks=(
            Check(quantity="deep", against="wide", least=-0.05, most=0.05, what=("8 x 48 minus 2 x 96, nats per byte", "8 × 48 减 2 × 96，奈特/字节")),
            Check(quantity="pre, no warm-up", against="post, no warm-up", most=0.0, margin=0.05, what=("stability: without warm-up, pre minus post, nats per byte", "稳定性：不预热，前置减后置，奈特/字节")),
        ),
        literature=("The opinion is MiniMax-01's; another of the tutorials says that depth matters more (C21).", "这是 MiniMax-01 的看法；另一篇教程说深度更重要（C21）。"),
    ),
    Claim(
        id="C40", source="S1", kind="empirical",
        says=("MiniMax, 9.3B of 60B parameters active, 48 layers, 500B tokens: post-norm with DeepNorm beats pre-norm on all metrics", "MiniMax（激活 93 亿、共 600 亿参数，48 层，5000 亿词元）：PostNorm（DeepNorm）在所有指标上都优于 PreNorm"),
        how=("The eight benchmarks of the paper's own Table 5; and both placements in small, at the same steps, on prose and digits", "论文表 5 自己的八项基准；以及小规模下步数相同的两种位置，文本与手写数字"),
        measure=minimax_table,
        designs=("pre-or-deepnorm",),
        checks=(
            Check(quantity="won", least=5, core=False, what=("benchmarks that post-norm wins, more than half of 8", "后置归一化胜出的基准数，超过 8 项的一半")),
            Check(quantity="least_gain", least=1e-9, what=("smallest gain of post-norm, points (WinoGrande: 65.4 against 65.5)", "后置归一化最小的优势，百分点（WinoGrande：65.4 对 65.5）")),
            Check(quantity="text loss, deepnorm", against="text loss, pre", most=0.0, margin=0.01, core=False, what=("in small, prose: loss of DeepNorm minus pre-norm, nats per byte", "小规模，文本：DeepNorm 减前置的损失，奈特/字节")),
            Check(quantity="text accuracy, deepnorm", against="text accuracy, pre", least=0.0, margin=0.3, core=False, what=("in small, prose: accuracy of DeepNorm minus pre-norm, points", "小规模，文本：DeepNorm 减前置的准确率，百分点")),
            Check(quantity="digits loss, deepnorm", against="digits loss, pre", most=0.0, margin=0.02, core=False, what=("in small, digits: loss of DeepNorm minus pre-norm, nats per image", "小规模，手写数字：DeepNorm 减前置的损失，奈特/图像")),
            Check(quantity="digits accuracy, deepnorm", against="digits accuracy, pre", least=0.0, margin=0.5, core=False, what=("in small, digits: accuracy of DeepNorm minus pre-norm, points", "小规模，手写数字：DeepNorm 减前置的准确率，百分点")),
        ),
        literature=("MiniMax-01 writes that post-norm wins consistently on all metrics; its table has one loss of 0.1 points.", "MiniMax-01 正文称后置归一化在所有指标上一致更好；表里有一项低 0.1 个百分点。"),
    ),
    Claim(
        id="C41", source="S1", kind="exact",
        says=("DeepNorm scales the residual up (alpha > 1) before LayerNorm and some Xavier weights down (beta < 1)", "DeepNorm 在 LayerNorm 之前放大残差连接（α > 1），并缩小部分 Xavier 初始化的参数（β < 1）"),
        how=("Both numbers for 1 to 1000 layers; spread of the matrices at the start against plain Post-LN", "1 到 1000 层的两个系数；初始矩阵的离散程度与普通 Post-LN 相比"),
        measure=structure.deepnorm,
        checks=(
            Check(quantity="least_alpha", least=1 + 1e-9, what=("smallest alpha", "最小的 α")),
            Check(quantity="largest_beta", most=1 - 1e-9, what=("largest beta", "最大的 β")),
            Check(quantity="scaled_matrices", least=0.98, most=1.02, what=("values, outputs, feed-forward: spread over beta times Post-LN's", "值、输出、前馈矩阵：离散程度与 β 倍 Post-LN 之比")),
            Check(quantity="queries_and_keys", least=0.98, most=1.02, what=("queries and keys: spread over Post-LN's (some weights only)", "查询、键矩阵：离散程度与 Post-LN 之比（只缩小部分参数）")),
        ),
        literature=("Wang et al. 2022 (arXiv 2203.00555): values, outputs and feed-forward matrices, not queries and keys.", "Wang 等 2022（arXiv 2203.00555）：缩小值、输出和前馈矩阵，不动查询和键。"),
    ),
    Claim(
        id="C42", source="S1", kind="exact",
        says=("alpha and beta are constants fixed by the architecture", "α 和 β 都是由模型结构决定的常数"),
        how=("Against the closed forms for one stack and for encoder-decoders; learned numbers in the placement", "与单堆叠、编码器加解码器的闭式公式相比；归一化位置里可学习的数"),
        measure=structure.deepnorm,
        checks=(
            Check(quantity="against_closed_form", most=1e-12, what=("largest difference from the closed forms", "与闭式公式的最大差")),
            Check(quantity="learned_numbers", most=0, what=("learned numbers besides the norm's", "除归一化自身外可学习的数")),
        ),
    ),
    Claim(
        id="C43", source="S1", kind="empirical",
        says=("DeepNorm relieves exploding updates: it bounds the model's update by a constant", "DeepNorm 缓解爆炸式模型更新，把更新限制在常数"),
        how=("Change of the last hidden state by one tiny SGD step in float64, over depth: post-norm and DeepNorm", "float64 下极小的一步 SGD 引起的末层状态变化随深度的变化：后置归一化与 DeepNorm"),
        designs=("updates",),
        checks=(
            Check(quantity="post over deepnorm", least=1.0, what=("log10 of post-norm's update over DeepNorm's at the largest depth", "最大深度处后置归一化更新量与 DeepNorm 之比的对数 log10")),
            Check(quantity="slope of updates, deepnorm", least=-0.2, most=0.2, core=False, what=("DeepNorm's update against depth, log-log slope (constant: 0)", "DeepNorm 更新量随深度的双对数斜率（常数为 0）")),
        ),
        literature=("Wang et al. 2022 prove an upper bound under SGD.", "Wang 等 2022 在 SGD 下证明了一个上界。"),
    ),
    Claim(
        id="C44", source="S1", kind="exact",
        says=("DeepNorm brings in further norms over many layers, which mends vanishing and exploding gradients", "DeepNorm 通过引入多层归一化操作，解决梯度消失和爆炸"),
        how=("Norms of the same model with DeepNorm and with Post-LN", "同一模型用 DeepNorm 与用 Post-LN 的归一化层数"),
        measure=structure.counts,
        checks=(Check(quantity="extra_of_deepnorm", least=1, what=("norms that DeepNorm has more than Post-LN", "DeepNorm 比 Post-LN 多的归一化层数")),),
    ),
    Claim(
        id="C45", source="S1", kind="empirical",
        says=("Normalizing lowers the sensitivity to the learning rate and improves generalization", "归一化可减少对学习率的敏感性，提高泛化能力"),
        how=("The largest learning rate that trains, with LayerNorm and without; the gap at matched training loss", "有无 LayerNorm 时能训练的最大学习率；训练损失相同时的差距"),
        designs=("rates", "matched-gap"),
        checks=(
            Check(quantity="largest rate, adam", least=0.0, margin=0.3, what=("log10 of the largest rates, LayerNorm over none", "最大学习率之比的对数 log10，LayerNorm 比无归一化")),
            Check(quantity="layer, gap", against="none, gap", most=0.0, margin=0.02, core=False, what=("gap with LayerNorm minus without, nats per image", "有 LayerNorm 减没有的差距，奈特/图像")),
        ),
    ),
    Claim(
        id="C46", source="S1", kind="exact",
        says=("RMSNorm scales by the root of the mean square of the features", "RMSNorm 用特征平方均值的平方根做缩放"),
        how=("Against the formula written out number by number", "与逐个数写出的公式对照"),
        measure=moments.formula,
        checks=(Check(quantity="rms_against_formula", most=1e-12, what=("largest difference", "最大差")),),
    ),
)  # fmt: skip
