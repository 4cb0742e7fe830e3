"""A Conformer learns to label the frames of recordings of varying length, from their spectrograms."""

import random

import torch
import torchaudio

import common


def make():
    spectrogram = torchaudio.transforms.MelSpectrogram(n_fft=512, hop_length=160, n_mels=80).cuda()
    model = torchaudio.models.Conformer(80, 4, 256, 4, 31)
    head = torch.nn.Linear(80, 40)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4)
    sound, labels = torch.randn(8, 64_000), torch.randint(40, (8, 401))
    lengths = random.Random(7)

    def step(number):
        frames = spectrogram(sound[:, : lengths.randint(16_000, 64_000)]).clamp(min=1e-5).log().transpose(1, 2)
        count = torch.full((8,), frames.shape[1], device="cuda")
        logits = head(model(frames, count)[0])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, : frames.shape[1]].flatten())
        return common.descend(optimizer, loss)

    return step


if __name__ == "__main__":
    common.run_torch(make, steps=120)
