"""Train a small network with PowerNorm across the end of its warm-up.

Up to step 10 each batch is divided by its own quadratic mean and the gradient is exact. From then on the running psi is used
and backward takes its correction from the running nu. Printed: the means of both over the channels.
"""

import torch
from torch import nn

import normlab


def main() -> None:
    torch.manual_seed(0)
    norm = normlab.PowerNorm(32, warmup_steps=10)
    model = nn.Sequential(nn.Linear(8, 32), norm, nn.ReLU(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    lengths = torch.tensor([20, 15, 7, 20, 12, 3, 18, 9])
    real = torch.arange(20)[None, :] < lengths[:, None]
    print("step  phase    loss   mean psi  mean |nu|")
    for step in range(20):
        x = torch.randn(8, 20, 8)
        target = x.square().sum(-1, keepdim=True)
        hidden = norm(model[0](x), mask=real)  # padding does not enter psi
        loss = (model[3](model[2](hidden)) - target)[real].square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 0 or step in (9, 10):
            phase = "warm-up" if step < norm.warmup_steps else "running"
            print(
                f"{step:>4}  {phase}  {loss.item():6.2f}  {norm.running_psi2.sqrt().mean().item():8.3f}"
                f"  {norm.running_nu.abs().mean().item():9.4f}"
            )


if __name__ == "__main__":
    main()
