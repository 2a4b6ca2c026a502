"""Loading a Transformers model as a workload states it, and checking that it is what was stated."""

from __future__ import annotations

import difflib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PretrainedConfig
from transformers.utils.logging import disable_progress_bar

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import ModelSpec


def load_causal_lm(spec: ModelSpec, *, root: Path, device: str, seed: int) -> nn.Module:
    """The model in eval mode on `device`, with every floating parameter in the stated dtype.

    Raises:
        EnvironmentFault: the weights or the config cannot be reached.
        UsageError: the config, the factory or the dtype do not fit.
    """
    disable_progress_bar()  # a worker's output is quoted where it died
    dtype = getattr(torch, spec.dtype)
    config = _config(spec, root)
    common: dict[str, Any] = {"attn_implementation": spec.attention}
    if spec.weights == "random":
        torch.manual_seed(seed)
        try:
            with torch.device(device):
                model = AutoModelForCausalLM.from_config(config, dtype=dtype, **common)
        except _IMPOSSIBLE as error:
            if "memory" in str(error).lower():  # not for what the file says, but for how much of it fits here
                raise
            raise UsageError(f"model.config: no such model can be built: {_first_line(error)}") from error
        _stir(model, seed)
    else:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                _location(spec, root), revision=spec.revision or "main", config=config, dtype=dtype, **common
            )
        except (OSError, SafetensorError) as error:
            raise EnvironmentFault(f"the weights of {spec.id} cannot be read: {_first_line(error)}") from error
        except RuntimeError as error:  # sizes that do not fit the config
            raise UsageError(f"model.config does not fit the weights of {spec.id}: {_first_line(error)}") from error
    model = model.to(device).eval()
    if spec.factory:
        model = _factory(spec.factory, root)(model).to(device).eval()
    _check_dtype(model, dtype)
    return model


def _config(spec: ModelSpec, root: Path) -> PretrainedConfig:
    overlay = dict(spec.config)
    model_type = overlay.pop("model_type", None)
    if model_type is not None and spec.weights == "random":
        try:
            _check_names(AutoConfig.for_model(model_type), overlay)
            return AutoConfig.for_model(model_type, **overlay)
        except _IMPOSSIBLE as error:
            raise UsageError(f"model.config: {_first_line(error)}") from error
    try:
        config = AutoConfig.from_pretrained(_location(spec, root), revision=spec.revision or "main")
    except (OSError, ValueError) as error:
        raise EnvironmentFault(f"the config of {spec.id} cannot be read: {_first_line(error)}") from error
    _check_names(config, overlay)
    for name, value in overlay.items():
        setattr(config, name, value)
    return config


_IMPOSSIBLE = (
    *(ValueError, TypeError, RuntimeError, ArithmeticError, LookupError, AttributeError, AssertionError),
    StrictDataclassError,
)
"""What transformers and torch raise for numbers that make no model; each family checks others, and each in its way."""


def _check_names(config: PretrainedConfig, overlay: Mapping[str, Any]) -> None:
    """Transformers keeps a misspelt field beside the real one, which then goes unchanged.

    Raises:
        UsageError: a field that this kind of config does not have; with the nearest one that it has.
    """
    known = {*config.to_dict(), *vars(config), *config.attribute_map}
    for name in overlay:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"see the fields of {type(config).__name__}"
            raise UsageError(f"model.config: {config.model_type} has no field {name!r}; {hint}")


def _location(spec: ModelSpec, root: Path) -> str:
    folder = root / str(spec.id)
    return str(folder) if folder.is_dir() else str(spec.id)


def _stir(model: nn.Module, seed: int) -> None:
    """Norm weights start at one, which hides an ignored weight and double application: spread them."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                noise = torch.randn(parameter.shape, generator=generator) * 0.1 + 1.0
                parameter.mul_(noise.to(parameter.device, parameter.dtype))


def _factory(text: str, root: Path) -> Any:
    file, _, name = text.rpartition(":")
    path = root / file
    if not path.is_file():
        raise UsageError(f"model.factory: no file {path}")
    spec = importlib.util.spec_from_file_location(f"e2e_factory_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"model.factory: {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile looks its functions up there
    spec.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"model.factory: {path} has no function {name!r}")
    return function


def _check_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    wrong = [name for name, p in model.named_parameters() if p.is_floating_point() and p.dtype != dtype]
    if wrong:
        raise UsageError(f"model.dtype is {dtype}, but {len(wrong)} parameters are not, such as {wrong[0]}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
