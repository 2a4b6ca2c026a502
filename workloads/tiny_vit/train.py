"""Trains the embedded vision model: a small ViT on scikit-learn's handwritten digits, in a minute on a CPU.

    pip install --no-deps scikit-learn
    python workloads/tiny_vit/train.py

Writes beside itself the weights (bfloat16, which they are rounded to before they are measured), the images that it was
not trained on, and what it reached. The digits are those of the UCI repository's test set (Alpaydin and Kaynak 1998),
a table of which scikit-learn brings along; no more of it is used.
"""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification

HERE = Path(__file__).parent
TABLE = "sklearn/datasets/data/digits.csv.gz"
"""64 values from 0 to 16 and the digit, an image a line."""
SEED, STEPS, BATCH, RATE = 7, 2000, 128, 1e-3
HELD_OUT = 297
"""Images that are not trained on: the last ones."""


def main() -> None:
    torch.manual_seed(SEED)
    table = np.loadtxt(str(importlib.metadata.distribution("scikit-learn").locate_file(TABLE)), delimiter=",")
    images = np.round(table[:, :-1].reshape(-1, 8, 8) / 16 * 255).astype(np.uint8)
    names = table[:, -1].astype(np.int64)
    pixels = (torch.from_numpy(images).float()[:, None] / 255 - 0.5) / 0.5
    labels = torch.from_numpy(names)
    model = ViTForImageClassification(
        ViTConfig(
            **{"image_size": 8, "patch_size": 2, "num_channels": 1, "num_labels": 10, "hidden_size": 64},
            **{"num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256},
            **{"architectures": ["ViTForImageClassification"]},
        )
    )
    fit(model, pixels[:-HELD_OUT], labels[:-HELD_OUT])
    model = model.to(torch.bfloat16).eval()
    right = accuracy(model, pixels[-HELD_OUT:], labels[-HELD_OUT:])
    model.save_pretrained(HERE)
    np.savez_compressed(HERE / "heldout.npz", images=images[-HELD_OUT:], labels=names[-HELD_OUT:])
    told = {"seed": SEED, "steps": STEPS, "batch": BATCH, "rate": RATE, "held_out": HELD_OUT, "accuracy": right}
    (HERE / "training.json").write_text(json.dumps(told, indent=2) + "\n")
    print(told)


def fit(model: ViTForImageClassification, pixels: Tensor, labels: Tensor) -> None:
    """AdamW, cosine, images shifted by a pixel at most."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=STEPS)
    model.train()
    for _ in range(STEPS):
        chosen = torch.randint(0, len(labels), (BATCH,))
        down, right = torch.randint(-1, 2, (2,)).tolist()
        logits = model(pixel_values=pixels[chosen].roll((down, right), (2, 3))).logits
        loss = functional.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def accuracy(model: ViTForImageClassification, pixels: Tensor, labels: Tensor) -> float:
    """Share of images that are named rightly."""
    with torch.no_grad():
        found = model(pixel_values=pixels.to(torch.bfloat16)).logits.argmax(-1)
    return round(float((found == labels).float().mean()), 4)


if __name__ == "__main__":
    main()
