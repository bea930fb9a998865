"""Prefill by torch's ops: many positions of one row, a prompt or the part of it not in the cache yet.

Results are new tensors, so it needs no scratch and a third of the launches of the decode step's layers. It never waits
for the device, where other rows may be decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F

from ..device.memory import to_device
from .config import ModelConfig
from .family import Family
from .layers import Expert, Layer
from .ops.linear import add_linear, project
from .ops.swiglu import swiglu

_ALIGNED = 16  # attention kernels read mask rows in multiples of this


AudioSpans = Sequence[tuple[int, torch.Tensor]]  # (start, delayed codes [n, K]) pairs
Look = Callable[[int, torch.Tensor, torch.Tensor], None]  # (layer, queries [n, heads, D], keys [kv_heads, stop, D])


class Tables(Protocol):
    """Weights and tables that a prompt's positions pass through, see model.py."""

    config: ModelConfig
    layers: list[Layer]
    family: Family
    embed_text: torch.Tensor
    embed_codes: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    offsets: torch.Tensor
    device: torch.device
    dtype: torch.dtype


def fill(
    talker: Tables,
    ids: Sequence[int],
    audio: AudioSpans,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: int,
    stop: int,
    look: Look | None = None,
) -> torch.Tensor:
    """Prefill positions start..stop of one row's prompt. Returns their last hidden states [n, H].

    ids: P token ids. audio: spans whose embeddings replace those of the ids.
    keys, values: [layers, kv_heads, S, D], the row's part of the cache. Slots before `start` are already filled; this
        call fills those up to `stop`. With fewer layers, only these are computed.
    look: called in every layer. The rest of the last layer is left out then, and what is returned is of no use.
    """
    config = talker.config
    heads, total = config.heads, config.heads + config.kv_heads
    x, is_code = _embedded(talker, ids, audio, start, stop)
    kinds = _Kinds(talker, is_code)
    cos, sin = talker.cos[start:stop, None], talker.sin[start:stop, None].chunk(2, -1)
    mask = _mask(x, start, stop) if start else None
    layers = talker.layers[: len(keys)]
    for index, (layer, layer_keys, layer_values) in enumerate(zip(layers, keys, values, strict=True)):
        h = kinds.normed(x, layer.text.attn_norm, layer.code.attn_norm)
        split = project(h, layer.qkv).view(len(h), -1, config.head_dim)
        raw = split[:, :total]
        if layer.qk_norm is not None:
            raw = F.rms_norm(split, split.shape[-1:], None, config.norm_eps)[:, :total].mul_(layer.qk_norm)
        qk = _rotated(raw, cos, *sin)
        layer_keys[:, start:stop].copy_(qk[:, heads:].transpose(0, 1))
        layer_values[:, start:stop].copy_(split[:, total:].transpose(0, 1))
        if look is not None:
            look(index, qk[:, :heads], layer_keys[:, :stop])
            if index + 1 == len(layers):  # nobody asks for more
                return x
        attended = _attend(config, qk[:, :heads], layer_keys[:, :stop], layer_values[:, :stop], mask)
        add_linear(attended, layer.out, x)
        kinds.add_mlp(x, layer)
    return x


def _embedded(
    talker: Tables, ids: Sequence[int], audio: AudioSpans, start: int, stop: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return embeddings [n, H], and a mask [n] bool on the host of positions that are codes."""
    text = look_up(talker.embed_text, ids[start:stop], talker.device)
    x = text.to(talker.device, non_blocking=True).to(talker.dtype)
    is_code = torch.zeros(stop - start, dtype=torch.bool)
    for at, rows in audio:
        first, last = max(at, start), min(at + len(rows), stop)
        if first < last:
            books = to_device(rows[first - at : last - at], talker.device) + talker.offsets
            x[first - start : last - start] = talker.embed_codes[books].to(talker.dtype).sum(1)
            is_code[first - start : last - start] = True
    return x, is_code


def look_up(table: torch.Tensor, ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """Return rows of a host table, pinned if they go to a GPU.

    NumPy copies in one thread. torch would use all, and wait for those that other work keeps from running.
    """
    rows = torch.empty(len(ids), table.shape[1], dtype=table.dtype, pin_memory=device.type == "cuda")
    np.take(table.view(torch.uint8).numpy(), ids, 0, rows.view(torch.uint8).numpy())
    return rows


def _mask(x: torch.Tensor, start: int, stop: int) -> torch.Tensor:
    """Return the additive causal mask [n, stop]: 0 up to each position, -inf after it."""
    wide = -(-stop // _ALIGNED) * _ALIGNED
    return torch.full((len(x), wide), float("-inf"), dtype=x.dtype, device=x.device).triu_(start + 1)[:, :stop]


def _rotated(x: torch.Tensor, cos: torch.Tensor, low_sin: torch.Tensor, high_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [n, heads, D] as in ops/rope.py. Returns the same shape."""
    half = low_sin.shape[-1]
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], low_sin, value=-1.0)
    out[..., half:].addcmul_(x[..., :half], high_sin)
    return out


def _attend(
    config: ModelConfig, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    """Attend causally, aligned to the last position: q [n, heads, D], k and v [kv_heads, stop, D] -> [n, heads * D]."""
    keys, values = (
        cache[:, None].expand(-1, config.heads // config.kv_heads, -1, -1).reshape(1, config.heads, *cache.shape[1:])
        for cache in (keys, values)
    )
    q = q.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask, is_causal=mask is None)
    return out[0].transpose(0, 1).flatten(1)


class _Kinds:
    """Kinds of positions, text or codes, in a family that has separate weights for both."""

    def __init__(self, talker: Tables, is_code: torch.Tensor):
        self._eps = talker.config.norm_eps
        self._all_code = bool(is_code.all())
        self._rows = None  # (text rows, code rows) if both occur
        if talker.family.dual_ffn and is_code.any() and not self._all_code:
            self._rows = [to_device(kind.nonzero()[:, 0], talker.device) for kind in (~is_code, is_code)]
            self._is_code = to_device(is_code[:, None], talker.device)

    def normed(self, x: torch.Tensor, text: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
        """Return x normed, each position with the weight of its kind."""
        if self._rows is None:
            return F.rms_norm(x, x.shape[-1:], code if self._all_code else text, self._eps)
        return F.rms_norm(x, x.shape[-1:], None, self._eps).mul_(torch.where(self._is_code, code, text))

    def add_mlp(self, x: torch.Tensor, layer: Layer) -> None:
        """Add the gated MLP to x, each position with the weights of its kind."""
        h = self.normed(x, layer.text.mlp_norm, layer.code.mlp_norm)
        if self._rows is None:
            expert = layer.code if self._all_code else layer.text
            add_linear(_gated(expert, h), expert.down, x)
            return
        for expert, rows in zip((layer.text, layer.code), self._rows, strict=True):
            x.index_add_(0, rows, project(_gated(expert, h[rows]), expert.down))


def _gated(expert: Expert, h: torch.Tensor) -> torch.Tensor:
    gate_up = project(h, expert.gate_up)
    act = gate_up.new_empty(len(h), gate_up.shape[1] // 2)
    swiglu(gate_up, act)
    return act
