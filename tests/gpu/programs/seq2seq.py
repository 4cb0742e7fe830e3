"""A small T5 is trained: texts and answers both of varying length."""

import random

import torch
from transformers import T5Config, T5ForConditionalGeneration

import common


def make():
    config = T5Config(
        vocab_size=8000, d_model=384, d_kv=64, d_ff=1024, num_layers=4, num_heads=6, decoder_start_token_id=0
    )
    model = T5ForConditionalGeneration(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens, answers = torch.randint(1, 8000, (16, 256)), torch.randint(1, 8000, (16, 96))
    lengths = random.Random(6)

    def step(number):
        texts, labels = tokens[:, : lengths.randint(32, 256)], answers[:, : lengths.randint(8, 96)]
        loss = model(input_ids=texts, labels=labels.contiguous()).loss
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=120)
