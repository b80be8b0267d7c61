"""S0, first half: what normalization is said to be, and its four kinds (C1 to C15)."""

from __future__ import annotations

from ..claim import Check, Claim, Fact
from ..exact import axes, moments, sphere, structure

YEARS = "arXiv 1502.03167 (February 2015), 1607.06450 (July 2016), 1607.08022 (July 2016), 1803.08494 (March 2018)"

CLAIMS = (
    Claim(
        id="C1", source="S0", kind="empirical",
        says=("Norm means LayerNorm in a Transformer, but what is said of it carries over to BatchNorm and others",
              "Transformer 里的 Norm 指 LayerNorm，但有关结论对 BatchNorm 等同样成立"),
        how=("What is found of LayerNorm, tried with RMSNorm and BatchNorm: how well it trains, that pre-norm needs no warm-up, that a token's result does not depend on its batch",
             "拿关于 LayerNorm 的结论去试 RMSNorm 和 BatchNorm：训练效果如何；前置归一化不预热也能训练；一个词元的结果与同批样本无关"),
        measure=axes.text,
        designs=("other-norms", "equivalence"),
        checks=(
            Check(quantity="rms", against="layer", least=-0.03, most=0.03, what=("RMSNorm minus LayerNorm, pre-norm with warm-up, nats per byte", "RMSNorm 减 LayerNorm，前置归一化、预热，奈特/字节")),
            Check(quantity="rms, pre, no warm-up", against="rms, pre, warm-up", least=-0.15, most=0.15,
                  what=("RMSNorm, pre-norm: loss without minus with warm-up, nats per byte", "RMSNorm 前置归一化：不预热减预热的损失，奈特/字节")),
            Check(quantity="batch_samples", least=1, most=1, core=False,
                  what=("BatchNorm: samples that share a statistic", "BatchNorm：共用一个统计量的样本数")),
        ),
    ),
    Claim(
        id="C2", source="S0", kind="empirical",
        says=("LayerNorm is a regularization technique", "LayerNorm 是一种正则化技术"),
        how=("The gap between held-out and training loss at the same training loss, with LayerNorm and without any norm, on digits",
             "手写数字，训练损失相同时，比较有 LayerNorm 与没有归一化时留出损失与训练损失之差"),
        designs=("matched-gap",),
        checks=(Check(quantity="layer, gap", against="none, gap", most=0.0, margin=0.02,
                      what=("gap with LayerNorm minus gap without a norm, nats per image", "有 LayerNorm 的差距减去没有归一化的差距，奈特/图像")),),
        literature=("Xu et al. 2019 (abstract): gain and bias of LayerNorm increase the risk of over-fitting.",
                    "Xu 等 2019（摘要）：LayerNorm 的增益和偏置会增加过拟合的风险。"),
    ),
    Claim(
        id="C3", source="S0", kind="exact",
        says=("LayerNorm gives every sample's hidden values mean 0 and variance 1", "LayerNorm 使每个样本的隐藏值均值为 0、方差为 1"),
        how=("Mean and biased variance of normalized rows: ordinary rows, rows of size 1e-3, rows after gain and bias",
             "归一化后每行的均值和有偏方差：普通的行、大小为 1e-3 的行、乘增益加偏置之后的行"),
        measure=moments.standardized,
        checks=(
            Check(quantity="mean", most=1e-12, what=("largest mean of a row", "各行均值的最大值")),
            Check(quantity="variance", least=0.9999, most=1.0001, what=("variance of ordinary rows", "普通行的方差")),
            Check(quantity="variance_of_tiny", least=0.99, most=1.01, core=False, what=("variance of rows of size 1e-3 (eps 1e-5)", "大小为 1e-3 的行的方差（eps 为 1e-5）")),
            Check(quantity="variance_behind_gain", least=0.99, most=1.01, core=False, what=("variance after gain and bias", "乘增益加偏置之后的方差")),
        ),
    ),
    Claim(
        id="C4", source="S0", kind="empirical",
        says=("That makes gradients less sensitive, so training is faster and stabler", "这降低了梯度的敏感性，因而训练更快、更稳定"),
        how=("LayerNorm's Jacobian against its bound sqrt(d)/|x - mean|, and the largest learning rate that trains, with LayerNorm and without",
             "LayerNorm 的雅可比矩阵与上界 √d/|x − 均值| 相比；有无 LayerNorm 时能训练的最大学习率"),
        measure=sphere.jacobian_size,
        designs=("rates", "equivalence"),
        checks=(
            Check(quantity="layer, statistics detached", against="layer", least=0.0, margin=0.1, core=False, what=("loss where no gradient passes the statistics minus LayerNorm's, nats per byte", "梯度不经过统计量时减 LayerNorm 的损失，奈特/字节")),
            Check(quantity="size_times_length", most=1.0 + 1e-9, what=("size of the Jacobian over its bound", "雅可比矩阵的大小与上界之比")),
            Check(quantity="fall_with_scale", least=9.99, most=10.01, what=("fall of the Jacobian when the input grows tenfold", "输入放大十倍时雅可比矩阵缩小的倍数")),
            Check(quantity="largest rate, adam", least=0.0, margin=0.3, what=("log10 of the largest rates, LayerNorm over none (AdamW)", "最大学习率之比的对数 log10，LayerNorm 比无归一化（AdamW）")),
            Check(quantity="layer, best rate", against="none, best rate", most=0.0, margin=0.02, what=("loss after the same steps, each at its best rate: LayerNorm minus none, nats per byte", "相同步数、各取最佳学习率的损失：LayerNorm 减无归一化，奈特/字节")),
        ),
        literature=("Xiong et al. 2020, Lemma 3: the Jacobian is O(sqrt(d)/|x|). Santurkar et al. 2018 find smoother losses with BatchNorm.",
                    "Xiong 等 2020 引理 3：雅可比矩阵为 O(√d/|x|)。Santurkar 等 2018 发现 BatchNorm 使损失更平滑。"),
    ),
    Claim(
        id="C5", source="S0", kind="definition",
        says=("In a Transformer LayerNorm stands after attention, after the feed-forward layer, and with the residual connection",
              "Transformer 里 LayerNorm 位于注意力之后、前馈层之后，并与残差连接配合"),
        how=("Placements of 138 architectures, found by their data flow (docs/en/inspect.md)", "138 种架构的归一化位置，由数据流得出（docs/zh/inspect.md）"),
        facts=(
            Fact(what=("27 of 138 architectures are post-norm, BERT and the first Transformer among them", "138 种架构里 27 种是后置归一化，包括 BERT 和最初的 Transformer"), source="normlab, docs/en/inspect.md", agrees=True),
            Fact(what=("79 of 138 are pre-norm: the norm stands before attention and before the feed-forward layer", "79 种是前置归一化：归一化在注意力和前馈层之前"), source="normlab, docs/en/inspect.md", agrees=False, core=False),
        ),
    ),
    Claim(
        id="C6", source="S0", kind="definition",
        says=("BatchNorm is of 2015, LayerNorm of 2016, InstanceNorm of 2017, GroupNorm of 2018", "BatchNorm 出自 2015 年，LayerNorm 2016 年，InstanceNorm 2017 年，GroupNorm 2018 年"),
        how=("Dates of first submission", "首次提交的日期"),
        facts=(
            Fact(what=("BatchNorm 2015, LayerNorm 2016, GroupNorm 2018", "BatchNorm 2015 年，LayerNorm 2016 年，GroupNorm 2018 年"), source=YEARS, agrees=True),
            Fact(what=("InstanceNorm is of July 2016; a longer version followed in 2017 (arXiv 1701.02096)", "InstanceNorm 出自 2016 年 7 月；2017 年另有扩展版（arXiv 1701.02096）"), source="arXiv 1607.08022", agrees=False, core=False),
        ),
    ),
    Claim(
        id="C7", source="S0", kind="exact",
        says=("All of them normalize the input of the activation function", "它们都是对激活函数的输入做归一化"),
        how=("Share of activations whose argument is a norm's own output: in a post-norm Transformer and in conv -> BatchNorm -> relu",
             "有多少激活函数的输入正是归一化层的输出：后置归一化的 Transformer 与 conv → BatchNorm → relu"),
        measure=structure.what_norms_feed,
        checks=(
            Check(quantity="in_convolution", least=1.0, most=1.0, core=False, what=("share in conv -> norm -> relu", "conv → 归一化 → relu 里的比例")),
            Check(quantity="in_transformer", least=1.0, most=1.0, what=("share in a Transformer", "Transformer 里的比例")),
        ),
    ),
    Claim(
        id="C8", source="S0", kind="exact",
        says=("BatchNorm averages over N, H, W and keeps C", "BatchNorm 对 N、H、W 求平均，保留 C"),
        how=("One value of a (3, 4, 5, 7) tensor is moved; the outputs that move share its statistic", "在 (3, 4, 5, 7) 的张量里改动一个值，跟着变的输出与它共用统计量"),
        measure=axes.images,
        checks=(
            Check(quantity="batch_cells", least=105, most=105, what=("values that share a statistic (N·H·W = 105)", "共用统计量的元素数（N·H·W = 105）")),
            Check(quantity="batch_channels", least=1, most=1, what=("channels among them", "涉及的通道数")),
        ),
    ),
    Claim(
        id="C9", source="S0", kind="empirical",
        says=("BatchNorm does badly with small batches", "批小的时候 BatchNorm 效果不好"),
        how=("Digits, the same number of images seen, batches of 2 and of 32", "手写数字，看过的图像总数相同，批大小 2 与 32"),
        designs=("small-batches",),
        checks=(
            Check(quantity="batch, 2 images", against="batch, 32 images", least=0.0, margin=0.03, what=("BatchNorm: loss at 2 minus loss at 32, nats per image", "BatchNorm：批大小 2 减批大小 32 的损失，奈特/图像")),
            Check(quantity="batch, 2 images", against="layer, 2 images", least=0.0, margin=0.03, what=("at 2 images: BatchNorm minus LayerNorm, nats per image", "批大小 2：BatchNorm 减 LayerNorm，奈特/图像")),
        ),
        literature=("Wu and He 2018 (abstract): at a batch of 2, GroupNorm's error on ImageNet is 10.6 points below BatchNorm's.",
                    "Wu 与 He 2018（摘要）：批大小为 2 时，GroupNorm 在 ImageNet 上的错误率比 BatchNorm 低 10.6 个百分点。"),
    ),
    Claim(
        id="C10", source="S0", kind="empirical",
        says=("BatchNorm suits feed-forward nets of fixed depth, not recurrent ones", "BatchNorm 适合固定深度的前馈网络，不适合 RNN"),
        how=("A small recurrent language model with BatchNorm and with LayerNorm", "小型循环语言模型，分别用 BatchNorm 和 LayerNorm"),
        designs=("recurrent",),
        checks=(Check(quantity="recurrent, batch", against="recurrent, layer", least=0.0, margin=0.03, what=("loss with BatchNorm minus LayerNorm, nats per byte", "BatchNorm 减 LayerNorm 的损失，奈特/字节")),),
        literature=("Cooijmans et al. 2016 (arXiv 1603.09025) report recurrent BatchNorm that works, with statistics per time step.",
                    "Cooijmans 等 2016（arXiv 1603.09025）报告了按时间步取统计量、可用的循环 BatchNorm。"),
    ),
    Claim(
        id="C11", source="S0", kind="exact",
        says=("LayerNorm averages over C, H, W", "LayerNorm 对 C、H、W 求平均"),
        how=("One value is moved: LayerNorm over (C, H, W) of images, and LayerNorm as a Transformer has it on (3, 5, 11)", "改动一个值：图像上对 (C, H, W) 的 LayerNorm，以及 Transformer 里 (3, 5, 11) 上的 LayerNorm"),
        measure=lambda: {**axes.images(), **axes.text()},
        checks=(
            Check(quantity="layer_cells", least=140, most=140, what=("values that share a statistic in images (C·H·W = 140)", "图像里共用统计量的元素数（C·H·W = 140）")),
            Check(quantity="token_cells", least=55, most=55, core=False, what=("values that share a statistic in a Transformer (a whole sample has 55)", "Transformer 里共用统计量的元素数（一个样本共 55 个）")),
        ),
    ),
    Claim(
        id="C12", source="S0", kind="empirical",
        says=("LayerNorm's effect shows mainly in recurrent nets", "LayerNorm 主要对 RNN 效果明显"),
        how=("What LayerNorm gains over no norm: in a small recurrent model and in a Transformer of the same task", "LayerNorm 相对无归一化的收益：同一任务的小型循环模型与 Transformer"),
        designs=("recurrent", "rates"),
        checks=(
            Check(quantity="recurrent, layer", against="recurrent, none", most=0.0, margin=0.01, core=False, what=("recurrent: LayerNorm minus none, nats per byte", "循环模型：LayerNorm 减无归一化，奈特/字节")),
            Check(quantity="layer, best rate", against="none, best rate", least=-0.02, what=("Transformer: LayerNorm minus none, nats per byte (mainly: no gain here)", "Transformer：LayerNorm 减无归一化，奈特/字节（若“主要”属实，此处应无收益）")),
        ),
    ),
    Claim(
        id="C13", source="S0", kind="exact",
        says=("InstanceNorm averages over H, W of each image and channel, and serves style transfer", "InstanceNorm 对每幅图像每个通道的 H、W 求平均，用于风格迁移"),
        how=("One value is moved; and an image with other brightness and contrast per channel must come out the same", "改动一个值；另把图像各通道换成别的亮度和对比度，输出应不变"),
        measure=axes.contrast,
        checks=(
            Check(quantity="instance_cells", least=221, most=221, what=("values that share a statistic (H·W = 221)", "共用统计量的元素数（H·W = 221）")),
            Check(quantity="changed_by_contrast", most=1e-9, what=("largest change by brightness and contrast", "亮度和对比度引起的最大变化")),
        ),
        literature=("Ulyanov et al. 2016: stylization should not depend on the contrast of the content image.", "Ulyanov 等 2016：风格化不应依赖内容图像的对比度。"),
    ),
    Claim(
        id="C14", source="S0", kind="exact",
        says=("GroupNorm splits the channels into groups and normalizes those", "GroupNorm 把通道分组，再分别归一化"),
        how=("GroupNorm with one group against LayerNorm, with a group per channel against InstanceNorm; BatchNorm of one sample against InstanceNorm", "一组的 GroupNorm 与 LayerNorm 比，一通道一组的与 InstanceNorm 比；一个样本的 BatchNorm 与 InstanceNorm 比"),
        measure=lambda: {**axes.special_cases(), **axes.images()},
        checks=(
            Check(quantity="group_cells", least=70, most=70, what=("values that share a statistic (C/G·H·W = 70)", "共用统计量的元素数（C/G·H·W = 70）")),
            Check(quantity="one_group_is_layer", most=1e-12, what=("one group against LayerNorm", "一组与 LayerNorm 之差")),
            Check(quantity="group_per_channel_is_instance", most=1e-12, what=("a group per channel against InstanceNorm", "一通道一组与 InstanceNorm 之差")),
            Check(quantity="batch_of_one_is_instance", most=1e-12, what=("BatchNorm of one sample against InstanceNorm", "一个样本的 BatchNorm 与 InstanceNorm 之差")),
        ),
    ),
    Claim(
        id="C15", source="S0", kind="exact",
        says=("A stack of books: the averages are over N·H·W, C·H·W, H·W and (C/G)·H·W characters", "一摞书的比喻：四种归一化分别对 N·H·W、C·H·W、H·W、(C/G)·H·W 个字求平均"),
        how=("Values of a (3, 4, 5, 7) tensor that share a statistic, two groups", "(3, 4, 5, 7) 的张量里共用统计量的元素数，分两组"),
        measure=axes.images,
        checks=(
            Check(quantity="batch_cells", least=105, most=105, what=("BatchNorm, N·H·W = 105", "BatchNorm，N·H·W = 105")),
            Check(quantity="layer_cells", least=140, most=140, what=("LayerNorm, C·H·W = 140", "LayerNorm，C·H·W = 140")),
            Check(quantity="instance_cells", least=35, most=35, what=("InstanceNorm, H·W = 35", "InstanceNorm，H·W = 35")),
            Check(quantity="group_cells", least=70, most=70, what=("GroupNorm, (C/G)·H·W = 70", "GroupNorm，(C/G)·H·W = 70")),
        ),
    ),
)  # fmt: skip
