"""Loading a Transformers model as a workload states it, and checking that it is what was stated."""

from __future__ import annotations

import difflib
import hashlib
import importlib.util
import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PretrainedConfig
from transformers.utils.logging import disable_progress_bar

from e2e.errors import EnvironmentFault, UsageError
from e2e.model_files import place_of
from e2e.schema.evidence import ModelFacts
from e2e.schema.workload import ModelSpec
from e2e.tasks._gguf import converted
from e2e.tasks._wrappers import need_bare, uncompiled


@dataclass(frozen=True)
class Source:
    """A workload's model, and where its files are: what Transformers' `from_pretrained` is told."""

    spec: ModelSpec
    root: Path

    @cached_property
    def name(self) -> str:
        """Folder or hub id.

        Raises:
            UsageError, EnvironmentFault: see `model_files.place_of`.
        """
        place = place_of(self.spec, self.root)
        if place.path is None:
            return str(place.hub)
        return str(converted(place.path) if place.is_gguf else place.path)

    @property
    def brings_files(self) -> bool:
        """Whether there are files of the model's own beside its weights; a config alone or a factory has none."""
        return self.spec.id is not None and self.spec.weights == "pretrained"

    @property
    def options(self) -> dict[str, Any]:
        """Beside the name."""
        return {"revision": self.spec.revision or "main", "trust_remote_code": self.spec.trust_remote_code}


class Loaded(NamedTuple):
    """A model, and what its checkpoint lacked."""

    model: nn.Module
    drawn: tuple[str, ...]
    """Weights that are not in the checkpoint, and that Transformers drew."""
    uncompiled: tuple[str, ...] = ()
    """Modules that came compiled, and are not any more; the model as a whole has no name."""


def load_model(spec: ModelSpec, kind: Any, *, root: Path, device: str, seed: int) -> Loaded:
    """The model in eval mode on `device`, with every floating parameter in the stated dtype; `kind`: an `Auto*` class.

    Raises:
        EnvironmentFault: the weights or the config cannot be reached.
        UsageError: the config, the factory or the dtype do not fit.
    """
    disable_progress_bar()  # a worker's output is quoted where it died
    torch.manual_seed(seed)
    model, drawn, _ = (None, (), ()) if spec.is_built_by_factory else _read(Source(spec, root), kind, device, seed)
    if spec.factory:
        given = () if model is None else (_on(device, model).eval(),)
        model = _factory(spec, root)(*given)
    if not isinstance(model, nn.Module):
        raise UsageError(f"model.factory: {spec.factory} gave {type(model).__name__}, which is no torch.nn.Module")
    model, compiled = uncompiled(_on(device, model).eval())
    if spec.factory:
        need_bare(model, f"model.factory: {spec.factory}")
    _check_dtype(model, getattr(torch, spec.dtype))
    return Loaded(model, drawn, tuple(compiled))


def _on(device: str, model: nn.Module) -> nn.Module:
    """There; packed weights already are, and some kinds of them refuse to be moved."""
    return model if getattr(model, "is_quantized", False) else model.to(device)


def _read(source: Source, kind: Any, device: str, seed: int) -> Loaded:
    """As Transformers builds it: with the checkpoint's weights, or with drawn ones."""
    spec, config = source.spec, _config(source)
    options: dict[str, Any] = {
        "dtype": getattr(torch, spec.dtype),
        "attn_implementation": spec.attention,
        "trust_remote_code": spec.trust_remote_code,
    }
    model: nn.Module
    if spec.weights == "random":
        try:
            with torch.device(device):
                model = kind.from_config(config, **options)
        except _IMPOSSIBLE as error:
            if "memory" in str(error).lower():  # not for what the file says, but for how much of it fits here
                raise
            raise UsageError(f"model.config: no such model can be built: {_first_line(error)}") from error
        _stir(model, seed)
        return Loaded(model, ())
    options |= {**source.options, "config": config, "output_loading_info": True}
    if _quantization_of(config) is not None:
        options["device_map"] = {"": device}
    try:
        model, found = kind.from_pretrained(source.name, **options)
    except (OSError, SafetensorError) as error:
        raise EnvironmentFault(f"the weights of {spec.id} cannot be read: {_first_line(error)}") from error
    except ImportError as error:  # what packs its weights, or puts them on the device
        raise EnvironmentFault(f"loading {spec.id} needs more than is installed: {_first_line(error)}") from error
    except (RuntimeError, ValueError) as error:  # sizes that do not fit the config, another kind of model
        raise UsageError(f"model.config does not fit the weights of {spec.id}: {_first_line(error)}") from error
    return Loaded(model, tuple(sorted(found["missing_keys"])))


def _quantization_of(config: Any) -> str | None:
    """How a checkpoint's weights are packed, as its config says: `gptq`, `bitsandbytes_4bit`."""
    said = getattr(config, "quantization_config", None)
    if said is None:
        return None
    method = said.get("quant_method") if isinstance(said, dict) else getattr(said, "quant_method", None)
    return str(getattr(method, "value", method) or "unknown")


def facts_of(loaded: Loaded, spec: ModelSpec, *, data: str, is_synthetic: bool) -> ModelFacts:
    """What was really built, and from which data its inputs come."""
    model = loaded.model
    config: Any = getattr(model, "config", None)
    dtypes: Counter[str] = Counter()
    for tensor in {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}.values():  # tied ones once
        dtypes[str(tensor.dtype).removeprefix("torch.")] += tensor.numel()
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    return ModelFacts(
        model_class=type(model).__name__,
        parameters=sum(p.numel() for p in model.parameters()),
        dtypes=dict(sorted(dtypes.items())),
        quantization=_quantization_of(config),
        attention_asked=spec.attention,
        attention=getattr(config, "_attn_implementation", None),
        layers=getattr(text, "num_hidden_layers", None),
        hidden=getattr(text, "hidden_size", None),
        vocabulary=getattr(text, "vocab_size", None),
        data=data,
        is_synthetic=is_synthetic,
        drawn=list(loaded.drawn),
        uncompiled=list(loaded.uncompiled),
        code_sha256=_code_of(model),
    )


def _code_of(model: nn.Module) -> str | None:
    """Hash of the files that came with the model and that its modules are from."""
    homes = {kind.__module__ for kind in map(type, model.modules()) if kind.__module__.startswith(_REMOTE)}
    files = sorted(str(sys.modules[home].__file__) for home in homes)
    content = b"".join(hashlib.sha256(Path(file).read_bytes()).digest() for file in files)
    return hashlib.sha256(content).hexdigest() if files else None


_REMOTE = "transformers_modules"
"""Package under which Transformers imports a model's own code."""


def _config(source: Source) -> PretrainedConfig:
    spec = source.spec
    overlay = dict(spec.config)
    model_type = overlay.pop("model_type", None)
    if model_type is not None and spec.weights == "random":
        try:
            _check_names(AutoConfig.for_model(model_type), overlay)
            return AutoConfig.for_model(model_type, **overlay)
        except _IMPOSSIBLE as error:
            raise UsageError(f"model.config: {_first_line(error)}") from error
    try:
        config = AutoConfig.from_pretrained(source.name, **source.options)
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            message = f"{spec.id} brings code of its own, which runs only with model.trust_remote_code: true"
            raise UsageError(message) from error
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
        UsageError: a field that neither this kind of config nor its model's code knows; with the nearest one.
    """
    settable = {name for name in dir(type(config)) if getattr(getattr(type(config), name), "fset", None)}
    known = {*config.to_dict(), *vars(config), *config.attribute_map, *settable, *_read_by_model(config)}
    for name in overlay:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"see the fields of {type(config).__name__}"
            raise UsageError(f"model.config: {config.model_type} has no field {name!r}; {hint}")


def _read_by_model(config: PretrainedConfig) -> set[str]:
    """Fields that are in no config class, but read by the family's model where they are there (`head_dim`)."""
    files = Path(inspect.getfile(type(config))).parent.glob("modeling_*.py")
    return {name for file in files for name in re.findall(r'config(?:\.|, ")(\w+)', file.read_text(encoding="utf-8"))}


def _stir(model: nn.Module, seed: int) -> None:
    """Norm weights start at one and biases at zero, which hides one that is ignored or applied twice: spread them."""
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                noise = (torch.randn(parameter.shape, generator=generator) * 0.1).to(parameter.device, parameter.dtype)
                parameter.add_(noise * parameter.where(parameter != 0, 0.2))


def _factory(spec: ModelSpec, root: Path) -> Callable[..., Any]:
    """The function that `model.factory` names: in a file beside the workload, or in an importable module."""
    home, _, name = str(spec.factory).rpartition(":")
    module = _module_in(root / home) if home.endswith(".py") else _imported(home)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError(f"model.factory: {home} has no function {name!r}")
    found: Callable[..., Any] = function
    return found


def _module_in(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"e2e_factory_{path.stem}", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"model.factory: no file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # torch.compile looks its functions up there
    spec.loader.exec_module(module)
    return module


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"model.factory: {name} cannot be imported: {error}") from error


def _check_dtype(model: nn.Module, dtype: torch.dtype) -> None:
    wrong = [name for name, p in model.named_parameters() if p.is_floating_point() and p.dtype != dtype]
    if wrong:
        raise UsageError(f"model.dtype is {dtype}, but {len(wrong)} parameters are not, such as {wrong[0]}")


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]
