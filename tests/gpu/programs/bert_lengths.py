"""A BERT classifier is trained. Every batch is as long as its longest text."""

import random

import torch
from transformers import BertConfig, BertForSequenceClassification

import common


def make():
    config = BertConfig(
        vocab_size=8000, hidden_size=512, num_hidden_layers=6, num_attention_heads=8, intermediate_size=2048
    )
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, labels = torch.randint(8000, (16, 256)), torch.randint(2, (16,))
    lengths = random.Random(1)

    def step(number):
        batch = tokens[:, : lengths.randint(16, 256)]
        loss = model(batch, attention_mask=torch.ones_like(batch), labels=labels).loss
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=80)
