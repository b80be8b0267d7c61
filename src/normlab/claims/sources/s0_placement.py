"""S0, second half: pre-norm and post-norm (C16 to C23)."""

from __future__ import annotations

from ..claim import Check, Claim
from ..exact import structure

XIONG = ("Xiong et al. 2020: without warm-up Post-LN reaches 8.45 BLEU on IWSLT14, about 34 with it; Pre-LN needs none.",
         "Xiong 等 2020：IWSLT14 上 Post-LN 不预热只有 8.45 BLEU，预热后约 34；Pre-LN 不需要预热。")  # fmt: skip

CLAIMS = (
    Claim(
        id="C16", source="S0", kind="exact",
        says=("Post-LN puts the norm after the sum, Pre-LN before attention and the feed-forward layer", "Post-LN 把归一化放在求和之后，Pre-LN 放在注意力和前馈层之前"),
        how=("Both placements against their formulas with a random sub-layer; norms at the end of the stack", "用随机子层把两种位置与公式对照；数一数堆叠末尾的归一化层"),
        measure=structure.where_the_norm_stands,
        checks=(
            Check(quantity="post_against_formula", most=1e-12, what=("post-norm against N(x + S(x))", "后置归一化与 N(x + S(x)) 之差")),
            Check(quantity="pre_against_formula", most=1e-12, what=("pre-norm against x + S(N(x))", "前置归一化与 x + S(N(x)) 之差")),
            Check(quantity="norms_at_the_end_of_pre", least=0, most=0, core=False, what=("further norms at the end of a pre-norm stack", "前置归一化堆叠末尾另有的归一化层数")),
        ),
        literature=("Xiong et al. 2020, section 3.3: Pre-LN has a final norm before the prediction.", "Xiong 等 2020 第 3.3 节：Pre-LN 在预测之前还有一个归一化。"),
    ),
    Claim(
        id="C17", source="S0", kind="empirical",
        says=("Post-norm regularizes the parameters more, so it converges better", "后置归一化对参数的正则化更强，因而收敛更好"),
        how=("Eight layers, next byte of prose: post-norm minus pre-norm, without and with warm-up", "八层、预测文本的下一个字节：后置减前置，不预热与预热"),
        designs=("warm-up",),
        checks=(
            Check(quantity="post, no warm-up", against="pre, no warm-up", most=0.0, margin=0.05, what=("without warm-up, post minus pre, nats per byte", "不预热，后置减前置，奈特/字节")),
            Check(quantity="post, warm-up", against="pre, warm-up", most=0.0, margin=0.05, core=False, what=("with warm-up, post minus pre, nats per byte", "预热，后置减前置，奈特/字节")),
        ),
        literature=XIONG,
    ),
    Claim(
        id="C18", source="S0", kind="empirical",
        says=("Pre-norm adds a part that is not normalized, which keeps gradients from exploding or vanishing; so large models use it", "前置归一化有一部分不经归一化直接相加，可防止梯度爆炸或消失，所以大模型多用它"),
        how=("Gradients of the feed-forward matrices at the start, 24 layers: first against last; and pre-norm trained without warm-up", "训练开始时 24 层前馈矩阵的梯度：首层与末层之比；以及不预热训练前置归一化"),
        designs=("gradients", "warm-up"),
        checks=(
            Check(quantity="last over first, pre", least=-1.0, most=1.0, what=("log10 of the last layer's gradient over the first's", "末层梯度比首层梯度的对数 log10")),
            Check(quantity="slope, pre", least=-0.65, most=-0.35, core=False, what=("last layer's gradient against depth, log-log slope (theory -0.5)", "末层梯度随深度变化的双对数斜率（理论值 −0.5）")),
            Check(quantity="pre, no warm-up", against="pre, warm-up", least=-0.15, most=0.15, what=("pre-norm: loss without minus with warm-up, nats per byte", "前置归一化：不预热减预热的损失，奈特/字节")),
        ),
        literature=("Xiong et al. 2020, Theorem 1: the last layer's gradient falls as 1/sqrt(L) with Pre-LN and does not with Post-LN.", "Xiong 等 2020 定理 1：Pre-LN 末层梯度按 1/√L 下降，Post-LN 不下降。"),
    ),
    Claim(
        id="C19", source="S0", kind="empirical",
        says=("With the same settings pre-norm trains more easily but usually ends worse than post-norm", "同样设置下，前置归一化更容易训练，但最终效果通常不如后置归一化"),
        how=("Six layers to convergence, with warm-up, each at its best rate; in --full only", "六层训练到收敛，有预热，各取最佳学习率；只在 --full 里跑"),
        designs=("final-quality", "warm-up"),
        checks=(
            Check(quantity="pre, no warm-up", against="post, no warm-up", most=0.0, margin=0.05, what=("easier: without warm-up, pre minus post, nats per byte", "更容易：不预热，前置减后置，奈特/字节")),
            Check(quantity="final, post", against="final, pre", most=0.0, margin=0.01, what=("ends worse: at convergence, post minus pre, nats per byte", "最终：收敛时后置减前置，奈特/字节")),
        ),
        literature=("DeepNet, section 5: Pre-LN ends 0.5 to 1.0 BLEU below converged Post-LN. Mix-LN's table: Post-LN diverges from 250M parameters on.", "DeepNet 第 5 节：Pre-LN 比收敛的 Post-LN 低 0.5 至 1.0 BLEU。Mix-LN 的表：Post-LN 从 250M 参数起发散。"),
    ),
    Claim(
        id="C20", source="S0", kind="empirical",
        says=("Pre-norm adds width without being asked and loses depth", "前置归一化无形中增加了宽度、降低了深度"),
        how=("How far each of eight trained blocks turns the residual stream, and the loss without it: deep ones against the first", "训练后八个块各把残差流转动多少、去掉后损失如何：深层块比首块"),
        designs=("effective-depth", "inside"),
        checks=(
            Check(quantity="angle of last over first, pre", most=0.7, what=("pre-norm: angle of the last block over the first's", "前置归一化：末块角度比首块角度")),
            Check(quantity="drop of deep over first, pre", most=0.5, what=("pre-norm: harm of leaving out a deep block over that of the first", "前置归一化：去掉深层块的损害比去掉首块")),
            Check(quantity="angle of last over first, post", least=0.7, core=False, what=("post-norm: angle of the last block over the first's", "后置归一化：末块角度比首块角度")),
            Check(quantity="parallel blocks, pre", against="parallel blocks, post", most=0.0, margin=0.05, core=False, what=("width: harm of running two neighbouring blocks side by side, pre minus post, nats per byte", "宽度：相邻两块并行的损害，前置减后置，奈特/字节")),
        ),
        literature=("Sun et al. 2025 (arXiv 2502.05795) call it the curse of depth: deep blocks of Pre-LN models can be left out.", "Sun 等 2025（arXiv 2502.05795）称之为深度诅咒：Pre-LN 模型的深层块可以去掉。"),
    ),
    Claim(
        id="C21", source="S0", kind="empirical",
        says=("Depth usually matters more than width", "深度通常比宽度更重要"),
        how=("Two layers of width 96 against eight of width 48, the same number of weights in the matrices, pre-norm, each at its best rate", "两层宽 96 与八层宽 48，矩阵参数数相同，前置归一化，各取最佳学习率"),
        designs=("depth-or-width",),
        checks=(Check(quantity="deep", against="wide", most=0.0, margin=0.02, what=("8 x 48 minus 2 x 96, nats per byte", "8 × 48 减 2 × 96，奈特/字节")),),
    ),
    Claim(
        id="C22", source="S0", kind="empirical",
        says=("Every post-norm weakens the identity branch once more", "后置归一化每归一化一次，就削弱一次恒等分支"),
        how=("What is left of the input after l post-norms when branches are independent and of variance 1: regression on the input, against 2^(-l/2); and in trained models, post-norm against pre-norm", "残差分支独立且方差为 1 时，经 l 次后置归一化还剩多少输入：对输入回归，与 2^(−l/2) 相比；以及训练好的模型，后置对前置"),
        measure=structure.identity_weight,
        designs=("inside",),
        checks=(
            Check(quantity="largest_step", most=0.75, what=("largest weight left by one more norm", "再归一化一次后剩余权重之比的最大值")),
            Check(quantity="after_8", least=0.05, most=0.075, what=("weight after 8 norms (theory 1/16)", "8 次之后的权重（理论值 1/16）")),
            Check(quantity="worst_ratio_to_theory", most=0.2, what=("largest distance from 2^(-l/2), in powers of two, up to 8 norms", "8 次以内与 2^(−l/2) 的最大差距，以 2 的幂计")),
            Check(quantity="identity left, post", against="identity left, pre", most=0.0, margin=0.1, core=False, what=("trained: cosine of the last state with the first, post minus pre", "训练后：末层状态与首层输入的余弦，后置减前置")),
        ),
    ),
    Claim(
        id="C23", source="S0", kind="empirical",
        says=("Gradients of Pre-LN are larger at the bottom than at the top: it leans on the identity branch", "Pre-LN 底层的梯度比顶层大，说明它过于依赖恒等分支"),
        how=("Gradients of the feed-forward matrices at the start, 24 layers: last over first", "训练开始时 24 层前馈矩阵的梯度：末层比首层"),
        designs=("gradients",),
        checks=(
            Check(quantity="last over first, pre", most=0.0, margin=0.1, what=("pre-norm: log10 of last over first", "前置归一化：末层比首层的对数 log10")),
            Check(quantity="last over first, deepnorm", least=-0.1, most=0.1, core=False, what=("DeepNorm beside it: log10 of last over first", "对照 DeepNorm：末层比首层的对数 log10")),
        ),
        literature=("DeepNet's introduction cites NormFormer for the fact; Xiong et al. speak of gradients that stay the same over layers. What it means is a commentator's reading.", "DeepNet 引言引用 NormFormer 说明这一现象；Xiong 等则说各层梯度大致相同。其含义是后来评论者的解读。"),
    ),
)  # fmt: skip
