"""S1, first half: BatchNorm and LayerNorm, their axes, and why Transformers use the second (C24 to C35)."""

from __future__ import annotations

from ..claim import Check, Claim, Fact
from ..exact import axes, moments

CLAIMS = (
    Claim(
        id="C24", source="S1", kind="exact",
        says=("BatchNorm normalizes one channel over all samples of the batch", "BatchNorm 在批内所有样本的单个通道上做归一化"),
        how=("One value of a (3, 4, 5, 7) tensor is moved: samples and channels whose outputs move", "在 (3, 4, 5, 7) 的张量里改动一个值，看哪些样本、通道的输出跟着变"),
        measure=axes.images,
        checks=(
            Check(quantity="batch_samples", least=3, most=3, what=("samples that share the statistic, of 3", "共用统计量的样本数，共 3 个")),
            Check(quantity="batch_channels", least=1, most=1, what=("channels that share it", "共用它的通道数")),
        ),
    ),
    Claim(
        id="C25", source="S1", kind="empirical",
        says=("BatchNorm suits large batches and most networks, convolutional ones above all", "BatchNorm 适合大批量和大多数网络，尤其是卷积网络"),
        how=("Digits with batches of 32: BatchNorm against LayerNorm, in a Transformer and in a convolutional net", "手写数字，批大小 32：BatchNorm 与 LayerNorm 相比，Transformer 与卷积网络"),
        designs=("small-batches", "convolution"),
        checks=(
            Check(quantity="batch, 32 images", against="layer, 32 images", most=0.0, margin=0.03, what=("BatchNorm minus LayerNorm at 32 images, nats per image", "批大小 32：BatchNorm 减 LayerNorm，奈特/图像")),
            Check(quantity="convolution, batch", against="convolution, layer", most=0.0, margin=0.03, core=False, what=("convolutions: BatchNorm minus LayerNorm, nats per image", "卷积网络：BatchNorm 减 LayerNorm，奈特/图像")),
        ),
    ),
    Claim(
        id="C26", source="S1", kind="empirical",
        says=("Transformers use LayerNorm in order to keep the tokens' positions", "Transformer 用层归一化是为了保留词元的位置信息"),
        how=("A linear probe reads the position from the states of trained models with LayerNorm and with BatchNorm", "训练后分别从 LayerNorm 与 BatchNorm 模型的状态里用线性探针读出位置"),
        designs=("position",),
        checks=(
            Check(quantity="position, layer", against="position, batch", least=0.0, margin=0.05, what=("share of tokens whose position is named after the norms: LayerNorm minus BatchNorm", "归一化之后能读对位置的词元比例：LayerNorm 减 BatchNorm")),
            Check(quantity="position kept, batch", most=0.0, margin=0.02, core=False, what=("BatchNorm: share after a norm minus share before it (if it lost positions: below 0)", "BatchNorm：归一化之后减之前的比例（若会丢失位置，应小于 0）")),
        ),
        literature=("No source was found for it. In evaluation BatchNorm is an invertible map of each feature and loses nothing; LayerNorm drops two numbers per token (C91, C95).", "没有找到出处。评估时 BatchNorm 是逐特征的可逆映射，什么也不丢；LayerNorm 每个词元丢掉两个数（C91、C95）。"),
    ),
    Claim(
        id="C27", source="S1", kind="exact",
        says=("LayerNorm normalizes all channels of one sample", "LayerNorm 在单个样本的所有通道上做归一化"),
        how=("One value of a (3, 5, 11) tensor is moved under a Transformer's LayerNorm", "Transformer 的 LayerNorm：在 (3, 5, 11) 的张量里改动一个值"),
        measure=axes.text,
        checks=(
            Check(quantity="token_samples", least=1, most=1, what=("samples that share the statistic", "共用统计量的样本数")),
            Check(quantity="token_features", least=11, most=11, what=("features that share it, of 11", "共用它的特征数，共 11 个")),
            Check(quantity="token_positions", least=5, most=5, core=False, what=("positions of the sample that share it, of 5", "样本中共用它的位置数，共 5 个")),
        ),
    ),
    Claim(
        id="C28", source="S1", kind="exact",
        says=("After BatchNorm every feature of the batch has mean 0 and variance 1; gain and bias then restore what the data could express", "BatchNorm 之后批内每个特征均值 0、方差 1；再用 γ、β 恢复表达能力"),
        how=("Mean and variance per channel in training; gain and bias that give the input back", "训练时逐通道的均值与方差；再取能还原输入的增益和偏置"),
        measure=moments.batch_standardized,
        checks=(
            Check(quantity="mean", most=1e-12, what=("largest mean of a channel", "各通道均值的最大值")),
            Check(quantity="variance", most=1e-4, what=("largest distance of a variance from 1", "方差与 1 的最大差距")),
            Check(quantity="restored", most=1e-9, what=("largest difference from the input when gain and bias undo the norm", "用增益和偏置还原后与输入的最大差")),
        ),
    ),
    Claim(
        id="C29", source="S1", kind="exact",
        says=("BatchNorm scales a feature inside a sample, LayerNorm scales all features between samples", "BN 是对样本内部某特征的缩放，LN 是样本之间所有特征的缩放"),
        how=("How many samples share a statistic, seen by moving one value", "改动一个值，看有多少样本共用统计量"),
        measure=axes.text,
        checks=(
            Check(quantity="batch_samples", least=1, most=1, what=("BatchNorm: samples that share a statistic", "BatchNorm：共用统计量的样本数")),
            Check(quantity="token_samples", least=2, what=("LayerNorm: samples that share a statistic", "LayerNorm：共用统计量的样本数")),
        ),
    ),
    Claim(
        id="C30", source="S1", kind="exact",
        says=("BatchNorm keeps samples comparable in a feature, LayerNorm keeps the features of a sample comparable", "BatchNorm 保持样本之间的可比性，LayerNorm 保持同一样本内部各特征的可比性"),
        how=("Rank correlation before and after: samples in a feature, features in a token; LayerNorm with a random gain too", "归一化前后的秩相关：一个特征里的各样本、一个词元里的各特征；LayerNorm 另加随机增益"),
        measure=axes.order,
        checks=(
            Check(quantity="batch_keeps_samples", least=1 - 1e-12, what=("BatchNorm: order of the samples", "BatchNorm：样本的次序")),
            Check(quantity="layer_keeps_features", least=1 - 1e-12, what=("LayerNorm without gain: order of the features", "LayerNorm 不带增益：特征的次序")),
            Check(quantity="layer_keeps_features_with_gain", least=1 - 1e-12, core=False, what=("LayerNorm with a gain: order of the features", "LayerNorm 带增益：特征的次序")),
        ),
    ),
    Claim(
        id="C31", source="S1", kind="empirical",
        says=("Normalizing padding does harm", "对填充部分做归一化有负面影响"),
        how=("Lines with padding: how far batch statistics lie from their average, with padding counted and left out; and the loss of BatchNorm with both", "带填充的文本行：把填充算进去与不算时，批统计量离其平均的距离；以及 BatchNorm 两种做法的损失"),
        designs=("batch-statistics", "hidden-bytes"),
        checks=(
            Check(quantity="drift, padded over real", least=0.0, margin=0.02, what=("log2 of the mean's distance, padding counted over left out", "均值距离之比的对数 log2，算填充比不算填充")),
            Check(quantity="padding counted", against="padding masked", least=0.0, margin=0.01, core=False, what=("held-out loss of BatchNorm, padding counted minus masked", "BatchNorm 的留出损失，算填充减不算填充")),
        ),
    ),
    Claim(
        id="C32", source="S1", kind="exact",
        says=("BatchNorm on text groups the same position of different sentences, which has no meaning", "文本上 BatchNorm 把不同句子同一位置的词元放在一起归一化，没有实际意义"),
        how=("One value of a (3, 5, 11) tensor is moved under BatchNorm as NLP uses it: positions that share the statistic", "NLP 常用的 BatchNorm：在 (3, 5, 11) 的张量里改动一个值，看哪些位置共用统计量"),
        measure=axes.text,
        checks=(Check(quantity="batch_positions", least=1, most=1, what=("positions that share a statistic, of 5", "共用统计量的位置数，共 5 个")),),
        literature=("The code of PowerNorm, UN and RBN pools batch and tokens alike.", "PowerNorm、UN、RBN 的代码都把批与词元合在一起统计。"),
    ),
    Claim(
        id="C33", source="S1", kind="definition",
        says=("PowerNorm's paper shows that mean and variance oscillate more with BatchNorm on text than with LayerNorm", "PowerNorm 论文表明，文本上 BatchNorm 的均值和方差比 LayerNorm 更震荡"),
        how=("What the paper compares", "论文比较的是什么"),
        facts=(
            Fact(what=("The paper compares batch statistics with their running average, on text and on images; LayerNorm has no statistic that is carried from batch to batch", "论文比较的是批统计量与其运行平均，文本对图像；LayerNorm 没有跨批保留的统计量"), source="Shen et al. 2020, arXiv 2003.07845, abstract", agrees=False),
        ),
    ),
    Claim(
        id="C34", source="S1", kind="exact",
        says=("LayerNorm scales each sentence as a whole, so that sentences keep their meanings", "LayerNorm 针对每一句整体缩放，使句子各自保留语义"),
        how=("One value of a (3, 5, 11) tensor is moved: values of the sentence that share the statistic", "在 (3, 5, 11) 的张量里改动一个值，看句子里有多少元素共用统计量"),
        measure=axes.text,
        checks=(Check(quantity="token_cells", least=55, most=55, what=("values that share a statistic (a sentence has 55)", "共用统计量的元素数（一句共 55 个）")),),
    ),
    Claim(
        id="C35", source="S1", kind="empirical",
        says=("The smaller the batch, the worse BatchNorm", "批大小越小，BatchNorm 的效果越差"),
        how=("Digits, the same number of images seen: BatchNorm with batches of 2, 8 and 32; and whether its statistics fluctuate less in larger ones", "手写数字，看过的图像总数相同：BatchNorm，批大小 2、8、32；以及批越大统计量是否越稳"),
        designs=("small-batches", "batch-statistics"),
        checks=(
            Check(quantity="batch, 2 images", against="batch, 8 images", least=0.0, margin=0.02, what=("loss at 2 minus at 8, nats per image", "批大小 2 减 8 的损失，奈特/图像")),
            Check(quantity="batch, 8 images", against="batch, 32 images", least=0.0, margin=0.02, core=False, what=("loss at 8 minus at 32, nats per image", "批大小 8 减 32 的损失，奈特/图像")),
            Check(quantity="drift against batch size", most=-0.25, core=False, what=("distance of batch means from their average against the batch size, log-log slope (sampling noise: -0.5)", "批均值离其平均的距离随批大小变化的双对数斜率（抽样噪声为 −0.5）")),
        ),
    ),
)  # fmt: skip
