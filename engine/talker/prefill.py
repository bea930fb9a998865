"""Prefill: the talker's pass over many positions of one row, a prompt or the part of it not in the cache yet.

Results are new tensors, so it needs no scratch and a third of the launches of the decode step's layers. It never waits
for the device, where other rows may be decoding.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from ..device.memory import to_device
from ..device.torch_names import flash_attention
from .config import ModelConfig
from .family import Family
from .layers import Expert, Layer
from .ops.linear import add_linear, project
from .ops.swiglu import swiglu

_ALIGNED = 16  # attention kernels read mask rows in multiples of this


AudioSpans = Sequence[tuple[int, torch.Tensor]]  # (start, delayed codes [n, K]) pairs


class Tables(Protocol):
    """Embedding tables for a prompt's positions, see model.py."""

    family: Family
    embed_text: torch.Tensor
    embed_codes: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    offsets: torch.Tensor
    device: torch.device
    dtype: torch.dtype


class Span:
    """Positions start..stop of one row: embeddings, rotary tables, kinds (text or code) and attention mask."""

    def __init__(self, talker: Tables, ids: Sequence[int], audio: AudioSpans, start: int, stop: int):
        self.start, self.stop = start, stop
        cos, sin = talker.cos[start:stop, None], talker.sin[start:stop, None]
        half = cos.shape[-1] // 2
        self.rotary = cos, sin[..., :half], sin[..., half:]
        text = talker.embed_text[torch.as_tensor(ids[start:stop])]
        self.x = to_device(text, talker.device).to(talker.dtype)  # [n, H]
        is_code = torch.zeros(stop - start, dtype=torch.bool)
        for at, rows in audio:
            first, last = max(at, start), min(at + len(rows), stop)
            if first < last:
                books = to_device(rows[first - at : last - at], talker.device) + talker.offsets
                self.x[first - start : last - start] = talker.embed_codes[books].sum(1)
                is_code[first - start : last - start] = True
        self.flash = _has_flash(talker.device, talker.dtype)
        self.mask = self._mask() if start and not self.flash else None
        self.kinds = None  # (text rows, code rows, [n, 1] bool) if the span mixes kinds with separate weights
        self.all_code = bool(is_code.all())
        if talker.family.dual_ffn and is_code.any() and not self.all_code:
            kinds = (~is_code).nonzero()[:, 0], is_code.nonzero()[:, 0], is_code[:, None]
            self.kinds = tuple(to_device(kind, talker.device) for kind in kinds)

    def _mask(self) -> torch.Tensor:
        """Return the additive causal mask [n, stop]: 0 up to each position, -inf after it."""
        length, wide = self.stop - self.start, -(-self.stop // _ALIGNED) * _ALIGNED
        mask = torch.full((length, wide), float("-inf"), dtype=self.x.dtype, device=self.x.device)
        return mask.triu_(self.start + 1)[:, : self.stop]


@functools.cache
def _has_flash(device: torch.device, dtype: torch.dtype) -> bool:
    """True if FlashAttention can be used.

    torch for AMD has an op of the same name, but its causal mask is aligned to the other corner. torch 2.4 cannot tell
    whether it has the op.
    """
    available = getattr(torch.backends.cuda, "is_flash_attention_available", lambda: False)
    if device.type != "cuda" or torch.version.hip or dtype == torch.float32 or not available():
        return False
    if torch.cuda.get_device_capability(device) < (8, 0):
        return False
    probe = torch.zeros(1, 1, 1, 64, device=device, dtype=dtype)
    try:
        flash_attention(probe, probe, probe)
    except torch.cuda.OutOfMemoryError:
        raise
    except (AttributeError, RuntimeError):  # torch lacks the op, or the GPU is newer than torch
        return False
    return True


def run_layer(config: ModelConfig, layer: Layer, span: Span, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Run span.x through a layer, in place.

    keys, values: [kv_heads, S, D], filled up to the span. This call fills the span.
    """
    heads, total = config.heads, config.heads + config.kv_heads
    h = _normed(config, layer, span, "attn_norm")
    split = project(h, layer.qkv).view(len(h), -1, config.head_dim)
    raw = split[:, :total]
    if layer.qk_norm is not None:
        raw = F.rms_norm(split, split.shape[-1:], None, config.norm_eps)[:, :total].mul_(layer.qk_norm)
    qk = _rotated(raw, *span.rotary)
    keys[:, span.start : span.stop].copy_(qk[:, heads:].transpose(0, 1))
    values[:, span.start : span.stop].copy_(split[:, total:].transpose(0, 1))
    attended = _attend(config, span, qk[:, :heads], keys[:, : span.stop], values[:, : span.stop])
    add_linear(attended, layer.out, span.x)
    _mlp(config, layer, span)


def _rotated(x: torch.Tensor, cos: torch.Tensor, low_sin: torch.Tensor, high_sin: torch.Tensor) -> torch.Tensor:
    """Rotate x [n, heads, D] as in ops/rope.py. Returns the same shape."""
    half = low_sin.shape[-1]
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], low_sin, value=-1.0)
    out[..., half:].addcmul_(x[..., :half], high_sin)
    return out


def _attend(config: ModelConfig, span: Span, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Attend causally, aligned to the last position: q [n, heads, D], k and v [kv_heads, stop, D] -> [n, heads * D]."""
    q = q.transpose(0, 1)[None]
    if span.flash:
        out = flash_attention(q, keys[None], values[None])
    else:
        groups = config.heads // config.kv_heads
        keys, values = (
            cache[:, None].expand(-1, groups, -1, -1).reshape(1, config.heads, *cache.shape[1:])
            for cache in (keys, values)
        )
        out = F.scaled_dot_product_attention(q, keys, values, attn_mask=span.mask, is_causal=span.mask is None)
    return out[0].transpose(0, 1).flatten(1)


def _normed(config: ModelConfig, layer: Layer, span: Span, name: str) -> torch.Tensor:
    """Return span.x normed, each position with the weight of its kind."""
    text, code = getattr(layer.text, name), getattr(layer.code, name)
    shape, eps = span.x.shape[-1:], config.norm_eps
    if span.kinds is None:
        return F.rms_norm(span.x, shape, code if span.all_code else text, eps)
    return F.rms_norm(span.x, shape, None, eps).mul_(torch.where(span.kinds[2], code, text))


def _mlp(config: ModelConfig, layer: Layer, span: Span):
    """Add the gated MLP to span.x, each position with the weights of its kind."""
    h = _normed(config, layer, span, "mlp_norm")
    if span.kinds is None:
        expert = layer.code if span.all_code else layer.text
        add_linear(_gated(expert, h), expert.down, span.x)
        return
    for expert, rows in ((layer.text, span.kinds[0]), (layer.code, span.kinds[1])):
        span.x.index_add_(0, rows, project(_gated(expert, h[rows]), expert.down))


def _gated(expert: Expert, h: torch.Tensor) -> torch.Tensor:
    gate_up = project(h, expert.gate_up)
    act = gate_up.new_empty(len(h), gate_up.shape[1] // 2)
    swiglu(gate_up, act)
    return act
