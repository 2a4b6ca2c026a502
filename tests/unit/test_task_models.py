"""How a model is read: factories, checkpoints that lack something, code that comes along, GGUF."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModelForCausalLM

from e2e.errors import EnvironmentFault, UsageError
from e2e.schema.workload import ModelSpec
from e2e.story_facts import _model
from e2e.tasks import _gguf
from e2e.tasks._gguf import converted
from e2e.tasks._model import Loaded, facts_of, load_model
from tests import tiny

torch.set_num_threads(1)

_OWN_CODE = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM


class OwnConfig(LlamaConfig):
    model_type = "own_llama"


class OwnLlama(LlamaForCausalLM):
    config_class = OwnConfig
"""
_FACTORY = """\
import torch


def build():
    torch.manual_seed(3)
    return torch.nn.Linear(4, 4)


def double(model):
    model.lm_head.weight.data.mul_(2)
    return model


def nothing(model):
    return 7
"""


def spec(**fields: Any) -> ModelSpec:
    return ModelSpec.model_validate({"dtype": "float32", **fields})


def load(model: ModelSpec, root: Path, *, seed: int = 1) -> Loaded:
    return load_model(model, AutoModelForCausalLM, root=root, device="cpu", seed=seed)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tiny.llama().save_pretrained(tmp_path / "model")
    (tmp_path / "own.py").write_text(_FACTORY)
    return tmp_path


def lose(folder: Path, *names: str) -> None:
    file = folder / "model" / "model.safetensors"
    kept = {name: tensor for name, tensor in load_file(file).items() if name not in names}
    save_file(kept, file, metadata={"format": "pt"})


# ---- Checkpoints


def test_a_whole_checkpoint_has_nothing_drawn(folder: Path) -> None:
    assert load(spec(id="model"), folder).drawn == ()


def test_weights_that_a_checkpoint_lacks_are_drawn_by_the_seed_and_named(folder: Path) -> None:
    lose(folder, "lm_head.weight")
    one, same, other = (load(spec(id="model"), folder, seed=seed) for seed in (1, 1, 2))
    assert one.drawn == ("lm_head.weight",)
    weights = [loaded.model.get_parameter("lm_head.weight") for loaded in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    facts = facts_of(one, spec(id="model"), data="text", is_synthetic=False)
    assert facts.drawn == ["lm_head.weight"]


def test_a_damaged_checkpoint_is_named(folder: Path) -> None:
    (folder / "model" / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(EnvironmentFault, match="the weights of model cannot be read"):
        load(spec(id="model"), folder)


def test_the_attention_in_use_is_told_beside_the_one_asked_for(folder: Path) -> None:
    asked = spec(id="model", attention="eager")
    facts = facts_of(load(asked, folder), asked, data="text", is_synthetic=False)
    assert (facts.attention_asked, facts.attention) == ("eager", "eager")


# ---- Factories


def test_a_factory_in_a_file_or_a_module_is_given_the_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = load(spec(id="model"), folder).model.get_parameter("lm_head.weight")
    monkeypatch.syspath_prepend(str(folder))
    for factory in ("own.py:double", "own:double"):
        doubled = load(spec(id="model", factory=factory), folder).model.get_parameter("lm_head.weight")
        torch.testing.assert_close(doubled, 2 * own)
    monkeypatch.delitem(sys.modules, "own")


def test_a_factory_alone_builds_the_model(folder: Path) -> None:
    model = load(spec(factory="own.py:build"), folder).model
    assert isinstance(model, nn.Linear)
    assert not model.training


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("none.py:build", "no file"),
        ("own.py:none", "own.py has no function 'none'"),
        ("no_such_module_anywhere:build", "cannot be imported"),
        ("own.py:nothing", r"gave int, which is no torch\.nn\.Module"),
    ],
)
def test_a_factory_that_gives_no_model_is_the_callers_mistake(folder: Path, factory: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        load(spec(id="model", factory=factory), folder)


# ---- Code that comes with a model


@pytest.fixture
def own_code(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from transformers import dynamic_module_utils

    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(folder / "modules"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    (folder / "model" / "modeling_own.py").write_text(_OWN_CODE)
    file = folder / "model" / "config.json"
    config = json.loads(file.read_text())
    classes = {"AutoConfig": "modeling_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnLlama"}
    file.write_text(json.dumps({**config, "model_type": "own_llama", "auto_map": classes}))
    return folder


def test_code_that_comes_with_a_model_does_not_run_unless_asked(own_code: Path) -> None:
    with pytest.raises(UsageError, match=r"runs only with model\.trust_remote_code: true"):
        load(spec(id="model"), own_code)


def test_code_that_is_trusted_is_known_by_its_hash(own_code: Path) -> None:
    trusted = spec(id="model", trust_remote_code=True)
    facts = facts_of(load(trusted, own_code), trusted, data="text", is_synthetic=False)
    assert facts.model_class == "OwnLlama"
    assert facts.code_sha256 is not None
    plain = spec(weights="random", config={"model_type": "llama", **_SMALL})
    assert facts_of(load(plain, own_code), plain, data="text", is_synthetic=False).code_sha256 is None


_SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


# ---- GGUF


def test_a_gguf_is_converted_once_and_again_when_it_changed(
    tmp_path: Path, e2e_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    def convert(file: Path, folder: Path) -> None:
        made.append(folder)
        folder.mkdir()

    monkeypatch.setattr(_gguf, "_convert", convert)
    file = tmp_path / "m.gguf"
    file.write_bytes(b"GGUF")
    first = converted(file)
    assert converted(file) == first
    assert e2e_cache in first.parents
    file.write_bytes(b"GGUF2")
    assert converted(file) != first
    assert len(made) == 2


def test_what_is_no_gguf_is_said_to_be_none_and_leaves_nothing(tmp_path: Path, e2e_cache: Path) -> None:
    file = tmp_path / "broken.gguf"
    file.write_bytes(b"no model")
    with pytest.raises(EnvironmentFault, match=r"broken\.gguf cannot be converted"):
        converted(file)
    assert [path for path in (e2e_cache / "models").glob("broken*") if path.suffix != ".lock"] == []


class Packed(nn.Module):
    """A model whose checkpoint packs its weights, and that refuses to be moved."""

    is_quantized = True

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("qweight", torch.zeros(4, 8, dtype=torch.int32))
        self.norm = nn.LayerNorm(8)

    def to(self, *_: Any, **__: Any) -> nn.Module:
        raise ValueError("`.to` is not supported for packed models")


class PackedAuto:
    """Loads one, where what unpacks it is installed."""

    is_installed = True

    def from_pretrained(self, name: str, *, config: Any, device_map: Any, **_: Any) -> Any:
        assert {"": "cpu"} == device_map
        if not self.is_installed:
            raise ImportError("Loading a GPTQ quantized model requires gptqmodel\nand more")
        return Packed(config), {"missing_keys": []}


def test_a_quantised_checkpoint_stays_where_it_was_loaded_and_says_what_is_packed(tmp_path: Path) -> None:
    config = {"model_type": "llama", "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    packed, auto = ModelSpec(id="packed", dtype="float32"), PackedAuto()
    loaded = load_model(packed, auto, root=tmp_path, device="cpu", seed=0)
    facts = facts_of(loaded, packed, data="text", is_synthetic=False)
    assert ("gptq", {"float32": 16, "int32": 32}) == (facts.quantization, facts.dtypes)
    ((_, text), _) = _model(facts)
    assert "quantised by gptq, packed elements: 32 in int32" in text
    auto.is_installed = False
    with pytest.raises(EnvironmentFault, match=r"needs more than is installed: Loading a GPTQ .* gptqmodel$"):
        load_model(packed, auto, root=tmp_path, device="cpu", seed=0)
