"""Batches of sentences of varying length are embedded: an encoder, mean pooling, normalisation."""

import random

import torch
from transformers import BertConfig, BertModel

import common


def make():
    config = BertConfig(
        vocab_size=30000, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )
    model = BertModel(config, add_pooling_layer=False).eval()
    tokens = torch.randint(30000, (64, 256))
    lengths = random.Random(3)

    @torch.inference_mode()
    def step(number):
        longest = lengths.randint(8, 256)
        ends = torch.tensor([lengths.randint(4, longest) for _ in range(64)], device="cuda")
        mask = (torch.arange(longest, device="cuda") < ends[:, None]).long()
        hidden = model(tokens[:, :longest], attention_mask=mask).last_hidden_state
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return torch.nn.functional.normalize(pooled, dim=1).sum()

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=200)
