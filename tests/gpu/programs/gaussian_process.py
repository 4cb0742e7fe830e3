"""The parameters of an exact Gaussian process are fitted, with conjugate gradients."""

import gpytorch
import torch

import common


class Process(gpytorch.models.ExactGP):
    def __init__(self, inputs, values, likelihood):
        super().__init__(inputs, values, likelihood)
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel(ard_num_dims=4))

    def forward(self, inputs):
        return gpytorch.distributions.MultivariateNormal(self.mean(inputs), self.kernel(inputs))


def make():
    inputs = torch.rand(1500, 4)
    values = torch.sin(inputs @ torch.tensor([3.0, 2.0, 5.0, 1.0])) + 0.1 * torch.randn(1500)
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    model = Process(inputs, values, likelihood)
    model.train()
    evidence = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def step(number):
        loss = -evidence(model(inputs), values)
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=80)
