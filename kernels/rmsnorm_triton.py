# /// e2e
# op: rms_norm
# entry: rms_norm
# binding: python
# device: cuda
# dtypes: [float32, float16, bfloat16]
# deterministic: true
# ///
"""RMSNorm in Triton: y = weight * round(x / sqrt(mean(x * x) + eps)), row by row.

One program per row, so that the sum over a row stays inside one program: one launch, no atomics, the same bits
every time. A row that fits is loaded once and kept in registers; a longer one is walked twice.

Rounded twice on purpose: Transformers' LlamaRMSNorm normalises in float32, rounds to the input dtype, and only
then multiplies by the weight. Multiplying first is *more* accurate and still another function.
"""

import torch
import triton
import triton.language as tl

LONGEST_ROW_IN_REGISTERS = 16384  # 32 values for each of 16 warps' threads; much more would spill
LOOP_BLOCK = 4096


@triton.jit
def _row_in_registers(x_ptr, weight_ptr, out_ptr, x_row_stride, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)  # 32 bits would overflow beyond 2^31 elements
    columns = tl.arange(0, BLOCK)
    inside = columns < hidden  # BLOCK is a power of two, hidden need not be
    x = tl.load(x_ptr + row * x_row_stride + columns, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
    x32 = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(x32 * x32, axis=0) / hidden + eps)
    normalised = (x32 * scale).to(x.dtype)
    y = weight.to(tl.float32) * normalised.to(tl.float32)
    tl.store(out_ptr + row * hidden + columns, y.to(x.dtype), mask=inside)


@triton.jit
def _row_in_pieces(x_ptr, weight_ptr, out_ptr, x_row_stride, hidden, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    squares = tl.zeros([BLOCK], dtype=tl.float32)  # summed once, after the loop
    for start in range(0, hidden, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        x32 = tl.load(x_ptr + row * x_row_stride + columns, mask=columns < hidden, other=0.0).to(tl.float32)
        squares += x32 * x32
    scale = tl.rsqrt(tl.sum(squares, axis=0) / hidden + eps)
    for start in range(0, hidden, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < hidden
        x = tl.load(x_ptr + row * x_row_stride + columns, mask=inside, other=0.0)
        weight = tl.load(weight_ptr + columns, mask=inside, other=0.0)
        normalised = (x.to(tl.float32) * scale).to(x.dtype)
        y = weight.to(tl.float32) * normalised.to(tl.float32)
        tl.store(out_ptr + row * hidden + columns, y.to(x.dtype), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    hidden = x.shape[-1]
    if weight.shape != (hidden,) or weight.dtype != x.dtype or weight.device != x.device:
        raise ValueError(
            f"rms_norm: weight must be {x.dtype}[{hidden}] on {x.device}, "
            f"it is {weight.dtype}{list(weight.shape)} on {weight.device}"
        )
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if x.numel() == 0:
        return out
    rows = x.reshape(-1, hidden)  # a view wherever one stride walks all rows, else a copy
    if hidden > 1 and rows.stride(-1) != 1:
        rows = rows.contiguous()
    weight = weight.contiguous()
    if hidden <= LONGEST_ROW_IN_REGISTERS:
        kernel, block = _row_in_registers, triton.next_power_of_2(hidden)
    else:
        kernel, block = _row_in_pieces, LOOP_BLOCK
    num_warps = min(max(block // 256, 1), 16)  # 8 values per thread: 16 bytes in half precision
    with torch.cuda.device_of(x):  # Triton launches on the current device, which need not be x's
        kernel[(rows.shape[0],)](rows, weight, out, rows.stride(0), hidden, eps, BLOCK=block, num_warps=num_warps)
    return out
