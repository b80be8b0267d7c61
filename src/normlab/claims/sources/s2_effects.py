"""S2, second half: what LayerNorm is said to do for training (C52 to C56, C64, C66, C68 to C71)."""

from __future__ import annotations

from ..claim import Check, Claim
from ..exact import cost, moments, tokens

CLAIMS = (
    Claim(
        id="C52", source="S2", kind="empirical",
        says=("Layers' input distributions move during training and destabilize it; LayerNorm reduces that shift", "训练中各层输入分布漂移，使训练不稳定；LayerNorm 减少这种内部协变量偏移"),
        how=("The shift of Santurkar et al. (gradient before and after the layers below moved), with LayerNorm, with LayerNorm and injected noise, without", "Santurkar 等的偏移度量（下方各层更新前后梯度之差）：LayerNorm、注入噪声的 LayerNorm、无归一化"),
        designs=("landscape",),
        checks=(
            Check(quantity="shift, layer", against="shift, none", most=0.0, margin=0.01, what=("shift with LayerNorm minus without (1 - cosine)", "有 LayerNorm 减没有的偏移（1 − 余弦）")),
            Check(quantity="noisy layer", against="no norm", least=-0.02, what=("loss with injected shift minus without a norm, nats per byte (if shift were the harm: no better)", "注入偏移减无归一化的损失，奈特/字节（若偏移是病因，则不会更好）")),
        ),
        literature=("Santurkar et al. 2018 (abstract): stability of input distributions has little to do with BatchNorm's success; a smoother loss has.", "Santurkar 等 2018（摘要）：输入分布的稳定与 BatchNorm 的成功关系不大，起作用的是更平滑的损失。"),
    ),
    Claim(
        id="C53", source="S2", kind="empirical",
        says=("Values end up in about [-2, 2]", "数值被缩放到 [−2, 2] 左右"),
        how=("Share of values within 2 after LayerNorm of normal rows; the largest value that a row of 768 can give; and the share in trained models", "正态分布的行经 LayerNorm 后落在 ±2 内的比例；768 维的行可能给出的最大值；以及训练好的模型里的比例"),
        measure=moments.gaussian_range,
        designs=("inside",),
        checks=(
            Check(quantity="share_within_2", least=0.95, what=("share within 2, normal rows", "正态分布的行落在 ±2 内的比例")),
            Check(quantity="largest_possible", most=2.0, core=False, what=("largest possible value, sqrt(d - 1)", "可能的最大值，√(d − 1)")),
            Check(quantity="within two, mean norm", least=0.9, core=False, what=("share within 2 in trained models, mean of their norms", "训练好的模型里落在 ±2 内的比例，各归一化平均")),
            Check(quantity="within two, lowest norm", least=0.9, core=False, what=("share within 2 in trained models, the norm with the lowest", "训练好的模型里落在 ±2 内的比例，最低的归一化")),
        ),
    ),
    Claim(
        id="C54", source="S2", kind="empirical",
        says=("LayerNorm allows a larger learning rate", "LayerNorm 允许使用更大的学习率"),
        how=("The largest rate on a grid that still trains, LayerNorm against none, AdamW and SGD", "网格上仍能训练的最大学习率，LayerNorm 对无归一化，AdamW 与 SGD"),
        designs=("rates", "rates-sgd"),
        checks=(
            Check(quantity="largest rate, adam", least=0.0, margin=0.3, what=("AdamW: log10 of the largest rates, LayerNorm over none", "AdamW：最大学习率之比的对数 log10，LayerNorm 比无归一化")),
            Check(quantity="largest rate, sgd", least=0.0, margin=0.3, what=("SGD: log10 of the largest rates, LayerNorm over none", "SGD：最大学习率之比的对数 log10，LayerNorm 比无归一化")),
        ),
    ),
    Claim(
        id="C55", source="S2", kind="empirical",
        says=("LayerNorm makes training converge faster", "LayerNorm 使训练收敛更快"),
        how=("Loss after the same number of steps, and steps to a training loss half a nat below a blind predictor's, each at its best rate", "相同步数后的损失，以及训练损失比盲预测器低半个奈特所需的步数，各取最佳学习率"),
        designs=("rates",),
        checks=(
            Check(quantity="layer, best rate", against="none, best rate", most=0.0, margin=0.02, what=("LayerNorm minus none, nats per byte", "LayerNorm 减无归一化，奈特/字节")),
            Check(quantity="steps to target, layer over none", most=0.0, margin=0.15, what=("log2 of the steps, LayerNorm over none (a tenth fewer: -0.15)", "步数之比的对数 log2，LayerNorm 比无归一化（少一成为 −0.15）")),
        ),
    ),
    Claim(
        id="C56", source="S2", kind="empirical",
        says=("LayerNorm reduces over-fitting and improves generalization", "LayerNorm 减少过拟合，提高泛化能力"),
        how=("As C2: the gap at the same training loss on digits", "同 C2：手写数字上训练损失相同时的差距"),
        designs=("matched-gap",),
        checks=(Check(quantity="layer, gap", against="none, gap", most=0.0, margin=0.02, what=("gap with LayerNorm minus without, nats per image", "有 LayerNorm 减没有的差距，奈特/图像")),),
        literature=("Xu et al. 2019 (abstract): LayerNorm's gain and bias increase the risk of over-fitting.", "Xu 等 2019（摘要）：LayerNorm 的增益和偏置会增加过拟合的风险。"),
    ),
    Claim(
        id="C64", source="S2", kind="empirical",
        says=("Pre-LN trains more stably, Post-LN is sometimes better", "Pre-LN 训练更稳定，Post-LN 在某些情况下更好"),
        how=("Eight layers without and with warm-up; for the second half, at convergence (--full)", "八层，不预热与预热；后半句在收敛时看（--full）"),
        designs=("warm-up",),
        checks=(
            Check(quantity="post, no warm-up", against="pre, no warm-up", least=0.0, margin=0.05, what=("without warm-up, post minus pre, nats per byte", "不预热，后置减前置，奈特/字节")),
            Check(quantity="post, warm-up", against="pre, warm-up", most=0.0, margin=0.01, core=False, what=("here, with warm-up: post minus pre, nats per byte", "此处预热：后置减前置，奈特/字节")),
        ),
    ),
    Claim(
        id="C66", source="S2", kind="empirical",
        says=("Without gamma and beta the model could express less", "没有 γ 和 β，模型的表达能力可能受限"),
        how=("Pre-norm: gain and bias folded into the next matrix leave the function as it is; and trained with and without, as an equivalence", "前置归一化：增益和偏置并入下一个矩阵，函数不变；再训练有无两种，做等价检验"),
        measure=tokens.folding,
        designs=("equivalence",),
        checks=(
            Check(quantity="folded", least=1e-6, what=("difference that folding leaves (something could not be expressed)", "并入后的差（若有表达不了的东西）")),
            Check(quantity="layer without affine", against="layer", least=0.0, margin=0.03, core=False, what=("trained without minus with gain and bias, nats per byte", "训练结果：不带减带增益偏置，奈特/字节")),
        ),
        literature=("Xu et al. 2019 (abstract): LayerNorm without gain and bias beats LayerNorm on four datasets.", "Xu 等 2019（摘要）：不带增益偏置的 LayerNorm 在四个数据集上更好。"),
    ),
    Claim(
        id="C68", source="S2", kind="empirical",
        says=("That is small beside the O(L^2) matrix products", "与 O(L²) 的矩阵乘法相比，层归一化开销很小"),
        how=("Operations of a layer of width 512 at 64 and 4096 tokens; and time of norms in a training step on this machine", "宽 512 的一层在 64 与 4096 个词元时的运算量；以及本机训练步中归一化所占的时间"),
        measure=cost.share,
        designs=("cost",),
        checks=(
            Check(quantity="norms_at_64", most=0.01, what=("norms' share of the operations, 64 tokens", "64 个词元时归一化占运算量的比例")),
            Check(quantity="norms_at_4096", most=0.01, what=("norms' share of the operations, 4096 tokens", "4096 个词元时归一化占运算量的比例")),
            Check(quantity="square_at_64", least=0.5, core=False, what=("share of the matrix products that grows with L^2, 64 tokens", "64 个词元时按 L² 增长的矩阵乘法所占比例")),
            Check(quantity="time over linear, unfused", most=0.1, core=False, what=("time of LayerNorm written as operators over that of one 512 x 512 matrix", "用算子写的 LayerNorm 与一个 512 × 512 矩阵的用时之比")),
        ),
        literature=("Ivanov et al. 2020 are quoted with 0.17 % of the operations but 25.5 % of the time for norms and softmax in BERT on a GPU (second-hand).", "据转述，Ivanov 等 2020 测得 BERT 在 GPU 上归一化与 softmax 占运算量 0.17 %、占时间 25.5 %（间接来源）。"),
    ),
    Claim(
        id="C69", source="S2", kind="empirical",
        says=("The learning rate can be 2 to 10 times larger", "学习率可以大 2–10 倍"),
        how=("The largest rate on a grid that still trains, LayerNorm over none", "网格上仍能训练的最大学习率，LayerNorm 比无归一化"),
        designs=("rates", "rates-sgd"),
        checks=(
            Check(quantity="largest rate, adam", least=0.301, most=1.0, what=("AdamW: log10 of the ratio (2 to 10: 0.3 to 1)", "AdamW：比值的对数 log10（2–10 倍为 0.3–1）")),
            Check(quantity="largest rate, sgd", least=0.301, most=1.0, what=("SGD: log10 of the ratio", "SGD：比值的对数 log10")),
        ),
        literature=("Ioffe and Szegedy are quoted with 5 and 30 times for BatchNorm in Inception; no source was found for 2 to 10.", "据引用，Ioffe 与 Szegedy 在 Inception 上用了 5 倍和 30 倍；2–10 倍没有找到出处。"),
    ),
    Claim(
        id="C70", source="S2", kind="empirical",
        says=("Accuracy typically rises by 1 to 3 %", "准确率通常提高 1–3 %"),
        how=("Digits, accuracy in points with LayerNorm minus without, each at its best rate", "手写数字，有 LayerNorm 减没有的准确率（百分点），各取最佳学习率"),
        designs=("accuracy",),
        checks=(Check(quantity="digits, layer", against="digits, none", least=1.0, most=3.0, what=("accuracy, LayerNorm minus none, points", "准确率，LayerNorm 减无归一化，百分点")),),
        literature=("No source was found.", "没有找到出处。"),
    ),
    Claim(
        id="C71", source="S2", kind="empirical",
        says=("Faster convergence, smoother gradients, better generalization, less training time", "收敛更快、梯度更顺畅、泛化更好、训练时间更短"),
        how=("Loss after the same steps; range of the loss along the gradient; gap at matched training loss; steps to a training loss", "相同步数后的损失；沿梯度方向损失的范围；训练损失相同时的差距；达到同一训练损失的步数"),
        designs=("rates", "landscape", "matched-gap"),
        checks=(
            Check(quantity="layer, best rate", against="none, best rate", most=0.0, margin=0.02, what=("faster: LayerNorm minus none, nats per byte", "更快：LayerNorm 减无归一化，奈特/字节")),
            Check(quantity="loss range, layer over none", most=0.0, what=("smoother: log10 of the loss range along the gradient, LayerNorm over none", "更平滑：沿梯度损失范围之比的对数 log10，LayerNorm 比无归一化")),
            Check(quantity="layer, gap", against="none, gap", most=0.0, margin=0.02, core=False, what=("generalization: gap with minus without, nats per image", "泛化：有减无的差距，奈特/图像")),
            Check(quantity="steps to target, layer over none", most=0.0, margin=0.15, core=False, what=("less training: log2 of the steps to a training loss, LayerNorm over none", "训练更短：达到同一训练损失的步数之比的对数 log2，LayerNorm 比无归一化")),
        ),
    ),
)  # fmt: skip
