"""masked: name the hidden bytes of a line. An encoder that sees both sides, lines of all lengths, padding.

Nothing is predicted from what comes before it alone, so norms over tokens stand in the form their papers give them, with the padding
left out of their statistics. Lines are those of Python's help pages, each once, so that the split by content holds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import texts
from .base import SIZES, UNASKED, Batch, DataTask, blind_loss, byte_rows, generator_of, one_in
from .builtin import help_pages

HIDDEN = 256  # the id that stands where a byte is hidden; no byte has it
SHARE = 0.15  # of the bytes of a line that are hidden; at least one
# What a hidden byte is can only be learned from its neighbours. At the usual base of 10,000, and with absolute positions, 80 steps of a
# small model do not find out where these are (loss 0.99 and 1.02 of the blind one's); at this base they do (0.91).
ROTARY_BASE = 10.0
SHORTEST = 8  # bytes of a line: of fewer, one hidden byte leaves nothing to go by


def masked_task(*, length: int = 64) -> DataTask:
    """Longer lines are cut to ``length`` bytes, shorter ones padded to it."""
    text, digest = help_pages()
    lines = sorted({part for line in text.split(b"\n") if len(part := line.strip()[:length].rstrip()) >= SHORTEST})
    is_held_out = torch.tensor([one_in(10, line) for line in lines])
    rows, sizes = byte_rows(lines, length), torch.tensor([len(line) for line in lines])
    training, testing = (~is_held_out).nonzero()[:, 0], is_held_out.nonzero()[:, 0]

    def examples(numbers: Tensor, order: Tensor) -> Batch:
        """``order``: a random number for each byte; those with the smallest of a line are hidden."""
        mask = torch.arange(length) < sizes[numbers][:, None]
        count = (sizes[numbers] * SHARE).round().long().clamp(min=1)
        rank = torch.where(mask, order, 2.0).argsort(1).argsort(1)
        hidden = rank < count[:, None]
        whole = rows[numbers]
        return Batch({"tokens": torch.where(hidden, HIDDEN, whole), "mask": mask}, torch.where(hidden, whole, UNASKED))

    def draw(seed: int, step: int, size: int) -> Batch:
        generator = generator_of("masked", seed, step)
        chosen = training[torch.randint(len(training), (size,), generator=generator)]
        return examples(chosen, torch.rand(size, length, generator=generator))

    fixed = torch.rand(len(testing), length, generator=generator_of("masked", "held out"))
    asked = examples(testing, fixed).targets
    seen = torch.bincount(torch.cat([rows[i, : sizes[i]] for i in training.tolist()]), minlength=256)
    return DataTask(
        name="masked", unit="nats per byte", batch_size=32,
        settings={"architecture": "encoder", "vocab_size": HIDDEN + 1, "max_length": length, "num_classes": 256,
                  "pooling": "none", "positions": "rotary", "rotary_base": ROTARY_BASE, **SIZES},
        sources={"lines of pydoc_data.topics": texts.sha256(b"\n".join(lines)), "pydoc_data.topics": digest},
        blind=blind_loss(seen, torch.bincount(asked[asked != UNASKED], minlength=256)),
        num_training=len(training), num_held_out=len(testing), draw=draw,
        pick=lambda numbers: examples(testing[numbers], fixed[numbers]),
    )  # fmt: skip
