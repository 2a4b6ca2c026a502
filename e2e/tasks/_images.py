"""Images as pixel batches: a folder of files, the array of an `.npz`, or drawn ones that are called so."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, is_zipfile

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.image_processing_base import ImageProcessingMixin

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import SYNTHETIC, DataSpec
from e2e.tasks._model import Source

ARRAY = "images"
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MOST_FILES = 512
"""Images of a folder that are read, in the order of their names."""
_USUAL = 0.5
"""Mean and deviation that pixels are brought to, where the model states no others."""
_PALEST = 0.7


@dataclass(frozen=True)
class Shape:
    """What a model takes."""

    channels: int
    height: int
    width: int

    @classmethod
    def of(cls, config: Any) -> Shape:
        """From a model's config.

        Raises:
            UsageError: it does not say.
        """
        size = getattr(config, "image_size", None)
        if size is None:
            raise UsageError(f"model.config: {config.model_type} states no image_size; lay one over it")
        height, width = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
        return cls(int(getattr(config, "num_channels", 3)), height, width)


class Images:
    """Images of one shape, from which batches are drawn."""

    def __init__(self, pixels: Tensor, label: str, made: Sequence[Callable[[], Tensor]] = ()) -> None:
        """`pixels` (N, C, H, W), normalised; `made`: each of them once more from where it came, (C, H, W)."""
        self._pixels = pixels
        self._made = made
        self.label = label
        """Says what the images are, for the report."""

    @classmethod
    def read(cls, data: DataSpec, source: Source, *, shape: Shape) -> Images:
        """Read, resize and normalise, as the model's own `preprocessor_config.json` says where it has one.

        Raises:
            UsageError: no such file or folder, no images in it, or not what the model takes.
            EnvironmentFault: nothing here reads image files.
        """
        if data.path == SYNTHETIC:
            generator = torch.Generator().manual_seed(0)
            drawn = torch.randn(64, shape.channels, shape.height, shape.width, generator=generator)
            return cls(drawn, "drawn pixels")
        path = source.root / data.path
        raw = _array(path, data.field or ARRAY) if path.suffix == ".npz" else _folder(path, shape)
        mean, deviation = _statistics(source, shape.channels)

        def made(image: Callable[[], Tensor]) -> Tensor:
            return (_fitted(image(), shape) - mean) / deviation

        makers = [partial(made, image) for image in raw]
        return cls(torch.stack([make() for make in makers]), f"{len(makers)} images of {data.path}", makers)

    def made(self, count: int, seed: int) -> Tensor:
        """`count` drawn images as a data pipeline makes them: read, decoded, resized and normalised now.

        Shapes:
            -> (count, C, H, W), float32, on the host.
        """
        generator = torch.Generator().manual_seed(seed)
        places = torch.randint(0, len(self._made), (count,), generator=generator)
        return torch.stack([self._made[place]() for place in places.tolist()])

    def batch(self, count: int, seed: int) -> Tensor:
        """`count` drawn images, each at a drawn contrast: there are few, and no step may repeat another's values.

        Shapes:
            -> (count, C, H, W), float32, on the host.
        """
        generator = torch.Generator().manual_seed(seed)
        places = torch.randint(0, self._pixels.shape[0], (count,), generator=generator)
        contrast = _PALEST + (1 - _PALEST) * torch.rand(count, 1, 1, 1, generator=generator)
        return self._pixels[places] * contrast


def _array(path: Path, name: str) -> Sequence[Callable[[], Tensor]]:
    """Every image of (N, H, W) or (N, H, W, C): bytes, or numbers from 0 to 1."""
    if not path.is_file():
        raise UsageError(f"data.path: no file {path}")
    if not is_zipfile(path):
        raise UsageError(f"data.path: {path} is no .npz, which is an archive of arrays (`numpy.savez`)")
    try:
        with np.load(path, allow_pickle=False) as file:
            if name not in file:
                raise UsageError(f"data.field: {path} has no array {name!r}; it has: {', '.join(file)}")
            found = file[name]
    except (OSError, ValueError, BadZipFile) as error:
        raise UsageError(f"data.path: {path} cannot be read: {error}") from error
    if found.ndim not in (3, 4) or not len(found):
        raise UsageError(f"data.path: {path}: {name} has the shape {found.shape}; images are (N, H, W) or (N, H, W, C)")
    return [partial(_channels_first, image) for image in found]


def _folder(path: Path, shape: Shape) -> Sequence[Callable[[], Tensor]]:
    files = sorted(item for item in path.rglob("*") if item.suffix.lower() in SUFFIXES) if path.is_dir() else []
    if not files:
        what = "no images in" if path.is_dir() else "no folder"
        raise UsageError(f"data.path: {what} {path}; images are {', '.join(SUFFIXES)} in a folder, or an .npz")
    if importlib.util.find_spec("PIL") is None:
        raise EnvironmentFault("reading image files needs the package pillow: pip install pillow")
    return [partial(_opened, file, "L" if shape.channels == 1 else "RGB") for file in files[:MOST_FILES]]


def _opened(file: Path, mode: str) -> Tensor:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return _channels_first(np.asarray(image.convert(mode)))
    except (OSError, UnidentifiedImageError) as error:
        raise UsageError(f"data.path: {file} cannot be read: {error}") from error


def _channels_first(image: np.ndarray) -> Tensor:
    """(H, W) or (H, W, C), bytes or 0 to 1 -> (C, H, W), float32, 0 to 1."""
    scale = 255.0 if image.dtype == np.uint8 else 1.0
    found = torch.from_numpy(np.array(image, dtype=np.float32) / scale)
    return found[None] if found.dim() == 2 else found.permute(2, 0, 1)


def _fitted(image: Tensor, shape: Shape) -> Tensor:
    if image.shape[0] not in (1, shape.channels):
        raise UsageError(f"data.path: images have {image.shape[0]} channels, and the model takes {shape.channels}")
    wide = image.expand(shape.channels, -1, -1)
    if wide.shape[1:] == (shape.height, shape.width):
        return wide
    size = (shape.height, shape.width)
    return functional.interpolate(wide[None], size, mode="bilinear", antialias=True, align_corners=False)[0]


def _statistics(source: Source, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation per channel, (C, 1, 1)."""
    found: dict[str, Any] = {}
    if source.brings_files:
        with contextlib.suppress(OSError):  # a model need not bring one
            found, _ = ImageProcessingMixin.get_image_processor_dict(source.name, **source.options)
    rows = [found.get("image_mean") or [_USUAL] * channels, found.get("image_std") or [_USUAL] * channels]
    mean, deviation = (torch.tensor(row, dtype=torch.float32)[:, None, None] for row in rows)
    return mean, deviation
