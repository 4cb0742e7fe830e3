"""A small Llama continues prompts of varying length, a token at a time, with a cache that grows."""

import random

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import common


def make():
    config = LlamaConfig(
        vocab_size=16000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8,
        num_attention_heads=12, num_key_value_heads=4,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    tokens = torch.randint(16000, (8, 512))
    lengths = random.Random(5)

    @torch.inference_mode()
    def step(number):
        output = model(tokens[:, : lengths.randint(32, 512)], use_cache=True)
        for _ in range(8):
            token = output.logits[:, -1:].argmax(-1)
            output = model(token, past_key_values=output.past_key_values, use_cache=True)
        return output.logits.float().mean()

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=80)
