"""Matrices in 8 and 4 bits, and back. Rows are stored in blocks of 512 weights with their scales behind them.

A block lies as the CUDA kernels read it, a lane's weights together: 8 * lane to 8 * lane + 7 of either half of the
block. int8: 512 bytes, then an fp32 scale for each 128 weights, the same for all of a row. int4: 256 bytes, of which
the low four bits are the first half, then a bf16 scale for each 64 weights. A group's scale in the second half follows
its like in the first.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

BLOCK = 512  # weights
INT8_BLOCK, INT4_BLOCK = BLOCK + 4 * 4, BLOCK // 2 + 8 * 2  # bytes
ROWS_AT_ONCE = 4 << 20  # weights whose fp32 copies are there at a time
# int4's largest magnitude is stored as -8 times the scale; a smaller scale cuts it off and resolves the others better.
_STEPS = (8.0, 7.5, 8.5, 9.0, 9.5, 10.0, 11.0)


def quantize_int8(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """matrix [R, in] of any float dtype -> out [R, in / 512 * 528] int8, rounded to nearest, one scale a row."""
    pack_int8(*row_int8(matrix), out)


def row_int8(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What `quantize_int8` makes of a matrix [R, in], as plain codes [R, in] int8 and their rows' scales [R] fp32."""
    codes = torch.empty_like(matrix, dtype=torch.int8)
    scale = torch.empty(len(matrix), device=matrix.device)
    count = _rows_at_once(matrix)
    for rows, of_codes, of_scale in zip(matrix.split(count), codes.split(count), scale.split(count), strict=True):
        wide = rows.float()
        torch.div(wide.abs().amax(1), 127.0, out=of_scale)
        of_codes.copy_(wide.div(of_scale.clamp_min(1e-30)[:, None]).round_().clamp_(-127, 127))
    return codes, scale


def pack_int8(codes: torch.Tensor, scale: torch.Tensor, out: torch.Tensor) -> None:
    """Codes [R, in] int8 and scales [R] fp32 -> out as `quantize_int8` stores them."""
    stored = out.unflatten(1, (-1, INT8_BLOCK))  # [R, n, 528]
    stored[..., :BLOCK] = codes.unflatten(1, (-1, 2, 32, 8)).transpose(2, 3).flatten(2)
    stored[..., BLOCK:] = scale[:, None, None].expand(-1, stored.shape[1], 4).contiguous().view(torch.int8)


def dequantize_int8(data: torch.Tensor, out: torch.Tensor, spare: torch.Tensor) -> None:
    """The matrix in `data` -> out [R, in], in out's dtype."""
    stored = data.unflatten(1, (-1, INT8_BLOCK))
    codes = stored[..., :BLOCK].unflatten(2, (2, 16, 2, 8)).permute(0, 1, 4, 2, 3, 5)  # [R, n, half, group, lane, 8]
    scale = stored[..., BLOCK:].view(torch.float32).unflatten(2, (2, 2)).transpose(2, 3)[..., None, None]
    torch.mul(codes, scale, out=out.view(codes.shape))


def quantize_int4(matrix: torch.Tensor, out: torch.Tensor) -> None:
    """matrix [R, in] of any float dtype -> out [R, in / 512 * 272] uint8. A group's scale is the best of a list."""
    for rows, stored in _in_parts(matrix, out):
        groups = rows.unflatten(-1, (8, 64))  # [R, n, 8, 64]
        extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
        least, codes, scale = _with_step(groups, extreme, _STEPS[0])
        for step in _STEPS[1:]:
            error, *tried = _with_step(groups, extreme, step)
            better = error < least
            least = torch.where(better, error, least)
            codes, scale = (torch.where(better, new, old) for new, old in zip(tried, (codes, scale), strict=True))
        halves = codes.to(torch.int8).view(torch.uint8).flatten(2).unflatten(2, (2, 256))
        stored[..., : BLOCK // 2] = halves[:, :, 0] & 15 | halves[:, :, 1] << 4
        stored[..., BLOCK // 2 :] = _interleaved(scale.squeeze(-1)).view(torch.uint8)


def _with_step(groups: torch.Tensor, extreme: torch.Tensor, step: float) -> tuple[torch.Tensor, ...]:
    """(squared error, codes, scale) of groups [..., 64] when the largest magnitude is -step times the scale."""
    scale = (extreme / -step).to(torch.bfloat16)
    wide = scale.float()
    codes = groups.div(torch.where(wide == 0, 1.0, wide)).round_().clamp_(-8, 7)
    return codes.mul(wide).sub_(groups).square_().sum(-1, keepdim=True), codes, scale


def dequantize_int4(data: torch.Tensor, out: torch.Tensor, spare: torch.Tensor) -> None:
    """As dequantize_int8; `spare` [R * in / 2] uint8 is overwritten."""
    stored = data.unflatten(1, (-1, INT4_BLOCK))
    packed = stored[..., : BLOCK // 2]
    scale = stored[..., BLOCK // 2 :].view(torch.bfloat16).unflatten(2, (4, 2)).transpose(2, 3)[..., None]
    whole = out.unflatten(1, (-1, 2, 4, 64))
    whole.copy_(scale)
    nibbles = spare[: packed.numel()].view(packed.shape).view(torch.int8)
    packed = packed.view(torch.int8)
    torch.bitwise_left_shift(packed, 4, out=nibbles)  # the first half, shifted back with its sign
    for half, shifted in enumerate((nibbles, packed)):
        torch.bitwise_right_shift(shifted, 4, out=nibbles)
        whole[:, :, half].mul_(nibbles.unflatten(2, (4, 64)))


def _interleaved(scale: torch.Tensor) -> torch.Tensor:
    """Scales [..., groups of both halves] -> a group's two next to each other."""
    return scale.unflatten(-1, (2, -1)).transpose(-1, -2).flatten(-2)


def _in_parts(matrix: torch.Tensor, out: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """(rows in fp32 [r, n, 512], their part of out [r, n, bytes]), a few rows at a time."""
    count = _rows_at_once(matrix)
    for rows, stored in zip(matrix.split(count), out.split(count), strict=True):
        blocks = matrix.shape[1] // BLOCK
        yield rows.float().unflatten(1, (blocks, BLOCK)), stored.unflatten(1, (blocks, -1))


def _rows_at_once(matrix: torch.Tensor) -> int:
    return max(1, ROWS_AT_ONCE // matrix.shape[1])
