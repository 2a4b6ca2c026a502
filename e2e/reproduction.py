"""`reproduce.py`: a result's headline ratios in plain PyTorch, for whoever does not trust this tool. Pure.

Written for what fits into one page: a causal language model's prefill or decode, an op that is a module's forward, and
a kernel that takes the op's own arguments. For anything else there is a reason and no script.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template

from e2e.arm_names import ArmName
from e2e.schema.evidence import Engagement, SiteRecord
from e2e.schema.kernel import Kernel
from e2e.schema.result import CellResult, Result
from e2e.schema.words import Mode
from e2e.schema.workload import DType, ModelSpec
from e2e.wording import arm, clean, estimate

NAME = "reproduce.py"
_PAGE = Path(__file__).parent / "reports" / "_reproduce.txt"


@dataclass(frozen=True)
class _Op:
    """How an op stands in a module, as lines of the script."""

    forward: str
    """The owner's `forward(self, x)`, with `call` in the op's place."""
    out: str
    """Memory for the output of a call."""
    schema: str
    paths: Mapping[str, str]
    """PyTorch's own, by the names that arms have for them."""


_OPS = {
    "rms_norm": _Op(
        "call(x, self.weight, getattr(self, 'variance_epsilon', None) or self.eps)",
        "torch.empty_like(x)",
        "(Tensor x, Tensor weight, float eps) -> Tensor",
        {"F.rms_norm": "lambda x, weight, eps: F.rms_norm(x, (x.shape[-1],), weight, eps)"},
    ),
    "layer_norm": _Op(
        "call(x, self.weight, self.bias, self.eps)",
        "torch.empty_like(x)",
        "(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor",
        {"F.layer_norm": "lambda x, weight, bias, eps: F.layer_norm(x, (x.shape[-1],), weight, bias, eps)"},
    ),
    "silu": _Op("call(x)", "torch.empty_like(x)", "(Tensor x) -> Tensor", {}),
    "silu_mul": _Op(
        "self.down_proj(call(self.gate_proj(x), self.up_proj(x)))",
        "torch.empty_like(gate)",
        "(Tensor gate, Tensor up) -> Tensor",
        {},
    ),
    "linear": _Op(
        "call(x, self.weight, self.bias)",
        "x.new_empty(*x.shape[:-1], weight.shape[0])",
        "(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
        {},
    ),
}
_MODES = {
    Mode.EAGER: "program",
    Mode.COMPILE: "torch.compile(program, fullgraph=True, dynamic=False)",
    Mode.REDUCE_OVERHEAD: "torch.compile(program, fullgraph=True, dynamic=False, mode='reduce-overhead')",
    Mode.MAX_AUTOTUNE: "torch.compile(program, fullgraph=True, dynamic=False, mode='max-autotune')",
    Mode.CUDA_GRAPH: "in_graph(program)",
}


class _No(Exception):
    """Why there is no script."""


def script(result: Result, root: str) -> tuple[str | None, str]:
    """The script's text, and why there is none where there is none.

    `root` is the folder that the workload's paths are relative to, as seen from where the script is run.
    """
    try:
        return _script(result, root), ""
    except _No as reason:
        return None, str(reason)


def _script(result: Result, root: str) -> str:
    deciding = next((cell for cell in result.cells if cell.verdict.latency.against), None)
    candidate = deciding.evidence.candidate if deciding is not None else None
    is_single = len(result.cells) == len(result.kernels) == 1
    if deciding is None or candidate is None or result.workload is None or not is_single:
        raise _No("it is for one kernel in one cell, with a timed verdict")
    cell, (kernel,) = deciding.cell, result.kernels
    if result.workload.task != "causal-lm" or cell.step not in ("prefill", "decode"):
        raise _No(
            f"it is for prefill and decode of causal language models, not for {cell.step} of {result.workload.task}"
        )
    op = _OPS.get(kernel.manifest.op)
    if op is None:
        raise _No(f"it is for {', '.join(_OPS)}, not for {kernel.manifest.op}")
    names = list(dict.fromkeys([candidate, *(row.arm for row in deciding.verdict.latency.against)]))
    device = "cpu" if deciding.evidence.device is None or deciding.evidence.device.kind == "cpu" else "cuda"
    modes = {ArmName.parse(name).mode for name in names}
    parts = {
        "kernel": _kernel(kernel, op, device, cell.dtype, is_compiled=any(mode.is_compiled for mode in modes)),
        "model": _model(result.workload.model, root),
        "step": _step(cell.step, is_static=result.workload.cache == "static"),
        "arms": "\n".join(f"    {name!r}: {_arm(name, op)}," for name in names),
    }
    return Template(_PAGE.read_text(encoding="utf-8")).substitute(
        parts,
        run=result.run_id,
        found="\n".join(f"    {line}" for line in _found(deciding)),
        needs=", and ninja" if kernel.manifest.binding in ("tvm-ffi", "torch") else "",
        imports=_imports(kernel.manifest.binding, *parts.values()),
        device=device,
        dtype=cell.dtype,
        batch=cell.batch,
        sequence=cell.sequence,
        threads=result.environment.get("threads") or 1,
        sites=_sites(deciding.evidence.engagement),
        graph=_GRAPH if Mode.CUDA_GRAPH in modes else "",
        forward=op.forward,
        candidate=names[0],
        sync="torch.cuda.synchronize()" if device == "cuda" else "pass",
    )


def _found(cell: CellResult) -> Iterator[str]:
    for row in cell.verdict.latency.against:
        yield f"{arm(row.arm)}: {estimate(row.speedup)}"


def _sites(seen: Engagement | None) -> str:
    """Patterns of the sites at which the kernel ran: layers alike are one, unless it ran at some of them only."""
    found: dict[str, list[SiteRecord]] = {}
    for site in seen.sites if seen is not None else ():
        found.setdefault(re.sub(r"(?<=\.)\d+(?=\.)", "*", site.fqn), []).append(site)
    names = [
        name
        for pattern, sites in found.items()
        for name in ([pattern] if all(site.calls for site in sites) else [site.fqn for site in sites if site.calls])
    ]
    if not names:
        raise _No("the run does not say at which sites the kernel ran")
    return textwrap.fill(" ".join(names), 110, break_long_words=False, break_on_hyphens=False)


def _arm(name: str, op: _Op) -> str:
    parsed = ArmName.parse(name)
    stands = "kernel" if parsed.role == "candidate" else "None"
    if parsed.role == "candidate" and parsed.mode.is_compiled:
        stands = "torch.ops.reproduction.kernel"
    if parsed.alternative is not None:
        stands = op.paths.get(parsed.alternative, "")
        if not stands:
            raise _No(f"it does not know the path {clean(parsed.alternative, 60)}")
    return f"lambda: ({stands}, lambda program: {_MODES[parsed.mode]})"


# ---- The kernel


_LOADERS = {
    "tvm-ffi": "import tvm_ffi.cpp",
    "torch": "import torch.utils.cpp_extension",
    "python": "import importlib.util",
}


def _imports(binding: str, *parts: str) -> str:
    """What the parts of the script need beyond the standard library's."""
    said = "\n".join(parts)
    own = [_LOADERS[binding], "import torch"] + (["import torch.nn.functional as F"] if "F." in said else [])
    names = ("AutoConfig", "AutoModelForCausalLM", "DynamicCache", "StaticCache")
    used = ", ".join(name for name in names if name in said)
    registering = ["from torch import library"] if "library.define(" in said else []
    return "\n".join([*sorted(own, key=str.split), *registering, f"from transformers import {used}"])


def _kernel(kernel: Kernel, op: _Op, device: str, dtype: DType, *, is_compiled: bool) -> str:
    """How the stored source becomes `kernel(*args)`."""
    manifest = kernel.manifest
    own = ("args", "saves", "workspace", "prepare", "ranks", "layout", "mutates")
    beyond = [name for name in own if getattr(manifest, name)]
    if beyond:
        raise _No(f"it is for a kernel that takes the op's own arguments; this one has {', '.join(beyond)}")
    if kernel.path is None or kernel.inside is not None or kernel.others or manifest.kind != "op":
        raise _No("it is for a kernel of one source file of its own")
    name = manifest.entry if isinstance(manifest.entry, str) else manifest.entry.get(dtype)
    if name is None:
        raise _No(f"the kernel declares no entry for {dtype}")
    names = [word.split()[-1] for word in op.schema[1 : op.schema.index(")")].split(", ")]
    source, call = f'str(HERE / "kernel" / "{Path(kernel.path).name}")', ", ".join(names)
    flags = [*([] if any(flag.startswith("-O") for flag in manifest.flags) else ["-O3"]), *manifest.flags]
    if manifest.binding == "tvm-ffi":
        flags += ["-fopenmp"] if device == "cpu" and "-fopenmp" not in flags else []
        kinds = ("cpp_files", "extra_cflags") if device == "cpu" else ("cuda_files", "extra_cuda_cflags")
        options = [f"{kinds[1]}={flags!r}"] + (["extra_ldflags=['-fopenmp']"] if device == "cpu" else [])
        loaded = f'tvm_ffi.cpp.load("reproduced", {kinds[0]}=[{source}], {", ".join(options)})'
    elif manifest.binding == "torch":
        kind = "extra_cuda_cflags" if device == "cuda" else "extra_cflags"
        loaded = f'torch.utils.cpp_extension.load("reproduced", [{source}], {kind}={flags!r})'
    elif manifest.binding == "python":
        loaded = "importlib.util.module_from_spec(SPEC)\nSPEC.loader.exec_module(BUILT)"
    else:
        raise _No(f"it does not load kernels of binding {manifest.binding}")
    lines = [f"BUILT = {loaded}", "", "", f"def kernel({call}):"]
    if manifest.binding == "python":
        lines.insert(0, f'SPEC = importlib.util.spec_from_file_location("reproduced", {source})')
    entry = f"BUILT.{name}"
    if manifest.takes_outputs:
        lines += [f"    out = {op.out}", f"    {entry}({call}, out)", "    return out"]
    else:
        lines += [f"    return {entry}({call})"]
    if is_compiled:
        lines += ["", "", f'library.define("reproduction::kernel", "{op.schema}")']
        lines += [f'library.impl("reproduction::kernel", "{device}", kernel)']
        lines += [f'library.register_fake("reproduction::kernel", lambda {call}: {op.out})']
    return "\n".join(lines)


# ---- The model and its step


def _model(spec: ModelSpec, root: str) -> str:
    if spec.factory or spec.package or spec.trust_remote_code or str(spec.id).endswith(".gguf"):
        raise _No("it is for models on the hub, in a folder, or made from a config alone")
    options = f'dtype=DTYPE, attn_implementation="{spec.attention}"'
    overlay = dict(spec.config)
    if spec.weights == "random" and "model_type" in overlay:
        kind = overlay.pop("model_type")
        return f"config = AutoConfig.for_model({kind!r}, **{overlay!r})\n" + _from_config(options)
    folder = Path(root) / str(spec.id)
    place = str(folder) if folder.is_dir() else str(spec.id)
    lines = [f"source = sys.argv[1] if len(sys.argv) > 1 else {place!r}"]
    lines += [f"config = AutoConfig.from_pretrained(source, revision={spec.revision or 'main'!r})"]
    lines += [f"config.update({overlay!r})"] if overlay else []
    if spec.weights == "random":
        return "\n".join([*lines, _from_config(options)])
    made = (
        f"AutoModelForCausalLM.from_pretrained(source, config=config, revision={spec.revision or 'main'!r}, {options})"
    )
    return "\n".join([*lines, f"model = {made}.to(DEVICE).eval()"])


def _from_config(options: str) -> str:
    return f"with torch.device(DEVICE):\n    model = AutoModelForCausalLM.from_config(config, {options}).eval()"


def _step(step: str, *, is_static: bool) -> str:
    """What a program is, and the state that every step begins with."""
    if step == "prefill":
        return _PREFILL
    made = (
        "StaticCache(config=model.config, max_cache_len=SEQUENCE + 8)"
        if is_static
        else "DynamicCache(config=model.config)"
    )
    return _DECODE.replace("CACHE", made).replace("RESET", _RESET_STATIC if is_static else _RESET_DYNAMIC)


_PREFILL = """\
LENGTH = SEQUENCE


def reset():
    pass


class Step(torch.nn.Module):
    def __init__(self, arm):
        super().__init__()
        self.model = arm

    def forward(self, ids):
        return self.model(input_ids=ids, use_cache=True, logits_to_keep=1).logits"""

_DECODE = """\
LENGTH = 1
cache = CACHE
with torch.no_grad():
    context = torch.randint(0, model.config.vocab_size, (BATCH, SEQUENCE), device=DEVICE)
    model(input_ids=context, past_key_values=cache, use_cache=True, logits_to_keep=1)
RESET


class Step(torch.nn.Module):
    def __init__(self, arm):
        super().__init__()
        self.model = arm

    def forward(self, ids):
        return self.model(input_ids=ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits"""

_RESET_STATIC = """\
held = [value for layer in cache.layers for value in vars(layer).values()]
counters = [value for value in held if torch.is_tensor(value) and value.dim() == 0]
kept = [counter.clone() for counter in counters]


def reset():
    for counter, was in zip(counters, kept):
        counter.copy_(was)"""

_RESET_DYNAMIC = """\


def reset():
    cache.crop(SEQUENCE)"""

_GRAPH = '''

def in_graph(program):
    """The eager step, captured once and replayed."""
    static = new_ids()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            reset()
            program(static)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    reset()
    with torch.cuda.graph(graph):
        program(static)

    def replay(ids):
        static.copy_(ids)
        graph.replay()

    return replay
'''
