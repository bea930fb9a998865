"""The talker's two passes: prefill a prompt, and decode one column of codes at a time."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .config import ModelConfig
from .family import Family
from .layers import Layer, State, Work, attend_cache, mlp, project_out, project_qkv
from .ops.linear import linear, project
from .ops.norm import rms_norm
from .prefill import fill
from .rope import rope_tables
from .weight import SCRATCH, Weight


class Talker:
    """Weights and tables on one device. The text embedding stays in host memory."""

    def __init__(
        self, config: ModelConfig, family: Family, tensors: dict[str, torch.Tensor], layers: list[Layer], context: int
    ):
        self.config, self.family = config, family
        self.layers = layers
        self.embed_text = tensors["embed_text"]  # [text_vocab, H], host
        self.scratch = tensors.get(SCRATCH)  # room for dequantised or widened weights
        self.embed_codes = tensors["embed_codes"]  # [K * V, H]
        self._code_rows = Weight(self.embed_codes, self.scratch)
        self.head_codes = Weight(tensors["head_codes"], self.scratch)  # [K * V, H]
        self.norm = tensors["norm"]  # [H]
        self.device, self.dtype = self.norm.device, self.norm.dtype
        self.cos, self.sin = rope_tables(config.rope, config.head_dim, context, self.device, self.dtype)
        self.offsets = torch.arange(config.codebooks, device=self.device) * config.code_vocab  # row c * V of codebook c

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors on the device that a step reads."""
        tensors = [self.embed_codes, self.head_codes.data, self.norm, self.cos, self.sin, self.offsets]
        tensors += [] if self.scratch is None else [self.scratch]
        for layer in self.layers:
            tensors += [layer.qkv.data, layer.out.data] + ([] if layer.qk_norm is None else [layer.qk_norm])
            for expert in (layer.text, layer.code):
                tensors += [expert.attn_norm, expert.mlp_norm, expert.gate_up.data, expert.down.data]
        return tensors

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits: last hidden states [n, H] -> [n, K * V] fp32."""
        normed = F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.norm_eps)
        return project(normed, self.head_codes).float()

    fill = fill  # prefills, see prefill.py

    def embed(self, output: torch.Tensor, work: Work) -> None:
        """Embed a step's output [B, K] as the talker's next input, work.x."""
        torch.add(output, self.offsets, out=work.embed_index)
        self._code_rows.take(work.embed_index.view(-1), work.embedded)
        torch.sum(work.embedded.view(*output.shape, -1), 1, out=work.x)

    def decode(self, state: State) -> None:
        """Decode one position per row: state.work.x -> state.cache and state.logits. No allocation, no sync."""
        config, work, cache = self.config, state.work, state.cache
        if cache.filled is None:
            cache.mask_empty()
        torch.index_select(self.cos, 0, cache.position, out=work.cos)
        torch.index_select(self.sin, 0, cache.position, out=work.sin)
        for index, layer in enumerate(self.layers):
            project_qkv(config, layer, layer.code, work)
            cache.keep_queries(index, work.q)
            attend_cache(config, work, cache, index)
            project_out(layer, work)
            mlp(layer.code, work)
        rms_norm(work.x, self.norm, work.eps, work.h, work.scale)
        linear(work.h, self.head_codes, work.head)
        work.logits.view(work.head.shape).copy_(work.head)
