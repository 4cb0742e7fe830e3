"""A neural ordinary differential equation is fitted to a spiral with an adaptive solver."""

import torch
import torchdiffeq

import common


class Field(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))

    def forward(self, time, state):
        return self.net(state**3)


def make():
    field = Field()
    optimizer = torch.optim.RMSprop(field.parameters(), lr=1e-3)
    times = torch.linspace(0, 1, 5)
    start = torch.randn(512, 2)
    angles = times[:, None, None]
    wanted = torch.cos(angles) * start + torch.sin(angles) * start.flip(1)

    def step(number):
        loss = (torchdiffeq.odeint(field, start, times, rtol=1e-4, atol=1e-5) - wanted).abs().mean()
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=50)
