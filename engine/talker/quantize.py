"""Quantise matrices to 8 and 4 bits, and back. Rows are stored in blocks of 512 weights, as the CUDA kernels read them.

int8: a row's weights, then its fp32 scale, repeated four times so that rows start at multiples of 16 bytes.
int4: a block is 256 bytes, then eight bf16 scales, one per 64 weights. Eight bytes hold 16 weights: the first eight in
the low nibbles, the others in the high nibbles.
q8_0: a block is 512 weights, then sixteen fp16 scales, one per 32 weights. This is ggml's Q8_0 with the scales of a
block stored together.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

BLOCK = 512  # weights
INT4_BLOCK = BLOCK // 2 + 8 * 2  # bytes
INT8_SCALE = 4 * 4  # bytes after a row's weights
Q8_0_BLOCK = BLOCK + 16 * 2  # bytes
ROWS_AT_ONCE = 4 << 20  # weights converted to fp32 at a time
# int4 stores the largest magnitude as -8 times the scale. A smaller scale clips it and resolves the others better.
_STEPS = (8.0, 7.5, 8.5, 9.0, 9.5, 10.0, 11.0)


def quantize_int8(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """Quantise matrix [R, in] of any float dtype -> out [R, in + 16] int8, rounded to nearest, one scale per row."""
    pack_int8(*row_int8(matrix), out)


def row_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return `quantize_int8` of a matrix [R, in] as plain codes [R, in] int8 and row scales [R] fp32."""
    codes = torch.empty_like(matrix, dtype=torch.int8)
    scale = torch.empty(len(matrix), device=matrix.device)
    count = _rows_at_once(matrix)
    for rows, of_codes, of_scale in zip(matrix.split(count), codes.split(count), scale.split(count), strict=True):
        wide = rows.float()
        torch.div(wide.abs().amax(1), 127.0, out=of_scale)
        of_codes.copy_(wide.div(of_scale.clamp_min(1e-30)[:, None]).round_().clamp_(-127, 127))
    return codes, scale


def pack_int8(codes: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """Store codes [R, in] int8 and scales [R] fp32 in `out`, in the layout of `quantize_int8`."""
    out[:, :-INT8_SCALE] = codes
    int8_scales(out)[:] = scale[:, None]


def dequantize_int8(data: torch.Tensor, out: torch.Tensor, spare: torch.Tensor) -> None:
    """Dequantise `data` -> out [R, in], in out's dtype."""
    torch.mul(data[:, :-INT8_SCALE], int8_scales(data)[:, :1], out=out)


def int8_scales(data: torch.Tensor) -> torch.Tensor:
    """Return a view of the row scales, [R, 4] fp32."""
    return data[:, -INT8_SCALE:].view(torch.float32)


def quantize_q8_0(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """Quantise matrix [R, in] of any float dtype -> out [R, in / 512 * 272] int16, rounded to nearest like ggml."""
    for rows, stored in _in_parts(matrix, out.view(torch.uint8)):
        groups = rows.unflatten(-1, (16, 32))  # [R, n, 16, 32]
        scale = (groups.abs().amax(-1, keepdim=True) / 127.0).half()
        codes = groups.div(torch.where(scale == 0, 1.0, scale.float())).round_().clamp_(-127, 127)
        stored[..., :BLOCK] = codes.to(torch.int8).view(torch.uint8).flatten(2)
        stored[..., BLOCK:] = scale.squeeze(-1).view(torch.uint8)


def pack_q8_0(blocks: torch.Tensor, out: torch.Tensor) -> None:
    """Store ggml's blocks [R, in / 32, 34] uint8, each an fp16 scale and 32 codes, in our layout in `out`."""
    stored = out.view(torch.uint8).unflatten(1, (-1, Q8_0_BLOCK))
    blocks = blocks.unflatten(1, (-1, 16))  # [R, n, 16, 34]
    stored[..., :BLOCK] = blocks[..., 2:].flatten(2)
    stored[..., BLOCK:] = blocks[..., :2].flatten(2)


def dequantize_q8_0(data: torch.Tensor, out: torch.Tensor, spare: torch.Tensor) -> None:
    """Dequantise like `dequantize_int8`, rounding once, to out's dtype. Overwrites `spare` [R * in / 8] uint8."""
    scale = q8_0_scales(data)
    wide = spare[: scale.numel() * 4].view(torch.float32).view(scale.shape)
    wide.copy_(scale)
    codes = data.view(torch.int8).unflatten(1, (-1, Q8_0_BLOCK))[..., :BLOCK]
    torch.mul(codes.unflatten(2, (16, 32)), wide[..., None], out=out.unflatten(1, (-1, 16, 32)))


def q8_0_scales(data: torch.Tensor) -> torch.Tensor:
    """Return a view of the group scales, [R, blocks, 16] fp16."""
    return data.view(torch.uint8).unflatten(1, (-1, Q8_0_BLOCK))[..., BLOCK:].view(torch.float16)


def quantize_int4(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """Quantise matrix [R, in] of any float dtype -> out [R, in / 512 * 272] uint8.

    Each group uses the scale with the smallest squared error among several candidates.
    """
    for rows, stored in _in_parts(matrix, out):
        groups = rows.unflatten(-1, (8, 64))  # [R, n, 8, 64]
        extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        scale = (extreme / -_STEPS[0]).to(torch.bfloat16)
        least = _error(groups, scale)
        for step in _STEPS[1:]:
            tried = (extreme / -step).to(torch.bfloat16)
            error = _error(groups, tried)
            scale = torch.where(error < least, tried, scale)
            least = torch.minimum(error, least)
        codes = _int4_codes(groups, scale)
        low, high = codes.to(torch.int8).view(torch.uint8).flatten(2).unflatten(2, (-1, 2, 8)).unbind(3)
        stored[..., : BLOCK // 2] = (low & 15 | high << 4).flatten(2)
        stored[..., BLOCK // 2 :] = scale.squeeze(-1).view(torch.uint8)


def _int4_codes(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the codes of groups [..., 64] with scales [..., 1], in fp32."""
    return groups.div(torch.where(scale == 0, 1.0, scale.float())).round_().clamp_(-8, 7)


def _error(groups: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the squared error of each group."""
    return _int4_codes(groups, scale).mul_(scale.float()).sub_(groups).square_().sum(-1, keepdim=True)


def dequantize_int4(data: torch.Tensor, out: torch.Tensor, spare: torch.Tensor) -> None:
    """Dequantise like `dequantize_int8`. Overwrites `spare` [R * in / 2] uint8."""
    packed = data.unflatten(1, (-1, INT4_BLOCK))[..., : BLOCK // 2]
    scale = int4_scales(data)
    whole = out.unflatten(1, (-1, 8, 4, 2, 8))  # [R, n, group, lane, half, 8]
    whole.copy_(scale[..., None, None, None])
    nibbles = spare[: packed.numel()].view(packed.shape).view(torch.int8)
    packed = packed.view(torch.int8)
    torch.bitwise_left_shift(packed, 4, out=nibbles)  # low nibbles, sign-extended when shifted back
    for half, shifted in enumerate((nibbles, packed)):
        torch.bitwise_right_shift(shifted, 4, out=nibbles)
        whole[..., half, :].mul_(nibbles.unflatten(2, (8, 4, 8)))


def int4_scales(data: torch.Tensor) -> torch.Tensor:
    """Return a view of the group scales, [R, blocks, 8] bf16."""
    return data.unflatten(1, (-1, INT4_BLOCK))[..., BLOCK // 2 :].view(torch.bfloat16)


def _in_parts(matrix: torch.Tensor, out: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield (rows in fp32 [r, n, 512], their part of out [r, n, bytes]), a few rows at a time."""
    count = _rows_at_once(matrix)
    for rows, stored in zip(matrix.split(count), out.split(count), strict=True):
        blocks = matrix.shape[1] // BLOCK
        yield rows.float().unflatten(1, (blocks, BLOCK)), stored.unflatten(1, (blocks, -1))


def _rows_at_once(matrix: torch.Tensor) -> int:
    return max(1, ROWS_AT_ONCE // matrix.shape[1])
