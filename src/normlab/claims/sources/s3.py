"""S3: words, history, and what may be normalized together (C72 to C83)."""

from __future__ import annotations

from ..claim import Check, Claim, Fact
from ..exact import axes, moments, sphere

CLAIMS = (
    Claim(
        id="C72", source="S3", kind="exact",
        says=("Norm here means normalization, not a vector norm", "这里的 Norm 是归一化的缩写，不是范数"),
        how=("LayerNorm, RMSNorm and ScaleNorm against sqrt(d) x / |x|, LayerNorm after centring", "LayerNorm（去均值后）、RMSNorm、ScaleNorm 与 √d·x/|x| 对照"),
        measure=sphere.vector_norm,
        facts=(Fact(what=("The papers' titles say Batch Normalization and Layer Normalization", "论文题目写的是 Batch Normalization 与 Layer Normalization"), source="arXiv 1502.03167, 1607.06450", agrees=True),),
        checks=(
            Check(quantity="layer", least=1e-6, core=False, what=("LayerNorm: distance from a division by a vector norm", "LayerNorm：与除以向量范数之差")),
            Check(quantity="rms", least=1e-6, core=False, what=("RMSNorm: distance from a division by a vector norm", "RMSNorm：与除以向量范数之差")),
        ),
    ),
    Claim(
        id="C73", source="S3", kind="exact",
        says=("Normalization scales to 0-1; standardization makes a normal distribution of mean 0 and variance 1", "归一化缩放到 0–1；标准化变成均值 0、方差 1 的正态分布"),
        how=("A million values of an exponential distribution, standardized: skew and kurtosis; values of LayerNorm within [0, 1]", "一百万个指数分布的数做标准化，看偏度与峰度；LayerNorm 的输出落在 [0, 1] 的比例"),
        measure=moments.shape_is_kept,
        checks=(
            Check(quantity="skew", least=-0.1, most=0.1, what=("skew after standardizing (normal: 0)", "标准化后的偏度（正态为 0）")),
            Check(quantity="excess_kurtosis", least=-0.2, most=0.2, what=("excess kurtosis (normal: 0)", "超额峰度（正态为 0）")),
            Check(quantity="share_of_layer_norm_in_0_1", least=1.0, core=False, what=("share of LayerNorm's values in [0, 1]", "LayerNorm 的值落在 [0, 1] 的比例")),
        ),
    ),
    Claim(
        id="C74", source="S3", kind="definition",
        says=("BatchNorm is by Ioffe and Szegedy, 2015, against internal covariate shift", "BatchNorm 由 Ioffe 与 Szegedy 于 2015 年提出，针对内部协变量偏移"),
        how=("The paper's title and date", "论文题目与日期"),
        facts=(Fact(what=("Batch Normalization: Accelerating Deep Network Training by Reducing Internal Covariate Shift, February 2015", "论文题目即含“减少内部协变量偏移”，2015 年 2 月"), source="arXiv 1502.03167", agrees=True),),
    ),
    Claim(
        id="C75", source="S3", kind="definition",
        says=("Internal covariate shift means that distributions change with depth, which makes gradients vanish or explode", "内部协变量偏移指分布随层数加深而变化，导致梯度消失或爆炸"),
        how=("The definition of the paper that coined the word", "提出该词的论文的定义"),
        facts=(Fact(what=("It is the change of a layer's input distribution during training, because the parameters below change", "指训练过程中由于下方参数变化，一层的输入分布随之变化"), source="Ioffe and Szegedy 2015, arXiv 1502.03167, abstract", agrees=False),),
    ),
    Claim(
        id="C76", source="S3", kind="definition",
        says=("BatchNorm stands after a convolution or a fully connected layer and before the activation", "BatchNorm 位于卷积层或全连接层之后、激活函数之前"),
        how=("Where the paper puts it", "论文把它放在哪里"),
        facts=(Fact(what=("The paper normalizes Wu + b, immediately before the nonlinearity", "论文对 Wu + b 做归一化，紧接在非线性之前"), source="Ioffe and Szegedy 2015, arXiv 1502.03167, section 3.2", agrees=True),),
    ),
    Claim(
        id="C77", source="S3", kind="exact",
        says=("gamma and beta let the network learn the best way of normalizing", "γ 和 β 让网络学到最佳的归一化方式"),
        how=("A BatchNorm with random gain and bias: mean and deviation of its output, and its correlation with the plain one", "带随机增益和偏置的 BatchNorm：输出的均值、标准差，以及与不带时的相关"),
        measure=moments.affine_only_rescales,
        checks=(
            Check(quantity="mean_as_told", most=1e-9, what=("output mean against the bias", "输出均值与偏置之差")),
            Check(quantity="deviation_as_told", most=1e-9, what=("output deviation against the gain", "输出标准差与增益之差")),
            Check(quantity="correlation", most=0.999, core=False, what=("correlation with the plain norm (another way of normalizing: below 1)", "与不带时的相关（若归一化方式真的变了，应小于 1）")),
        ),
    ),
    Claim(
        id="C78", source="S3", kind="empirical",
        says=("In classical machine learning, scaling or standardizing a feature improves generalization", "传统机器学习里，对特征做归一化或标准化能提高泛化能力"),
        how=("scikit-learn data: logistic regression by SGD, nearest neighbours and a tree, on raw, 0-1 and standardized features", "scikit-learn 数据：SGD 逻辑回归、最近邻、决策树，用原始、0–1、标准化三种特征"),
        designs=("feature-scaling",),
        checks=(
            Check(quantity="logistic, standard", against="logistic, none", least=0.0, margin=0.5, what=("logistic regression: accuracy, standardized minus raw, points", "逻辑回归：标准化减原始的准确率，百分点")),
            Check(quantity="tree, standard", against="tree, none", least=0.0, margin=0.5, core=False, what=("a tree: accuracy, standardized minus raw, points", "决策树：标准化减原始的准确率，百分点")),
        ),
    ),
    Claim(
        id="C79", source="S3", kind="definition",
        says=("LayerNorm is by Ba, Kiros and Hinton, 2016, and aims to reduce internal covariate shift", "LayerNorm 由 Ba、Kiros、Hinton 于 2016 年提出，旨在减少内部协变量偏移"),
        how=("The paper's authors and date", "论文作者与日期"),
        facts=(Fact(what=("Ba, Kiros, Hinton: Layer Normalization, July 2016", "Ba、Kiros、Hinton：Layer Normalization，2016 年 7 月"), source="arXiv 1607.06450", agrees=True),),
    ),
    Claim(
        id="C80", source="S3", kind="exact",
        says=("LayerNorm takes all values of one sample in a layer, needs no batch statistics, and allows smaller batches", "LayerNorm 用单个样本在一层的所有激活值，不依赖批统计量，可用更小的批"),
        how=("One value of a (3, 5, 11) tensor is moved under a Transformer's LayerNorm", "Transformer 的 LayerNorm：在 (3, 5, 11) 的张量里改动一个值"),
        measure=axes.text,
        checks=(
            Check(quantity="token_samples", least=1, most=1, what=("samples that share a statistic", "共用统计量的样本数")),
            Check(quantity="token_cells", least=55, most=55, core=False, what=("values that share it (all of a sample: 55)", "共用它的元素数（一个样本全部为 55）")),
        ),
    ),
    Claim(
        id="C81", source="S3", kind="empirical",
        says=("LayerNorm can be used in any layer, convolutions and recurrent ones included", "LayerNorm 可用于任何层，包括卷积层和循环层"),
        how=("A small convolutional net and a small recurrent one: LayerNorm against none", "小型卷积网络与小型循环网络：LayerNorm 对无归一化"),
        designs=("recurrent", "convolution"),
        checks=(
            Check(quantity="recurrent, layer", against="recurrent, none", most=0.0, margin=0.01, what=("recurrent: LayerNorm minus none, nats per byte", "循环模型：LayerNorm 减无归一化，奈特/字节")),
            Check(quantity="convolution, layer", against="convolution, none", most=0.0, margin=0.02, what=("convolutions: LayerNorm minus none, nats per image", "卷积网络：LayerNorm 减无归一化，奈特/图像")),
        ),
    ),
    Claim(
        id="C82", source="S3", kind="definition",
        says=("Only what is comparable may be normalized together", "参与归一化的数据点必须本质上可比"),
        how=("A maxim without a measure of what is comparable", "一句格言，没有说怎样度量可比"),
        untestable=("It names no quantity: whatever works can be called comparable afterwards. What can be measured of it stands in C30 (what order each norm keeps) and C92 (norms over tokens that do well on text).",
                    "它没有给出可测的量：凡是有效的，事后都可以说成可比。能测的部分见 C30（各种归一化保持什么次序）与 C92（跨词元而在文本上表现好的归一化）。"),
    ),
    Claim(
        id="C83", source="S3", kind="exact",
        says=("In a Transformer every position holds other features, so normalizing across samples loses its meaning", "Transformer 里每个位置的数据代表不同的特征，跨样本归一化会失去意义"),
        how=("Whether a feature is another one at another position: swapping two tokens before a Transformer's matrix, against swapping after it", "不同位置的特征是否不同：在 Transformer 的矩阵之前交换两个词元，与之后交换相比"),
        measure=axes.same_feature_everywhere,
        checks=(Check(quantity="swapped_before_or_after", least=1e-6, what=("difference (features that differ by position: above 0)", "两者之差（若特征随位置不同则大于 0）")),),
    ),
)  # fmt: skip
