"""One small workload of every task, for tests of what every task owes. A task without one fails those tests."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np

from tests import tiny

WORKLOADS = {
    "causal-lm": """\
model: {id: model, dtype: float32}
data: {path: text.txt, tokenizer: bytes}
cells: {batch: [2], sequence: [32]}
""",
    "feature-extraction": """\
model:
  weights: random
  dtype: float32
  config: {model_type: bert, vocab_size: 256, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4,
           intermediate_size: 128, max_position_embeddings: 64, initializer_range: 0.1}
data: {path: lines.jsonl}
cells: {batch: [2], sequence: [32]}
""",
    "image-classification": """\
model:
  weights: random
  dtype: float32
  config: {model_type: vit, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 4, intermediate_size: 128,
           image_size: 16, patch_size: 4, num_channels: 1, num_labels: 10, initializer_range: 0.1}
data: {path: images.npz}
cells: {batch: [2]}
""",
    "seq2seq-lm": """\
model:
  weights: random
  dtype: float32
  config: {model_type: t5, vocab_size: 256, d_model: 64, d_kv: 16, d_ff: 128, num_layers: 2, num_heads: 4,
           decoder_start_token_id: 0}
data: {path: lines.jsonl}
cells: {batch: [2], sequence: [32]}
""",
    "speech-seq2seq": """\
model:
  weights: random
  dtype: float32
  config: {model_type: whisper, vocab_size: 256, d_model: 64, encoder_layers: 2, decoder_layers: 2,
           encoder_attention_heads: 4, decoder_attention_heads: 4, encoder_ffn_dim: 128, decoder_ffn_dim: 128,
           num_mel_bins: 16, max_source_positions: 32, max_target_positions: 64, decoder_start_token_id: 1,
           bos_token_id: 1, eos_token_id: 2, pad_token_id: 0}
data: {path: sounds}
cells: {batch: [2], sequence: [8]}
""",
}
"""By task: all but name, task and step."""

CLASSES = {
    "causal-lm": "LlamaForCausalLM",
    "feature-extraction": "BertModel",
    "image-classification": "ViTForImageClassification",
    "seq2seq-lm": "T5ForConditionalGeneration",
    "speech-seq2seq": "WhisperForConditionalGeneration",
}


def write_sound(file: Path, samples: np.ndarray, *, rate_hz: int = 16_000) -> None:
    """One channel of 16-bit samples."""
    with wave.open(str(file), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(rate_hz)
        sound.writeframes(samples.astype("<i2").tobytes())


def write_workloads(folder: Path) -> dict[str, Path]:
    """Models, data and workload files in `folder`; the files by task."""
    tiny.llama().save_pretrained(folder / "model")
    (folder / "text.txt").write_text(tiny.text())
    words = tiny.text().split()
    lengths = [1 + 3 * (place % 4) for place in range(100)]
    starts = np.cumsum([0, *lengths])
    lines = [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=False)]
    (folder / "lines.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    draw = np.random.Generator(np.random.PCG64(1))
    np.savez(folder / "images.npz", images=draw.integers(0, 256, (20, 8, 8), dtype=np.uint8))
    (folder / "sounds").mkdir()
    for pitch in range(3):
        tone = np.sin(np.arange(12_000) * (0.05 + 0.02 * pitch)) * 2**14
        write_sound(folder / "sounds" / f"{pitch}.wav", tone)
    files = {}
    for task, rest in WORKLOADS.items():
        files[task] = folder / f"{task}.yaml"
        files[task].write_text(f"name: {task}\ntask: {task}\nstep: forward\n{rest}")
    return files
