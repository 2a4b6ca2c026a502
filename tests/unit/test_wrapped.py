"""Models as people wrap them: sites are found, patched, proven to run, put back exactly, and trained as without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from e2e import registry
from e2e.arms import Arena
from e2e.bound import Bound, Candidate, Part
from e2e.errors import UsageError
from e2e.numerics.exercise import engage
from e2e.patch import Patch, Standing, copy_sharing_weights, everywhere, sites_in, sites_of
from e2e.schema.workload import TrainSpec
from e2e.tasks._wrappers import need_bare, uncompiled
from e2e.tasks.causal_lm import _checkpoint
from e2e.trainer import UPDATE, Update
from tests import tiny
from tests.sessions import LlamaSession

torch.set_num_threads(1)

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning"),  # torch's own, on first import
    pytest.mark.filterwarnings("ignore:.*grad attribute of a Tensor that is not a leaf:UserWarning"),  # Dynamo looks
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing.*:FutureWarning"),  # PEFT asks
    pytest.mark.usefixtures("group"),
]
OP = registry.load_op("rms_norm")
LINEAR = registry.load_op("linear")
EAGER, CANDIDATE = "baseline:eager", "candidate:eager"
SEEDS = [11, 12, 13]
Wrap = Callable[[Any], Any]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One process that takes itself for several."""
    file = tmp_path_factory.mktemp("gloo") / "init"
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
    torch._dynamo.reset()


def each_layer(wrap: Wrap) -> Wrap:
    def wrapped(model: Any) -> Any:
        for place, layer in enumerate(model.model.layers):
            model.model.layers[place] = wrap(layer)
        return model

    return wrapped


def compiled(module: Any) -> Any:
    return torch.compile(module, backend="eager")


def compiled_in_place(module: Any) -> Any:
    module.compile(backend="eager")
    return module


def checkpointing(model: Any) -> Any:
    _checkpoint(model)
    return model.train()


def hooked(model: Any) -> Any:
    """Hooks that change what they see: one that got lost would show."""
    for module in (model.model.norm, model.model.layers[0].input_layernorm):
        module.register_forward_pre_hook(lambda module, args: (args[0] * 1.5,))
        module.register_forward_hook(lambda module, args, output: output * 0.5)
    return model


def tied(model: Any) -> Any:
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def sharded(model: Any) -> Any:
    how = ShardingStrategy.NO_SHARD
    return FullyShardedDataParallel(model, sharding_strategy=how, device_id=torch.device("cpu"), use_orig_params=True)


def sharded_in_place(model: Any) -> Any:
    mesh = init_device_mesh("cpu", (1,))
    each_layer(lambda layer: fully_shard(layer, mesh=mesh))(model)
    return fully_shard(model, mesh=mesh)


class LoRA(nn.Module):
    """A frozen linear layer beside a trained product of two thin ones, as PEFT has it."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base.requires_grad_(False)
        generator = torch.Generator().manual_seed(base.in_features)
        self.a = nn.Parameter(torch.randn(4, base.in_features, generator=generator) / 8)
        self.b = nn.Parameter(torch.randn(base.out_features, 4, generator=generator) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.base_layer(x) + x @ self.a.T @ self.b.T


def adapted(model: Any) -> Any:
    model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = LoRA(layer.self_attn.q_proj)
    return model


def peft(model: Any) -> Any:
    library = pytest.importorskip("peft")
    return library.get_peft_model(model, library.LoraConfig(target_modules=["q_proj", "v_proj"], r=4))


COPIED: dict[str, Wrap] = {
    "nothing": lambda model: model,
    "torch.compile": compiled,
    "torch.compile of each layer": each_layer(compiled),
    "compile() of each layer": each_layer(compiled_in_place),
    "DDP": DistributedDataParallel,
    "checkpointing": checkpointing,
    "checkpoint_wrapper of each layer": each_layer(checkpoint_wrapper),
    "hooks": hooked,
    "tied weights": tied,
    "LoRA": adapted,
    "PEFT": peft,
}
"""Arms can be copies of these."""
SHARDED: dict[str, Wrap] = {"FSDP": sharded, "fully_shard": sharded_in_place}
"""These refuse to be copied, and can be patched in place only, as `e2e adopt` does."""
copied = pytest.mark.parametrize("wrap", COPIED.values(), ids=COPIED.keys())
any_way = pytest.mark.parametrize("wrap", [*COPIED.values(), *SHARDED.values()], ids=[*COPIED.keys(), *SHARDED.keys()])


class Wrapped(LlamaSession):
    """The tiny Llama's step, of the model in a wrapper."""

    def __init__(self, wrap: Wrap, *, step: str = "prefill", train: TrainSpec | None = None) -> None:
        torch._dynamo.reset()
        super().__init__(step=step, train=train)
        bare = self.model
        if step == "train":
            del bare.optimizer
        elif wrap is DistributedDataParallel:  # which wants something to train
            bare.requires_grad_(True)
        self.model = wrap(bare)
        if self.train is not None:
            self.model.add_module(UPDATE, Update(self.train))


def ones(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """A kernel that anyone would notice."""
    return torch.ones_like(x)


def outputs(session: Wrapped, model: nn.Module) -> Tensor:
    with torch.no_grad():
        (logits,) = session.program(model)(*session.batch(3))
    return logits.clone()


def states(model: nn.Module) -> list[dict[str, Any]]:
    return [dict(vars(module)) for module in model.modules()]


@any_way
def test_sites_are_found_patched_in_place_and_put_back_exactly(wrap: Wrap) -> None:
    session = Wrapped(wrap)
    own = outputs(session, session.model)
    sites = sites_of(OP, session.model, ["*"])
    assert [site.incompatible for site in sites] == [None] * tiny.SITES
    before = states(session.model)
    patch = Patch(OP, sites, everywhere(ones))
    assert not torch.equal(outputs(session, session.model), own)
    patch.undo()
    assert states(session.model) == before
    assert torch.equal(outputs(session, session.model), own)


@copied
def test_arms_are_copies_that_leave_the_model_as_it_is(wrap: Wrap) -> None:
    session = Wrapped(wrap)
    own = outputs(session, session.model)
    sites = sites_of(OP, session.model, ["*"])
    arm = copy_sharing_weights(session.model)
    assert torch.equal(outputs(session, arm), own)
    Patch(OP, sites_in(arm, sites), everywhere(ones))
    assert not torch.equal(outputs(session, arm), own)
    assert torch.equal(outputs(session, session.model), own)


@copied
def test_a_kernel_is_proven_to_run_at_every_site(wrap: Wrap) -> None:
    session = Wrapped(wrap)
    sites = sites_of(OP, session.model, ["*"])
    found = engage(session, [Standing(OP, sites, OP.reference)], seed=3)
    assert found == {"calls": {site.fqn: 1 for site in sites}, "watermark_moved": [True]}


@copied
@pytest.mark.parametrize("fields", [{}, {"autocast": "bfloat16"}], ids=["plain", "autocast"])
def test_a_kernel_trains_as_the_baseline_does(wrap: Wrap, fields: Any) -> None:
    session = Wrapped(wrap, step="train", train=TrainSpec(**fields))
    sites = sites_of(OP, session.model, ["*"])
    arena = Arena(session, [Part(OP, sites, Candidate(Bound(OP.reference, "a" * 64), frozenset(map(fqn, sites))))])
    for name in (EAGER, CANDIDATE):
        arena.prepare(name, seed=7)
    own = arena.run(EAGER, seeds=SEEDS)
    for mine, theirs in zip(arena.run(CANDIDATE, seeds=SEEDS), own, strict=True):
        assert mine[1] == pytest.approx(theirs[1], rel=0.05 if fields else 1e-3, abs=0.05 if fields else 1e-3)
    assert arena.run(EAGER, seeds=SEEDS) == own


def fqn(site: Any) -> str:
    return str(site.fqn)


def test_adapters_train_alone_and_their_base_layers_are_sites() -> None:
    session = Wrapped(adapted, step="train")
    names = [site.fqn for site in sites_of(LINEAR, session.model, ["*q_proj*"])]
    assert names == [f"model.layers.{layer}.self_attn.q_proj.base_layer" for layer in range(tiny.LAYERS)]
    arena = Arena(session, [Part(LINEAR, sites_of(LINEAR, session.model, ["*"]), None)])
    arena.prepare(EAGER, seed=7)
    trained = {name.rpartition(".")[2] for name in arena.probe(EAGER, 7) if name.startswith("moved:")}
    assert trained == {"a", "b"}


# ---- What a workload's factory may give


@pytest.mark.parametrize(
    ("wrap", "names"),
    [
        (compiled, [""]),
        (each_layer(compiled), [f"model.layers.{layer}" for layer in range(tiny.LAYERS)]),
        (lambda model: compiled(each_layer(compiled_in_place)(model)), ["", "model.layers.0", "model.layers.1"]),
        (lambda model: model, []),
    ],
)
def test_torch_compile_is_taken_off_so_that_an_eager_arm_is_eager(wrap: Wrap, names: list[str]) -> None:
    bare = tiny.llama()
    structure = [name for name, _ in bare.named_modules()]
    model, found = uncompiled(wrap(bare))
    assert model is bare
    assert found[: len(names)] == names[: tiny.LAYERS + 1]
    assert [name for name, _ in model.named_modules()] == structure
    assert all(module._compiled_call_impl is None for module in model.modules())


def hooked_on_a_parameter(model: Any) -> Any:
    model.model.norm.weight.register_hook(lambda gradient: 2 * gradient)
    return model


@pytest.mark.parametrize("wrap", [*SHARDED.values(), DistributedDataParallel, hooked_on_a_parameter])
def test_a_model_that_no_arm_can_be_a_copy_of_is_refused_in_words(wrap: Wrap) -> None:
    with pytest.raises(UsageError, match=r"own\.py:build (gave|left) a .*: give the model as it is before that"):
        need_bare(wrap(tiny.llama()), "model.factory: own.py:build")


def test_a_factory_that_freezes_is_heeded(tmp_path: Path) -> None:
    from e2e.configuration import load_workload
    from e2e.schema.workload import cells_of

    freezes = "model.requires_grad_(False).model.norm.requires_grad_(True)"
    (tmp_path / "own.py").write_text(f"def build(model):\n    {freezes}\n    return model\n")
    file = tiny.write_workload(tmp_path)
    workload = load_workload(str(file), ["step=train", "model.factory=own.py:build"]).workload
    session = registry.load_task(workload.task, tmp_path, None).open(
        workload, cells_of(workload)[0], root=tmp_path, device="cpu", seed=1
    )
    assert [name for name, item in session.model.named_parameters() if item.requires_grad] == ["model.norm.weight"]
