"""The talker's two passes: a prompt into the cache, and one row of codes after another. Knows nothing of sampling."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .config import ModelConfig
from .layers import attend_cache, mlp, project_out, project_qkv
from .ops.linear import linear
from .ops.norm import rms_norm
from .prefill import Span, run_layer
from .rope import rope_tables


class Talker:
    """Weights and tables on one device; the text embedding stays in host memory."""

    def __init__(self, config: ModelConfig, tensors: dict, layers: list, context: int):
        self.config = config
        self.layers = layers
        self.embed_text = tensors["embed_text"]  # [text_vocab, H], host
        self.embed_codes = tensors["embed_codes"]  # [N * V, H]
        self.head_codes = tensors["head_codes"]  # [N * V, H]
        self.norm = tensors["norm"]  # [H]
        self.device, self.dtype = self.embed_codes.device, self.embed_codes.dtype
        self.cos, self.sin = rope_tables(config.rope, config.head_dim, context, self.device, self.dtype)
        self.offsets = torch.arange(config.codebooks, device=self.device) * config.code_vocab  # row c * V of codebook c

    def tensors(self) -> list[torch.Tensor]:
        """Everything on the device that a step reads."""
        found = [self.embed_codes, self.head_codes, self.norm, self.cos, self.sin, self.offsets]
        for layer in self.layers:
            found += [layer.qkv, layer.out] + ([] if layer.qk_norm is None else [layer.qk_norm])
            for expert in (layer.text, layer.code):
                found += [expert.attn_norm, expert.mlp_norm, expert.gate_up, expert.down]
        return found

    def prefill(self, ids, spans, keys, values, start: int = 0) -> torch.Tensor:
        """Runs a prompt of one row from position `start` on; returns the last position's logits [N * V] fp32.

        ids: P token ids; spans: (start, rows [L, N]) pairs of code rows whose embeddings replace those of the ids;
        keys, values: [layers, kv_heads, S, D], the row's part of the cache, filled before `start` and here after it.
        """
        hidden = self.fill(ids, spans, keys, values, start, len(ids))[-1:]
        normed = F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.norm_eps)
        return (normed @ self.head_codes.t()).float()[0]

    def fill(self, ids, spans, keys, values, start: int, stop: int) -> torch.Tensor:
        """Positions start..stop of a prompt into the cache, as `prefill`; returns their last hidden states [L, H]."""
        span = Span(self, ids, spans, start, stop)
        for layer, layer_keys, layer_values in zip(self.layers, keys, values, strict=True):
            run_layer(self.config, layer, span, layer_keys, layer_values)
        return span.x

    def embed_row(self, state):
        """The row just emitted as the talker's input: state.row -> state.work.x."""
        torch.add(state.row, self.offsets, out=state.embed_index)
        torch.index_select(self.embed_codes, 0, state.embed_index.view(-1), out=state.embedded)
        torch.sum(state.embedded.view(state.batch, self.config.codebooks, -1), 1, out=state.work.x)

    def decode(self, state):
        """One position a batch row: state.work.x -> cache and state.logits. Allocates nothing, syncs nothing."""
        config, work = self.config, state.work
        if state.fused is not None:
            state.fused.run()
            return
        torch.index_select(self.cos, 0, state.position, out=work.cos)
        torch.index_select(self.sin, 0, state.position, out=work.sin)
        for index, layer in enumerate(self.layers):
            project_qkv(config, layer, layer.code, work)
            attend_cache(
                config,
                work,
                state.keys[index],
                state.values[index],
                state.slots.view(-1),
                state.unfilled,
                state.scores,
            )
            project_out(layer, work)
            mlp(config, layer.code, work)
        rms_norm(work.x, self.norm, work.eps, work.h, work.scale)
        linear(work.h, self.head_codes, state.head)
        state.logits.view(state.batch, -1).copy_(state.head)
