"""Objects are looked for in pictures of varying size: the number of candidates differs from picture to picture."""

import random

import torch
import torchvision

import common


def make():
    model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=21, box_score_thresh=0.01
    ).eval()
    picture = torch.rand(3, 480, 640)
    sizes = random.Random(8)

    @torch.inference_mode()
    def step(number):
        pictures = [picture[:, : sizes.randint(200, 480), : sizes.randint(200, 640)] for _ in range(4)]
        return sum(found["boxes"].sum() + found["scores"].sum() for found in model(pictures))

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=120)
