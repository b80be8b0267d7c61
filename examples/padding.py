"""BatchNorm on padded sequences, with and without a mask.

Batches look like text: sequences of different lengths, padded with zeros. Features have mean 3 and deviation 2. Without a
mask the zeros pull the running statistics towards zero; with one they do not count.
"""

import torch

import normlab


def batches(count: int, features: int):
    for _ in range(count):
        lengths = torch.randint(5, 41, (16,))
        x = 3 + 2 * torch.randn(16, 40, features)
        real = torch.arange(40)[None, :] < lengths[:, None]
        yield x.masked_fill(~real.unsqueeze(-1), 0.0), lengths


def main() -> None:
    torch.manual_seed(0)
    masked, plain = normlab.BatchNorm(8, momentum=None), normlab.BatchNorm(8, momentum=None)
    padding = 0.0
    for x, lengths in batches(50, 8):
        masked(x, lengths=lengths)
        plain(x)
        padding += 1 - lengths.float().mean().item() / 40
    print(f"padding: {padding / 50:.0%} of all cells; true mean 3.00, true deviation 2.00")
    for name, norm in (("with lengths=", masked), ("without", plain)):
        mean, deviation = norm.running_mean.mean(), norm.running_var.sqrt().mean()
        print(f"{name:<14} running mean {mean:.2f}, running deviation {deviation:.2f}")

    x, lengths = next(batches(1, 8))
    x[0, lengths[0] :] = float("nan")  # whatever padding holds, it stays there
    y = masked(x, lengths=lengths)
    print(f"NaN in padding: output finite {bool(y.isfinite().all())}, statistics finite "
          f"{bool(masked.running_var.isfinite().all())}")  # fmt: skip


if __name__ == "__main__":
    main()
