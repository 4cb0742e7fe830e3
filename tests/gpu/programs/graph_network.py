"""A graph network is trained on sampled graphs, each of another number of nodes and edges."""

import random

import torch
from torch_geometric.nn import GCNConv, SAGEConv

import common


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([SAGEConv(64, 128), GCNConv(128, 128), SAGEConv(128, 128)])
        self.head = torch.nn.Linear(128, 16)

    def forward(self, nodes, edges):
        for layer in self.layers:
            nodes = layer(nodes, edges).relu()
        return self.head(nodes)


def make():
    layers = Network()
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    features, labels = torch.randn(8000, 64), torch.randint(16, (8000,))
    ends = torch.randint(1 << 30, (2, 80_000))
    sizes = random.Random(4)

    def step(number):
        nodes = sizes.randint(2000, 8000)
        edges = ends[:, : nodes * sizes.randint(4, 10)] % nodes
        loss = torch.nn.functional.cross_entropy(layers(features[:nodes], edges), labels[:nodes])
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=200)
