"""The part of training that needs torch: the model, the loop, and the measure of bits per byte."""

from __future__ import annotations

import copy
import math
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 512
EVAL_BATCH = 64
SYNC_STEPS = 10
PROGRESS_SECONDS = 10.0


@dataclass(frozen=True)
class Recipe:
    """Every choice that shapes the weights; those without a flag carry their value here."""

    layers: int
    seconds: float
    batch: int
    learning_rate: float
    dropout: float
    eval_every_seconds: float
    seed: int
    compile: bool
    context: int = CONTEXT
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.1
    gradient_clip: float = 1.0
    warmup_fraction: float = 0.02
    final_rate_fraction: float = 0.02
    ema_decay: float = 0.998


@dataclass(frozen=True)
class Outcome:
    """What came of it. Bits per byte are those of the stored bfloat16 weights, run in float32."""

    validation_bits_per_byte: float
    heldout_bits_per_byte: float
    best_step: int
    steps: int
    tokens_seen: int
    train_seconds: float
    compile_seconds: float
    parameters: int
    device: str
    torch_version: str
    transformers_version: str
    # [training seconds, step, validation bits per byte of the averaged weights]
    curve: list[tuple[float, int, float]]


class Progress:
    """Prints the newest line every few seconds, so that a watcher sees life even while it compiles."""

    def __init__(self) -> None:
        self.line = "starting"
        self.begin = time.monotonic()
        threading.Thread(target=self._repeat, daemon=True).start()

    def say(self, line: str) -> None:
        self.line = line
        print(f"[{time.monotonic() - self.begin:6.1f} s] {line}", flush=True)

    def _repeat(self) -> None:
        while True:
            time.sleep(PROGRESS_SECONDS)
            self.say(self.line)


class Windows:
    """Random training windows, each inside one unbroken run of the training text."""

    def __init__(self, runs: list[bytes], device: torch.device) -> None:
        starts, offset = [], 0
        for run in runs:
            # A window takes CONTEXT + 1 bytes: its last target lies in the same run.
            starts.append(torch.arange(offset, offset + max(0, len(run) - CONTEXT)))
            offset += len(run)
        self.starts = torch.cat(starts).to(device)
        self.text = as_bytes(b"".join(runs)).to(device)
        self.places = torch.arange(CONTEXT + 1, device=device)

    def draw(self, batch: int) -> Tensor:
        chosen = self.starts[torch.randint(len(self.starts), (batch,), device=self.starts.device)]
        return self.text[chosen[:, None] + self.places].long()


def as_bytes(text: bytes) -> Tensor:
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def build_model(layers: int, dropout: float) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        attention_dropout=dropout,
        # Every byte is text: the defaults (1 and 2) would end a generation at byte 2.
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config)

    def drop(module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return F.dropout(output, dropout, module.training)

    # Llama itself drops attention weights only, which is too little for dozens of passes over 4 MB of text.
    model.model.embed_tokens.register_forward_hook(drop)
    for layer in model.model.layers:
        layer.self_attn.o_proj.register_forward_hook(drop)
        layer.mlp.down_proj.register_forward_hook(drop)
    return model


def build_optimizer(model: nn.Module, recipe: Recipe, device: torch.device) -> torch.optim.AdamW:
    groups = [
        {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=recipe.learning_rate, betas=recipe.betas, fused=device.type == "cuda")


def rate_at(fraction: float, recipe: Recipe) -> float:
    """Warm-up, then cosine, over the spent fraction of the time budget."""
    if fraction < recipe.warmup_fraction:
        return recipe.learning_rate * fraction / recipe.warmup_fraction
    angle = math.pi * min(1.0, (fraction - recipe.warmup_fraction) / (1.0 - recipe.warmup_fraction))
    floor = recipe.final_rate_fraction
    return recipe.learning_rate * (floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(angle)))


def update_average(average: nn.Module, model: nn.Module, step: int, decay: float) -> None:
    # The average of a young model must forget fast: its first weights are noise.
    weight = 1.0 - min(decay, (1 + step) / (10 + step))
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, weight)


def bits_per_byte(model: LlamaForCausalLM, blocks: list[bytes], device: torch.device) -> float:
    """Mean over windows of CONTEXT bytes without overlap; the first byte of each is not predicted."""
    windows = as_bytes(b"".join(blocks)).view(-1, CONTEXT)
    nats = 0.0
    for part in torch.split(windows, EVAL_BATCH):
        tokens = part.to(device).long()
        with torch.no_grad():
            logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].float()
        nats += F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").item()
    return nats / (len(windows) * (CONTEXT - 1)) / math.log(2)


def fit(recipe: Recipe, training: list[bytes], validation: list[bytes], heldout: list[bytes], out: Path) -> Outcome:
    """Train for the given time, store the averaged weights that did best on validation, measure these."""
    progress = Progress()
    torch.manual_seed(recipe.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    windows = Windows(training, device)
    model = build_model(recipe.layers, recipe.dropout).to(device)
    average = copy.deepcopy(model).eval()  # Copied before compilation: evaluation runs as it is written.
    best = copy.deepcopy(average.state_dict())
    optimizer = build_optimizer(model, recipe, device)
    if recipe.compile:
        # Layer by layer: compiled as a whole, transformers builds an explicit causal mask,
        # which rules out the flash attention kernel.
        for layer in model.model.layers:
            layer.compile()

    progress.say(f"{model.num_parameters()} parameters on {device}, first step (compiles: {recipe.compile})")
    entered = begin = time.monotonic()
    curve: list[tuple[float, int, float]] = []
    best_step, step, spent = 0, 0, 0.0
    next_eval = recipe.eval_every_seconds
    while spent < recipe.seconds:
        rate = rate_at(spent / recipe.seconds, recipe)
        for group in optimizer.param_groups:
            group["lr"] = rate
        tokens = windows.draw(recipe.batch)
        with autocast:
            logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
        optimizer.zero_grad()
        update_average(average, model, step, recipe.ema_decay)
        step += 1

        if step == 1:
            loss.item()
            begin = time.monotonic()  # The budget is for training; compilation has just ended.
        if step % SYNC_STEPS == 0:  # Reading the loss keeps this loop's clock in step with the GPU's work.
            bits = loss.item() / math.log(2)
            progress.line = f"step {step}, {spent:.0f} s, rate {rate:.1e}, training {bits:.3f} bits per byte"
        spent = time.monotonic() - begin
        if spent >= next_eval or spent >= recipe.seconds:
            with autocast:
                bits = bits_per_byte(average, validation, device)
            spent = time.monotonic() - begin
            next_eval = spent + recipe.eval_every_seconds
            if not curve or bits < min(point[2] for point in curve):
                best, best_step = copy.deepcopy(average.state_dict()), step
            curve.append((round(spent, 1), step, round(bits, 4)))
            progress.say(f"step {step}, {spent:.0f} s, validation {bits:.4f}, best at step {best_step}")

    average.load_state_dict(best)
    average.config.attention_dropout = 0.0  # The shipped model must train without chance, to be comparable.
    average.to(torch.bfloat16).save_pretrained(out)
    (out / "generation_config.json").unlink()  # Holds defaults only.
    progress.say("measuring the stored weights in float32")
    stored = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).to(device).eval()
    outcome = Outcome(
        validation_bits_per_byte=round(bits_per_byte(stored, validation, device), 4),
        heldout_bits_per_byte=round(bits_per_byte(stored, heldout, device), 4),
        best_step=best_step,
        steps=step,
        tokens_seen=step * recipe.batch * CONTEXT,
        train_seconds=round(spent, 1),
        compile_seconds=round(begin - entered, 1),
        parameters=stored.num_parameters(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch_version=torch.__version__,
        transformers_version=transformers.__version__,
        curve=curve,
    )
    progress.say(f"stored: held-out {outcome.heldout_bits_per_byte} bits per byte")
    return outcome
