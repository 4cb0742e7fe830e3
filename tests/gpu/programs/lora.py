"""Low-rank adapters of a small Llama are trained in bfloat16 on sequences of varying length."""

import random

import peft
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import common


def make():
    config = LlamaConfig(
        vocab_size=16000, hidden_size=512, intermediate_size=1408, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4,
    )
    adapters = peft.LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(LlamaForCausalLM(config).to(torch.bfloat16), adapters)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    tokens = torch.randint(16000, (8, 320))
    lengths = random.Random(2)

    def step(number):
        batch = tokens[:, : lengths.randrange(64, 321, 8)]
        loss = model(input_ids=batch, labels=batch).loss
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=70, strict=True)
