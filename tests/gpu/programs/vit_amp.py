"""A vision transformer is trained in mixed precision, with a gradient scaler and AdamW."""

import timm
import torch

import common


def make():
    model = timm.create_model("vit_small_patch16_224", num_classes=100)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    batches = [(torch.randn(32, 3, 224, 224), torch.randint(100, (32,))) for _ in range(4)]

    def step(number):
        images, labels = batches[number % len(batches)]
        with torch.autocast("cuda", torch.float16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=80, strict=True)
