"""S4: why text does without BatchNorm, and where LayerNorm puts its vectors (C84 to C98)."""

from __future__ import annotations

from ..claim import Check, Claim
from ..exact import axes, moments, sphere, tokens

POWER = ("Shen et al. 2020 (abstract): PowerNorm beats LayerNorm by 0.4 and 0.6 BLEU on IWSLT14 and WMT14. Yang et al. 2022 (arXiv 2210.05153) find regularized BatchNorm at least as good as LayerNorm in 17 of 20 settings.",
         "Shen 等 2020（摘要）：PowerNorm 在 IWSLT14、WMT14 上比 LayerNorm 高 0.4、0.6 BLEU。Yang 等 2022（arXiv 2210.05153）：20 组设置里 17 组正则化的 BatchNorm 不差于 LayerNorm。")  # fmt: skip

CLAIMS = (
    Claim(
        id="C84", source="S4", kind="empirical",
        says=("Vision mostly uses BatchNorm, language mostly LayerNorm, and BatchNorm does very badly on language", "视觉多用 BatchNorm，语言多用 LayerNorm，BatchNorm 在语言任务上表现很差"),
        how=("The same pre-norm Transformer on text (next byte, hidden bytes, docstrings) and digits, each norm at its best rate", "同样的前置归一化 Transformer，文本（下一个字节、遮住的字节、文档字符串）与手写数字，各取最佳学习率"),
        designs=("text-and-images", "hidden-bytes", "position"),
        checks=(
            Check(quantity="text, batch", against="text, layer", least=0.0, margin=0.02, what=("text: BatchNorm minus LayerNorm, nats per byte", "文本：BatchNorm 减 LayerNorm，奈特/字节")),
            Check(quantity="digits, batch", against="digits, layer", most=0.0, margin=0.02, core=False, what=("digits: BatchNorm minus LayerNorm, nats per image", "手写数字：BatchNorm 减 LayerNorm，奈特/图像")),
            Check(quantity="hidden bytes, batch", against="hidden bytes, layer", least=0.0, margin=0.02, core=False, what=("hidden bytes: BatchNorm minus LayerNorm, nats per byte", "遮住的字节：BatchNorm 减 LayerNorm，奈特/字节")),
            Check(quantity="docs, batch", against="docs, layer", least=0.0, margin=0.05, core=False, what=("docstrings: BatchNorm minus LayerNorm, nats per document", "文档字符串：BatchNorm 减 LayerNorm，奈特/文档")),
        ),
        literature=("The authors of UN report 31.1 BLEU for BatchNorm and 35.3 for LayerNorm on IWSLT14.", "UN 的作者报告 IWSLT14 上 BatchNorm 31.1、LayerNorm 35.3 BLEU。"),
    ),
    Claim(
        id="C85", source="S4", kind="empirical",
        says=("On text batch statistics lie far further from their running average than on images", "文本任务的批统计量离运行平均远得多，图像则不然"),
        how=("Distance of batch means from running ones in units of the deviation, in the same BatchNorm Transformer: text over digits", "同样的 BatchNorm Transformer 里，批均值与运行均值的距离（以标准差计）：文本比手写数字"),
        designs=("text-and-images",),
        checks=(
            Check(quantity="drift of the mean, text over digits", least=0.0, what=("log2 of the distance of means, text over digits", "均值距离之比的对数 log2，文本比手写数字")),
            Check(quantity="drift of the mean, text over digits", least=1.0, core=False, what=("log2 of the distance of means, text over digits (far further: at least twofold)", "均值距离之比的对数 log2，文本比手写数字（“远得多”：至少两倍）")),
        ),
        literature=("Shen et al. 2020 (abstract): statistics of language data fluctuate strongly across batches.", "Shen 等 2020（摘要）：语言数据的统计量在批之间波动很大。"),
    ),
    Claim(
        id="C86", source="S4", kind="empirical",
        says=("The mismatch between training and inference then hurts BatchNorm badly", "训练与推理的不一致严重影响 BatchNorm 的性能"),
        how=("Held-out loss of a trained BatchNorm Transformer under running and under batch statistics", "训练好的 BatchNorm Transformer，留出损失：用运行统计量与用批统计量"),
        designs=("inference-gap",),
        checks=(
            Check(quantity="running statistics", against="batch statistics", least=0.0, margin=0.05, what=("hidden bytes: loss with running minus with batch statistics, nats per byte", "遮住的字节：用运行统计量减用批统计量的损失，奈特/字节")),
            Check(quantity="digits, running statistics", against="digits, batch statistics", most=0.05, core=False, what=("digits beside it, nats per image (a fault of text: at most 0.05)", "对照手写数字，奈特/图像（若只是文本的问题，至多 0.05）")),
        ),
        literature=("Yang et al. 2022 (arXiv 2210.05153) make this mismatch the cause of BatchNorm's weakness on text.", "Yang 等 2022（arXiv 2210.05153）认为这一不一致是 BatchNorm 在文本上变弱的原因。"),
    ),
    Claim(
        id="C87", source="S4", kind="empirical",
        says=("The gradients through mean and variance fluctuate with far outliers and make training unstable", "均值和方差的梯度贡献大幅波动、离群点多，不利于稳定训练"),
        how=("Norms of both gradients over training, text against digits: 99 % quantile over median", "训练过程中两项梯度的模长，文本对手写数字：99 % 分位数比中位数"),
        designs=("gradients-of-statistics",),
        checks=(
            Check(quantity="outliers of gradients, text over digits", least=0.0, what=("log2 of quantile over median, text over digits", "分位数比中位数之比的对数 log2，文本比手写数字")),
            Check(quantity="outliers of gradients, text", least=1.0, core=False, what=("text alone: log2 of quantile over median (far: at least twofold)", "单看文本：分位数比中位数的对数 log2（“离群”：至少两倍）")),
        ),
    ),
    Claim(
        id="C88", source="S4", kind="exact",
        says=("For (B, L, d) BatchNorm takes statistics per feature over the batch and its tokens", "对 (B, L, d)，BatchNorm 对每一维在批内所有样本、所有词元上统计"),
        how=("One value of a (3, 5, 11) tensor is moved", "在 (3, 5, 11) 的张量里改动一个值"),
        measure=axes.text,
        checks=(
            Check(quantity="batch_cells", least=15, most=15, what=("values that share a statistic (B·L = 15)", "共用统计量的元素数（B·L = 15）")),
            Check(quantity="batch_features", least=1, most=1, what=("features among them", "涉及的特征数")),
        ),
    ),
    Claim(
        id="C89", source="S4", kind="empirical",
        says=("[PAD] brings invalid values into the statistics and adds fluctuation", "[PAD] 给统计量引入无效信息，加剧波动"),
        how=("Mean and deviation with a third of padding counted, against real tokens alone; the same under a mask with more padding; and, in training, how far batch means lie from their average", "把三分之一的填充算进去的均值和标准差，与只算真实词元相比；加掩码后再添填充；以及训练中批均值离其平均的距离"),
        measure=tokens.padding,
        designs=("batch-statistics",),
        checks=(
            Check(quantity="mean_moved", least=0.1, what=("how far the mean moves, in deviations", "均值移动多少个标准差")),
            Check(quantity="deviation_changed", least=0.01, what=("relative change of the deviation", "标准差的相对变化")),
            Check(quantity="masked_and_longer", least=1e-9, core=False, what=("with a mask, change by more padding (harm that no mask mends: above 0)", "加掩码后再添填充引起的变化（若掩码也救不了则大于 0）")),
            Check(quantity="drift, padded over real", least=0.0, margin=0.02, core=False, what=("fluctuation: log2 of the mean's distance, padding counted over left out", "波动：均值距离之比的对数 log2，算填充比不算填充")),
        ),
    ),
    Claim(
        id="C90", source="S4", kind="exact",
        says=("BatchNorm is by nature unfit for language models", "BatchNorm 天然不适合语言模型"),
        how=("Gradient of a token's output with respect to later tokens: BatchNorm in training and in evaluation, LayerNorm", "一个词元的输出对后面词元的梯度：训练与评估时的 BatchNorm，LayerNorm"),
        measure=tokens.future,
        checks=(
            Check(quantity="batch", least=1e-3, what=("BatchNorm in training: gradient from the future", "训练时 BatchNorm：来自后文的梯度")),
            Check(quantity="layer", most=0.0, what=("LayerNorm: gradient from the future", "LayerNorm：来自后文的梯度")),
            Check(quantity="batch_in_evaluation", least=1e-9, core=False, what=("BatchNorm in evaluation: gradient from the future (unfit always: above 0)", "评估时 BatchNorm：来自后文的梯度（若总不适合则大于 0）")),
        ),
    ),
    Claim(
        id="C91", source="S4", kind="exact",
        says=("BatchNorm erases the differences between tokens that we need", "BatchNorm 会抹平我们需要的词元之间的差异"),
        how=("The input computed back from BatchNorm's output in evaluation; differences between two tokens in training", "评估时由 BatchNorm 的输出算回输入；训练时两个词元之差"),
        measure=sphere.information,
        checks=(
            Check(quantity="recovered_from_batch", least=1e-6, what=("error of the input computed back (erased: above 0)", "算回输入的误差（若被抹去则大于 0）")),
            Check(quantity="differences_kept_by_batch", least=1e-6, what=("error of a difference between tokens, up to each feature's scale", "词元之差的误差（按各特征的尺度）")),
        ),
    ),
    Claim(
        id="C92", source="S4", kind="empirical",
        says=("Any statistic over the batch axis destroys what is needed, so such norms must lose", "任何包含批维度的统计都会抹平有用信息，这类方法必然更差"),
        how=("PowerNorm, whose statistics span the batch, against LayerNorm on text, next byte and hidden bytes", "PowerNorm（统计跨批）与 LayerNorm 在文本上相比，下一个字节与遮住的字节"),
        designs=("text-and-images", "hidden-bytes"),
        checks=(
            Check(quantity="text, power", against="text, layer", least=0.0, margin=0.03, what=("PowerNorm minus LayerNorm, nats per byte", "PowerNorm 减 LayerNorm，奈特/字节")),
            Check(quantity="hidden bytes, power", against="hidden bytes, layer", least=0.0, margin=0.03, what=("hidden bytes: PowerNorm minus LayerNorm, nats per byte", "遮住的字节：PowerNorm 减 LayerNorm，奈特/字节")),
        ),
        literature=POWER,
    ),
    Claim(
        id="C93", source="S4", kind="exact",
        says=("LayerNorm in code: variance = mean(square(x))", "LayerNorm 的代码：variance = mean(square(x))"),
        how=("(x - mean) / sqrt(mean(x^2)) on rows of mean 3 and deviation 1: variance of the output", "均值 3、标准差 1 的行上算 (x − 均值) / √(mean(x²))：输出的方差"),
        measure=moments.without_centring,
        checks=(
            Check(quantity="variance", least=0.99, most=1.01, what=("variance of the output (LayerNorm's: 1; theory for this code: 0.1)", "输出的方差（LayerNorm 为 1；此代码的理论值 0.1）")),
        ),
    ),
    Claim(
        id="C94", source="S4", kind="exact",
        says=("LayerNorm does not mix tokens", "LayerNorm 的词元之间互不干扰"),
        how=("One value of a (3, 5, 11) tensor is moved: tokens whose outputs move", "在 (3, 5, 11) 的张量里改动一个值，看哪些词元的输出跟着变"),
        measure=axes.text,
        checks=(
            Check(quantity="token_positions", least=1, most=1, what=("positions that move", "跟着变的位置数")),
            Check(quantity="token_samples", least=1, most=1, what=("samples that move", "跟着变的样本数")),
        ),
    ),
    Claim(
        id="C95", source="S4", kind="exact",
        says=("So LayerNorm loses no information", "因此 LayerNorm 不会造成信息损失"),
        how=("Rank of LayerNorm's Jacobian at width 16; two inputs that differ in scale and mean alone", "宽 16 时 LayerNorm 雅可比矩阵的秩；只差尺度和均值的两个输入"),
        measure=sphere.information,
        checks=(
            Check(quantity="rank_of_layer", least=16, most=16, what=("rank of the Jacobian, of 16", "雅可比矩阵的秩，满秩为 16")),
            Check(quantity="told_apart_by_layer", least=1e-6, what=("difference between the outputs of x and 3.7 x - 2.1", "x 与 3.7x − 2.1 的输出之差")),
        ),
    ),
    Claim(
        id="C96", source="S4", kind="exact",
        says=("LayerNorm puts every embedding on the sphere of radius 1 around the origin", "LayerNorm 把嵌入向量约束在以原点为中心、半径为 1 的超球面上"),
        how=("Lengths after LayerNorm without gain and bias at widths 8, 64 and 768", "宽 8、64、768 时不带增益偏置的 LayerNorm 输出的长度"),
        measure=sphere.radius,
        checks=(
            Check(quantity="radius_64", least=0.99, most=1.01, what=("radius at width 64 (sqrt(64) = 8)", "宽 64 时的半径（√64 = 8）")),
            Check(quantity="radius_768", least=0.99, most=1.01, what=("radius at width 768 (sqrt(768) = 27.7)", "宽 768 时的半径（√768 = 27.7）")),
        ),
        literature=("Brody et al. 2023 (arXiv 2305.02582): the sphere lies in the hyperplane of vectors without a mean; gain makes it an ellipsoid, bias shifts it.", "Brody 等 2023（arXiv 2305.02582）：球面位于均值为零的超平面内；增益使它变成椭球，偏置使它平移。"),
    ),
    Claim(
        id="C97", source="S4", kind="exact",
        says=("They form a ball that gets sparser away from that sphere", "形成越远离超球面越稀疏的球体空间"),
        how=("Spread of the lengths after LayerNorm without gain and bias", "不带增益偏置的 LayerNorm 输出长度的离散程度"),
        measure=sphere.radius,
        checks=(Check(quantity="spread_64", least=1e-6, what=("relative spread of the lengths (a ball: above 0)", "长度的相对离散（若是球体则大于 0）")),),
    ),
    Claim(
        id="C98", source="S4", kind="empirical",
        says=("That helps the analysis of similarity", "这一特性便于做相似性分析"),
        how=("Cosines after LayerNorm against Pearson's correlation; nearest neighbours by cosine and by distance, without and with gain and bias", "LayerNorm 之后的余弦与皮尔逊相关对照；不带与带增益偏置时按余弦和按距离的最近邻"),
        measure=sphere.similarity,
        designs=("inside",),
        checks=(
            Check(quantity="cosine_against_pearson", most=1e-12, what=("cosine against the correlation of the inputs", "余弦与输入相关系数之差")),
            Check(quantity="same_neighbours", least=1.0, what=("share of tokens with the same neighbour by both", "两种最近邻相同的比例")),
            Check(quantity="same_neighbours_with_gain", least=1.0, core=False, what=("share of tokens with the same neighbour by both, with gain and bias", "带增益偏置时，两种最近邻相同的比例")),
            Check(quantity="neighbours kept", least=0.5, core=False, what=("trained: share of a token's five neighbours that are the same before and after a norm", "训练后：一个词元的五个近邻在归一化前后相同的比例")),
        ),
    ),
)  # fmt: skip
