"""The talker's pass over many positions of one row: a prompt, or the part of it that the cache does not hold yet.

Its results are new tensors, so it needs no scratch and a third of the launches that the step's own layers make. Knows
no sampling and keeps nothing between calls.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..config import ModelConfig
from ..kernels.rope import rotate
from ..kernels.swiglu import swiglu
from .layers import Layer

_ALIGNED = 16  # attention kernels read masks in whole rows of this


class Span:
    """Positions start..stop of one row: their embeddings, rotary tables, kinds, and what they may attend to."""

    def __init__(self, talker, ids, audio, start: int, stop: int):
        self.start, self.stop = start, stop
        self.cos, self.sin = talker.cos[start:stop], talker.sin[start:stop]
        self.x = talker.embed_text[torch.as_tensor(ids[start:stop])].to(talker.device, talker.dtype)  # [L, H]
        is_code = torch.zeros(stop - start, dtype=torch.bool)
        for at, rows in audio:
            first, last = max(at, start), min(at + len(rows), stop)
            if first < last:
                books = rows[first - at : last - at].to(talker.device) + talker.offsets
                self.x[first - start : last - start] = talker.embed_codes[books].sum(1)
                is_code[first - start : last - start] = True
        self.mask = self._mask() if start else None
        self.kinds = None  # (rows of text, rows of codes, [L, 1] bool) where both kinds need weights of their own
        self.all_code = bool(is_code.all())
        if talker.config.is_v2 and is_code.any() and not self.all_code:
            kinds = (~is_code).nonzero()[:, 0], is_code.nonzero()[:, 0], is_code[:, None]
            self.kinds = tuple(kind.to(talker.device) for kind in kinds)

    def _mask(self) -> torch.Tensor:
        """Added to scores [L, stop]: each position sees all before the span, and of the span what is not after it."""
        length, wide = self.stop - self.start, -(-self.stop // _ALIGNED) * _ALIGNED
        mask = torch.full((length, wide), float("-inf"), dtype=self.x.dtype, device=self.x.device)
        return mask.triu_(self.start + 1)[:, : self.stop]


def run_layer(config: ModelConfig, layer: Layer, span: Span, keys, values):
    """Takes span.x through a layer; keys, values: [kv_heads, S, D], filled up to the span, and by this call with it."""
    heads, total = config.heads, config.heads + config.kv_heads
    h = _normed(config, layer, span, "attn_norm")
    split = (h @ layer.qkv.t()).view(len(h), -1, config.head_dim)
    raw = split[:, :total]
    if layer.qk_norm is not None:
        raw = F.rms_norm(raw, raw.shape[-1:], None, config.norm_eps).mul_(layer.qk_norm)
    qk = torch.empty_like(raw, memory_format=torch.contiguous_format)
    rotate(raw, span.cos, span.sin, qk)
    keys[:, span.start : span.stop].copy_(qk[:, heads:].transpose(0, 1))
    values[:, span.start : span.stop].copy_(split[:, total:].transpose(0, 1))
    attended = F.scaled_dot_product_attention(
        qk[:, :heads].transpose(0, 1)[None],
        _for_each_head(config, keys[:, : span.stop]),
        _for_each_head(config, values[:, : span.stop]),
        attn_mask=span.mask,
        is_causal=span.mask is None,
    )
    span.x.add_(attended[0].transpose(0, 1).flatten(1) @ layer.out.t())
    _mlp(config, layer, span)


def _for_each_head(config: ModelConfig, cache):
    """[kv_heads, S, D] -> [1, heads, S, D]: every query head's own."""
    groups = config.heads // config.kv_heads
    return cache[:, None].expand(-1, groups, -1, -1).reshape(1, config.heads, *cache.shape[1:])


def _normed(config: ModelConfig, layer: Layer, span: Span, name: str) -> torch.Tensor:
    """span.x normed, each position with its own kind's weight; rounded before the weight, as kernels/norm.py does."""
    text, code = getattr(layer.text, name), getattr(layer.code, name)
    weight = code if span.all_code else text
    if span.kinds is not None:
        weight = torch.where(span.kinds[2], code, text)
    return F.rms_norm(span.x, span.x.shape[-1:], None, config.norm_eps).mul_(weight)


def _mlp(config: ModelConfig, layer: Layer, span: Span):
    """Adds the gated MLP to span.x, each position with its own kind's weights."""
    h = _normed(config, layer, span, "mlp_norm")
    if span.kinds is None:
        span.x.add_(_gated(layer.code if span.all_code else layer.text, h))
        return
    for expert, rows in ((layer.text, span.kinds[0]), (layer.code, span.kinds[1])):
        span.x.index_add_(0, rows, _gated(expert, h[rows]))


def _gated(expert, h) -> torch.Tensor:
    gate_up = h @ expert.gate_up.t()
    act = gate_up.new_empty(len(h), gate_up.shape[1] // 2)
    swiglu(gate_up, act)
    return act @ expert.down.t()
