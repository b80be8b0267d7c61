"""S2, first half: LayerNorm's formula, its independence, its place and its numerics (C47 to C51, C57 to C63, C65, C67)."""

from __future__ import annotations

from ..claim import Check, Claim
from ..exact import axes, cost, moments, structure, tokens

CLAIMS = (
    Claim(
        id="C47", source="S2", kind="exact",
        says=("LayerNorm works along the features of each position, with the biased variance 1/d", "LayerNorm 在每个位置的特征维上做归一化，方差用有偏的 1/d"),
        how=("Values that share a statistic; the layer against the formula with 1/d and with 1/(d - 1)", "共用统计量的元素；与用 1/d 和 1/(d − 1) 的公式分别对照"),
        measure=lambda: {**axes.text(), **moments.formula()},
        checks=(
            Check(quantity="token_cells", least=11, most=11, what=("values that share a statistic (features: 11)", "共用统计量的元素数（特征数 11）")),
            Check(quantity="layer_against_formula", most=1e-12, what=("difference from the formula with 1/d", "与 1/d 公式之差")),
            Check(quantity="layer_against_unbiased", least=1e-3, what=("difference from the formula with 1/(d - 1)", "与 1/(d − 1) 公式之差")),
        ),
    ),
    Claim(
        id="C48", source="S2", kind="exact",
        says=("LayerNorm depends neither on other samples nor on the batch size", "LayerNorm 不依赖批内其他样本，也不受批大小影响"),
        how=("A sample alone against the same in its batch, and batches in another order, in float64", "float64 下，样本单独算与在批里算相比，并打乱批的次序"),
        measure=tokens.independence,
        checks=(
            Check(quantity="layer_alone", most=0.0, what=("largest difference alone", "单独算的最大差")),
            Check(quantity="layer_permuted", most=0.0, what=("largest difference in another order", "换次序的最大差")),
        ),
    ),
    Claim(
        id="C49", source="S2", kind="exact",
        says=("y = gamma (x - mu) / sqrt(sigma^2 + eps) + beta", "y = γ ⊙ (x − μ) / √(σ² + ε) + β"),
        how=("Layer and gradient against the formula written out", "层与梯度同写出的公式对照"),
        measure=moments.formula,
        checks=(
            Check(quantity="layer_against_formula", most=1e-12, what=("largest difference of the output", "输出的最大差")),
            Check(quantity="gradient", most=1e-10, what=("largest difference of the gradient", "梯度的最大差")),
        ),
    ),
    Claim(
        id="C50", source="S2", kind="exact",
        says=("eps, usually 1e-5 or 1e-6, is there to avoid a division by zero", "ε（通常 1e-5 或 1e-6）用于防止除以零"),
        how=("A constant row with and without eps; torch's default; rows of size 1e-3", "常数行加与不加 eps；torch 的默认值；大小为 1e-3 的行"),
        measure=moments.eps,
        checks=(
            Check(quantity="largest_of_constant", most=1e-9, what=("largest output of a constant row with eps", "常数行加 eps 的最大输出")),
            Check(quantity="finite_without_eps", most=0.0, what=("share of finite outputs without eps", "不加 eps 时有限输出的比例")),
            Check(quantity="default_of_torch", least=0.99e-6, most=1.01e-5, what=("torch's default", "torch 的默认值")),
            Check(quantity="deviation_of_small_rows", least=0.99, core=False, what=("deviation of normalized rows of size 1e-3 (if eps did nothing else: 1)", "大小 1e-3 的行归一化后的标准差（若 eps 别无作用应为 1）")),
        ),
        literature=("The reference code of RMSNorm adds 1e-8 outside the root.", "RMSNorm 的参考代码把 1e-8 加在根号之外。"),
    ),
    Claim(
        id="C51", source="S2", kind="exact",
        says=("gamma starts at 1, beta at 0", "γ 初始为 1，β 初始为 0"),
        how=("Parameters of fresh layers, ours and torch's", "新建的层的参数，normlab 与 torch"),
        measure=moments.start,
        checks=(
            Check(quantity="least_gain", least=1, most=1, what=("smallest gain", "最小的增益")),
            Check(quantity="largest_gain", least=1, most=1, what=("largest gain", "最大的增益")),
            Check(quantity="largest_bias", least=0, most=0, what=("largest bias", "最大的偏置")),
        ),
        literature=("Gemma stores the gain minus 1, which starts at 0; the factor is 1 all the same.", "Gemma 存的是增益减 1，从 0 开始；乘上去的系数同样是 1。"),
    ),
    Claim(
        id="C57", source="S2", kind="exact",
        says=("Residual sums make values grow; LayerNorm brings the range back", "残差连接使数值范围逐渐增大，LayerNorm 把它拉回合理区间"),
        how=("Mean square of the stream over 24 layers at the start: no norm, post-norm, pre-norm", "训练开始时 24 层残差流的均方：无归一化、后置、前置"),
        measure=structure.stream_growth,
        checks=(
            Check(quantity="growth_none", least=2.0, what=("growth without a norm", "无归一化时的增长倍数")),
            Check(quantity="growth_post", most=1.1, what=("growth with post-norm", "后置归一化的增长倍数")),
            Check(quantity="growth_pre", most=1.1, core=False, what=("growth with pre-norm, whose stream is not normalized", "前置归一化的增长倍数（残差流不经归一化）")),
        ),
        literature=("Xiong et al. 2020, Lemma 2: with Pre-LN the mean square after l layers lies between 1 + l/2 and 1 + 3l/2.", "Xiong 等 2020 引理 2：Pre-LN 经 l 层后均方在 1 + l/2 与 1 + 3l/2 之间。"),
    ),
    Claim(
        id="C58", source="S2", kind="exact",
        says=("LayerNorm does not depend on the length of the sequence", "LayerNorm 不受序列长度影响"),
        how=("Cut sequences against the whole, in float64", "float64 下，截断的序列与完整序列相比"),
        measure=tokens.independence,
        checks=(Check(quantity="layer_cut", most=0.0, what=("largest difference", "最大差")),),
    ),
    Claim(
        id="C59", source="S2", kind="exact",
        says=("LayerNorm works with a batch of 1 and needs no running statistics; BatchNorm needs them", "LayerNorm 批大小为 1 也能工作，不需要运行统计量；BatchNorm 需要"),
        how=("A batch of one token; buffers of both layers", "只有一个词元的批；两种层的缓冲区"),
        measure=tokens.batch_of_one,
        checks=(
            Check(quantity="layer_finite", least=1, what=("LayerNorm of one token is finite", "LayerNorm 对一个词元的输出有限")),
            Check(quantity="buffers_of_layer", most=0, what=("buffers of LayerNorm", "LayerNorm 的缓冲区数")),
            Check(quantity="running_of_batch", least=1, what=("running statistics of BatchNorm", "BatchNorm 的运行统计量数")),
            Check(quantity="batch_refuses", least=1, what=("BatchNorm refuses one token in training", "训练时 BatchNorm 拒绝只有一个词元的批")),
        ),
    ),
    Claim(
        id="C60", source="S2", kind="exact",
        says=("BatchNorm's normalized dimension is the batch dimension", "BatchNorm 的归一化维度是批维度"),
        how=("One value of a (3, 5, 11) tensor is moved: samples and positions that share the statistic", "在 (3, 5, 11) 的张量里改动一个值，看哪些样本、位置共用统计量"),
        measure=axes.text,
        checks=(
            Check(quantity="batch_samples", least=3, most=3, what=("samples, of 3", "样本数，共 3 个")),
            Check(quantity="batch_positions", least=1, most=1, core=False, what=("positions (batch dimension alone: 1)", "位置数（若只有批维度应为 1）")),
        ),
    ),
    Claim(
        id="C61", source="S2", kind="exact",
        says=("LayerNorm is easy to run in parallel since samples are independent", "LayerNorm 每个样本独立计算，易于并行"),
        how=("A batch cut into two halves that know nothing of each other: bits of LayerNorm and of BatchNorm", "把批切成互不知情的两半：LayerNorm 与 BatchNorm 的结果"),
        measure=tokens.independence,
        checks=(
            Check(quantity="layer_in_halves", most=0.0, what=("LayerNorm, largest difference", "LayerNorm 的最大差")),
            Check(quantity="batch_in_halves", least=1e-3, what=("BatchNorm, largest difference (needs a sum over processes)", "BatchNorm 的最大差（需要跨进程求和）")),
        ),
    ),
    Claim(
        id="C62", source="S2", kind="definition",
        says=("In Transformers LayerNorm usually stands after the residual sum (Post-LN)", "Transformer 里层归一化通常放在残差连接之后（Post-LN）"),
        how=("Placements of 138 architectures, found by their data flow (docs/en/inspect.md)", "138 种架构的归一化位置，由数据流得出（docs/zh/inspect.md）"),
        measure=structure.placements_in_the_wild,
        checks=(Check(quantity="share_of_post", least=0.5, what=("share of post-norm among 138 architectures", "138 种架构中后置归一化的比例")),),
    ),
    Claim(
        id="C63", source="S2", kind="exact",
        says=("A layer applies the same layer_norm twice, as its pseudocode has it", "每层两次用的是同一个 layer_norm（伪代码如此）"),
        how=("Gains of a layer counted, ours and torch's", "数一层里的增益，normlab 与 torch"),
        measure=structure.counts,
        checks=(
            Check(quantity="gains_per_layer", least=1, most=1, what=("gains of a layer", "一层的增益个数")),
            Check(quantity="gains_per_layer_of_torch", least=1, most=1, what=("gains of torch's layer", "torch 一层的增益个数")),
        ),
    ),
    Claim(
        id="C65", source="S2", kind="exact",
        says=("The variance needs a stable algorithm; underflow must be avoided, in double where needed", "方差要用稳定的算法，避免下溢，必要时用双精度"),
        how=("float32 rows of mean 1e4 and deviation 1: E[x^2] - E[x]^2 against two passes; 4096 fives squared and summed in float16", "均值 1e4、标准差 1 的 float32 行：E[x²] − E[x]² 与两遍算法；4096 个 5 的平方在 float16 里求和"),
        measure=moments.one_pass,
        checks=(
            Check(quantity="one_pass_error", least=0.5, what=("relative error of one pass", "一遍算法的相对误差")),
            Check(quantity="two_pass_error", most=0.3, what=("relative error of two passes in float32", "float32 两遍算法的相对误差")),
            Check(quantity="float16_sum_of_squares_finite", most=0, what=("is the float16 sum finite (overflow, not only underflow)", "float16 的和是否有限（不只下溢，还会上溢）")),
        ),
    ),
    Claim(
        id="C67", source="S2", kind="exact",
        says=("LayerNorm costs O(B L d)", "LayerNorm 的计算复杂度是 O(B·L·d)"),
        how=("Values written by the operators of its formula when B, L or d is doubled", "B、L 或 d 加倍时，公式各算子写出的元素数"),
        measure=cost.linear,
        checks=tuple(
            Check(quantity=f"growth_{axis}", least=0.99, most=1.01, what=(f"growth with {axis}, log2 (linear: 1)", f"随 {axis} 的增长，log2（线性为 1）"))
            for axis in "BLd"
        ),
    ),
)  # fmt: skip
