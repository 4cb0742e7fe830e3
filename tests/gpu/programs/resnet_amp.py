"""A ResNet is trained in bfloat16, channels last, with momentum."""

import timm
import torch

import common


def make():
    model = timm.create_model("resnet50", num_classes=100).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batches = [(torch.randn(32, 3, 192, 192).to(memory_format=torch.channels_last), torch.randint(100, (32,)))
               for _ in range(4)]

    def step(number):
        images, labels = batches[number % len(batches)]
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=100)
