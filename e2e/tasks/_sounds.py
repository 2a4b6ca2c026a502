"""Sound as batches of log-mel features: a folder of WAV files, or drawn features that are called so."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import AutoFeatureExtractor, WhisperFeatureExtractor

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import SYNTHETIC, DataSpec
from e2e.tasks._model import Source

RATE_HZ = 16_000
MOST_FILES = 64
"""Files of a folder that are read, in the order of their names."""
_PALEST = 0.7


class Sounds:
    """Features of one shape, from which batches are drawn."""

    def __init__(self, features: Tensor, label: str) -> None:
        """`features` (N, mels, frames)."""
        self._features = features
        self.label = label
        """Says what the sounds are, for the report."""

    @classmethod
    def read(cls, data: DataSpec, source: Source, *, mels: int, frames: int) -> Sounds:
        """Read and turn into features, cut or padded with silence to the length that the model takes.

        Raises:
            UsageError: no such folder, no sound in it, or not 16-bit at 16 kHz.
            EnvironmentFault: the model's feature extractor cannot be reached.
        """
        if data.path == SYNTHETIC:
            return cls(torch.randn(16, mels, frames, generator=torch.Generator().manual_seed(0)), "drawn features")
        folder = source.root / data.path
        files = sorted(folder.rglob("*.wav"))[:MOST_FILES] if folder.is_dir() else []
        if not files:
            raise UsageError(f"data.path: {'no .wav files in' if folder.is_dir() else 'no folder'} {folder}")
        extractor = _extractor(source, mels)
        found = extractor([_samples(file) for file in files], sampling_rate=RATE_HZ, return_tensors="pt")
        features = found.input_features[..., :frames]
        if features.shape[1:] != (mels, frames):
            raise UsageError(f"model: takes {mels} x {frames} features, and its extractor gives {features.shape[1:]}")
        return cls(features, f"{len(files)} sounds of {data.path}")

    def batch(self, count: int, seed: int) -> Tensor:
        """`count` drawn sounds, each at a drawn contrast: there are few, and no step may repeat another's values.

        Shapes:
            -> (count, mels, frames), float32, on the host.
        """
        generator = torch.Generator().manual_seed(seed)
        places = torch.randint(0, self._features.shape[0], (count,), generator=generator)
        contrast = _PALEST + (1 - _PALEST) * torch.rand(count, 1, 1, generator=generator)
        return self._features[places] * contrast


def _extractor(source: Source, mels: int) -> WhisperFeatureExtractor:
    if not source.brings_files:
        return WhisperFeatureExtractor(feature_size=mels)
    try:
        return AutoFeatureExtractor.from_pretrained(source.name, **source.options)
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"the feature extractor of {source.spec.id} cannot be read: {error}") from error


def _samples(file: Path) -> np.ndarray:
    """From -1 to 1, the first channel."""
    try:
        with wave.open(str(file)) as sound:
            form = (sound.getframerate(), sound.getsampwidth())
            raw, channels = sound.readframes(sound.getnframes()), sound.getnchannels()
    except (OSError, EOFError, wave.Error) as error:
        raise UsageError(f"data.path: {file} cannot be read: {error}") from error
    if form != (RATE_HZ, 2):
        raise UsageError(f"data.path: {file} has {form[0]} Hz and {8 * form[1]} bits; 16000 Hz and 16 bits are needed")
    return np.frombuffer(raw, dtype="<i2").reshape(-1, channels)[:, 0].astype(np.float32) / 2**15
