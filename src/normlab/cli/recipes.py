"""Sweeps for the questions people ask, each as the command line that asks it: what it runs is what anyone could type.

Each takes a few minutes on two cores. Options given beside ``--recipe`` replace those of the recipe. They stand here and not in the lab, because a
recipe is a command line, and ``--help`` lists them without loading torch.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import Table


class Recipe(NamedTuple):
    """A question and the options of ``normlab compare`` that answer it."""

    question: tuple[str, str]  # English, Chinese
    options: tuple[str, ...]


RECIPES: Table[Recipe] = Table("recipe", {
    "warmup": Recipe(
        ("Which placement needs a warm-up, and at which rates?", "哪种归一化位置需要预热，在哪些学习率下需要？"),
        ("--norm", "layer", "--placement", "pre,post", "--vary", "warmup=0,0.1", "--lr", "3e-3,1e-2,3e-2", "--baseline", "layer/pre/0.1"),
    ),
    "depth": Recipe(
        ("What does depth do to pre-norm, post-norm and DeepNorm?", "加深之后，Pre-Norm、Post-Norm 和 DeepNorm 各会怎样？"),
        ("--norm", "rms", "--placement", "pre,post,deepnorm", "--vary", "num_layers=2,12", "--lr", "3e-3,1e-2", "--set", "dim=32",
         "--baseline", "rms/pre/2"),
    ),
    "small-batch": Recipe(
        ("How small may a batch be for BatchNorm, against LayerNorm, on equally many samples?",
         "样本数相同时，BatchNorm 的批可以小到什么程度，与 LayerNorm 相比？"),
        ("--task", "masked", "--norm", "batch,layer", "--placement", "pre", "--vary", "batch_size=4,16,64", "--equal", "samples",
         "--steps", "80", "--lr", "3e-3,1e-2", "--baseline", "layer/pre/16"),
    ),
    "affine": Recipe(
        ("What do gain and bias of a norm bring?", "归一化的增益和偏置有什么用？"),
        ("--norm", "layer", "--placement", "pre,post", "--vary",
         'norm_options={},{"bias":false},{"elementwise_affine":false}', "--lr", "3e-3,1e-2", "--baseline", "layer/pre/default"),
    ),
    "placement": Recipe(
        ("Where should the norm stand around the residual?", "归一化应该放在残差连接的什么地方？"),
        ("--norm", "rms", "--placement", "pre,post,deepnorm,sandwich,mix-ln,none", "--lr", "3e-3,1e-2,3e-2", "--baseline", "rms/pre"),
    ),
    "rate": Recipe(
        ("How wide is the range of learning rates that train?", "能训练的学习率范围有多宽？"),
        ("--norm", "layer,rms", "--placement", "pre,post", "--lr", "1e-3,3e-3,1e-2,3e-2,1e-1", "--baseline", "layer/pre"),
    ),
})  # fmt: skip
