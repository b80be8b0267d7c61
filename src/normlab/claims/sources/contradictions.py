"""Where the documents contradict each other, or themselves. What is tested is the first side: where it does not hold, the second may."""

from __future__ import annotations

from ..claim import Check, Claim, Fact
from ..exact import axes, moments, sphere, structure, tokens

CLAIMS = (
    Claim(
        id="X1", source="S0 S1 S3 / S2 S4", kind="exact",
        says=("Axes of LayerNorm: all values of a sample (S0, S1, S3), against the features of each position (S2, S4). The first is right for Transformers",
              "LayerNorm 的轴：一个样本的全部数值（S0、S1、S3），还是每个位置的特征（S2、S4）。对 Transformer，前者正确"),
        how=("One value of a (3, 5, 11) tensor is moved", "在 (3, 5, 11) 的张量里改动一个值"),
        measure=axes.text,
        checks=(Check(quantity="token_cells", least=55, most=55, what=("values that share a statistic (a sample: 55, a position: 11)", "共用统计量的元素数（样本 55，位置 11）")),),
    ),
    Claim(
        id="X2", source="S1 / S4", kind="exact",
        says=("Axes of BatchNorm on text: the same position of all samples (S1), against all samples and tokens (S4). The first is right",
              "文本上 BatchNorm 的轴：各样本的同一位置（S1），还是所有样本的所有词元（S4）。前者正确"),
        how=("One value of a (3, 5, 11) tensor is moved", "在 (3, 5, 11) 的张量里改动一个值"),
        measure=axes.text,
        checks=(Check(quantity="batch_cells", least=3, most=3, what=("values that share a statistic (one position: 3, all tokens: 15)", "共用统计量的元素数（同一位置 3，所有词元 15）")),),
    ),
    Claim(
        id="X3", source="S1 / S1", kind="exact",
        says=("Which norm works across samples: BatchNorm (S1, first paragraph), against LayerNorm (S1, a later note). The first is right",
              "哪种归一化跨样本：BatchNorm（S1 前文），还是 LayerNorm（S1 后文的注）。前者正确"),
        how=("How many samples share a statistic", "有多少样本共用统计量"),
        measure=axes.text,
        checks=(
            Check(quantity="batch_samples", least=3, most=3, what=("BatchNorm: samples, of 3", "BatchNorm：样本数，共 3 个")),
            Check(quantity="token_samples", least=1, most=1, what=("LayerNorm: samples", "LayerNorm：样本数")),
        ),
    ),
    Claim(
        id="X4", source="S2 / S4", kind="exact",
        says=("LayerNorm's variance: of the centred values (S2), against the mean of the squares (S4's code). The first is right",
              "LayerNorm 的方差：对减去均值后的值（S2），还是平方的均值（S4 的代码）。前者正确"),
        how=("The layer against both, on rows of mean 3 and deviation 1", "均值 3、标准差 1 的行上与两者对照"),
        measure=lambda: {**moments.without_centring(), **{f"formula_{k}": v for k, v in moments.formula().items()}},
        checks=(
            Check(quantity="formula_layer_against_formula", most=1e-12, what=("layer against the centred formula", "层与减均值的公式之差")),
            Check(quantity="variance", most=0.5, what=("output variance with the mean of the squares", "用平方均值时输出的方差")),
        ),
    ),
    Claim(
        id="X5", source="S0 / S1", kind="empirical",
        says=("Depth against width: depth matters more (S0), against a negligible difference (S1). The first is right",
              "深度与宽度：深度更重要（S0），还是差别可忽略（S1）。前者正确"),
        how=("As C21: eight layers of width 48 minus two of width 96", "同 C21：八层宽 48 减两层宽 96"),
        designs=("depth-or-width",),
        checks=(Check(quantity="deep", against="wide", most=0.0, margin=0.05, what=("8 x 48 minus 2 x 96, nats per byte", "8 × 48 减 2 × 96，奈特/字节")),),
    ),
    Claim(
        id="X6", source="S0 / S0 S2", kind="empirical",
        says=("Convergence: post-norm converges better (S0), against pre-norm trains more easily and stably (S0 two lines later, S2). The first is right",
              "收敛：后置归一化收敛更好（S0），还是前置归一化更容易、更稳定（S0 两行之后、S2）。前者正确"),
        how=("As C17: eight layers without warm-up, post minus pre", "同 C17：八层不预热，后置减前置"),
        designs=("warm-up",),
        checks=(Check(quantity="post, no warm-up", against="pre, no warm-up", most=0.0, margin=0.05, what=("post minus pre, nats per byte", "后置减前置，奈特/字节")),),
    ),
    Claim(
        id="X7", source="S2 S3 / S0 S1", kind="definition",
        says=("The usual place of the norm: after the sum or before the activation (S2, S3), against pre-norm in large models (S0, S1). The first is right",
              "归一化通常的位置：求和之后或激活函数之前（S2、S3），还是大模型用前置（S0、S1）。前者正确"),
        how=("Placements of 138 architectures (docs/en/inspect.md)", "138 种架构的归一化位置（docs/zh/inspect.md）"),
        measure=structure.placements_in_the_wild,
        checks=(Check(quantity="share_of_post", least=0.5, what=("share of post-norm (pre-norm: 58 %)", "后置归一化的比例（前置为 58 %）")),),
    ),
    Claim(
        id="X8", source="S1 S4 / S4", kind="exact",
        says=("Information: LayerNorm keeps it and BatchNorm erases it (S1, S4), against LayerNorm confines to a sphere (S4 itself). The first is right",
              "信息：LayerNorm 保留、BatchNorm 抹去（S1、S4），还是 LayerNorm 限制到球面（S4 自己）。前者正确"),
        how=("Ranks of both Jacobians at width 16, BatchNorm in evaluation", "宽 16 时两者雅可比矩阵的秩，BatchNorm 取评估模式"),
        measure=sphere.information,
        checks=(
            Check(quantity="rank_of_layer", least=16, most=16, what=("LayerNorm: rank, of 16", "LayerNorm：秩，满秩 16")),
            Check(quantity="rank_of_batch_in_evaluation", most=15, what=("BatchNorm: rank, of 16", "BatchNorm：秩，满秩 16")),
        ),
    ),
    Claim(
        id="X9", source="S0 S2 / S3", kind="exact",
        says=("Regularization: LayerNorm regularizes (S0, S2), against LayerNorm takes away BatchNorm's noise, which is what regularizes (S3). LayerNorm brings noise of its own",
              "正则化：LayerNorm 有正则化作用（S0、S2），还是 LayerNorm 去掉了 BatchNorm 起正则化作用的噪声（S3）。LayerNorm 自带噪声"),
        how=("How a sample's result changes with the batch it comes in: LayerNorm and BatchNorm", "同一样本放进不同的批，结果变多少：LayerNorm 与 BatchNorm"),
        measure=tokens.independence,
        checks=(Check(quantity="layer_alone", least=1e-9, what=("LayerNorm: change by the batch (noise: above 0)", "LayerNorm：随批的变化（若有噪声则大于 0）")),),
        literature=("Whether the gap at matched training loss is smaller is C2.", "训练损失相同时差距是否更小，见 C2。"),
    ),
    Claim(
        id="X10", source="S2 S3 S1 / S4", kind="empirical",
        says=("Why BatchNorm fails on text: padding and length (S1), against fluctuation of the statistics (S4). Padding is what makes the statistics fluctuate",
              "BatchNorm 在文本上为何不行：填充与长度（S1），还是统计量的波动（S4）。波动来自填充"),
        how=("Text without any padding against digits: distance of batch means from running ones", "完全没有填充的文本对手写数字：批均值与运行均值的距离"),
        designs=("text-and-images",),
        checks=(Check(quantity="drift of the mean, text over digits", most=0.0, what=("log2 of the distance, text without padding over digits (if padding were all: 0 or less)", "距离之比的对数 log2，无填充的文本比手写数字（若全因填充，应不大于 0）")),),
    ),
    Claim(
        id="X11", source="S4 / S1", kind="empirical",
        says=("How bad BatchNorm is on text: defective by nature (S4), against worse (S1). Every norm over tokens loses clearly, PowerNorm included",
              "BatchNorm 在文本上有多差：天然缺陷（S4），还是较差（S1）。凡跨词元的归一化都明显更差，PowerNorm 也不例外"),
        how=("BatchNorm and PowerNorm against LayerNorm on text", "文本上 BatchNorm、PowerNorm 与 LayerNorm 相比"),
        designs=("text-and-images",),
        checks=(
            Check(quantity="text, batch", against="text, layer", least=0.0, margin=0.1, what=("BatchNorm minus LayerNorm, nats per byte", "BatchNorm 减 LayerNorm，奈特/字节")),
            Check(quantity="text, power", against="text, layer", least=0.0, margin=0.1, what=("PowerNorm minus LayerNorm, nats per byte", "PowerNorm 减 LayerNorm，奈特/字节")),
        ),
    ),
    Claim(
        id="X12", source="S2 / S3", kind="definition",
        says=("Internal covariate shift: over training (S2), against over depth (S3). The first is right", "内部协变量偏移：随训练（S2），还是随深度（S3）。前者正确"),
        how=("The definition of the paper that coined the word", "提出该词的论文的定义"),
        facts=(Fact(what=("a change during training, because parameters below change", "训练过程中因下方参数变化而变化"), source="Ioffe and Szegedy 2015, arXiv 1502.03167, abstract", agrees=True),),
    ),
    Claim(
        id="X13", source="S2 / S2", kind="exact",
        says=("eps: 1e-5 (S2), against 1e-5 or 1e-6 (S2, later). The default is 1e-5", "ε：1e-5（S2），还是 1e-5 或 1e-6（S2 后文）。默认值是 1e-5"),
        how=("Defaults of torch's LayerNorm and BatchNorm", "torch 的 LayerNorm 与 BatchNorm 的默认值"),
        measure=moments.eps,
        checks=(Check(quantity="default_of_torch", least=0.99e-5, most=1.01e-5, what=("default of torch's LayerNorm", "torch 的 LayerNorm 的默认值")),),
    ),
)  # fmt: skip
