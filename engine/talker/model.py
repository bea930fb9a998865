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
        self,
        config: ModelConfig,
        family: Family,
        tensors: dict[str, torch.Tensor],
        layers: list[Layer],
        context: int,
    ):
        self.config, self.family = config, family
        self.layers = layers
        self.embed_text = tensors["embed_text"]  # [text_vocab, H], host
        self.scratch = tensors.get(SCRATCH)  # room for dequantised weights
        self.embed_codes = tensors["embed_codes"]  # [K * V, H]
        self.head_codes = Weight(tensors["head_codes"], self.scratch)  # [K * V, H]
        self.norm = tensors["norm"]  # [H]
        self.device, self.dtype = self.norm.device, self.norm.dtype
        self.cos, self.sin = rope_tables(config.rope, config.head_dim, context, self.device, self.dtype)
        self.offsets = torch.arange(config.codebooks, device=self.device) * config.code_vocab  # row c * V of codebook c
        if self.dtype == torch.float32:
            for weight in self.weights():
                if weight.data.dtype == torch.bfloat16 and weight.half is None:
                    weight.halve()

    def weights(self) -> list[Weight]:
        """Return the matrices of a step, each once or twice."""
        weights = [self.head_codes]
        for layer in self.layers:
            weights += [layer.qkv, layer.out]
            for expert in (layer.text, layer.code):
                weights += [expert.gate_up, expert.down]
        return weights

    def close(self) -> None:
        """Free what is no tensor, which a pool could empty."""
        for weight in self.weights():
            weight.half = None

    def tensors(self) -> list[torch.Tensor]:
        """Return all tensors on the device that a step reads."""
        tensors = [self.embed_codes, self.norm, self.cos, self.sin, self.offsets]
        tensors += [] if self.scratch is None else [self.scratch]
        tensors += [weight.data for weight in self.weights()]
        for layer in self.layers:
            tensors += [] if layer.qk_norm is None else [layer.qk_norm]
            for expert in (layer.text, layer.code):
                tensors += [expert.attn_norm, expert.mlp_norm]
        return tensors

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Compute logits: last hidden states [n, H] -> [n, K * V] fp32."""
        normed = F.rms_norm(hidden, hidden.shape[-1:], self.norm, self.config.norm_eps)
        return project(normed, self.head_codes).float()

    fill = fill  # prefills, see prefill.py

    def embed(self, output: torch.Tensor, work: Work) -> None:
        """Embed a step's output [B, K] as the talker's next input, work.x."""
        torch.add(output, self.offsets, out=work.embed_index)
        if self.embed_codes.dtype == work.embedded.dtype:
            torch.index_select(self.embed_codes, 0, work.embed_index.view(-1), out=work.embedded)
        else:
            work.embedded.copy_(self.embed_codes.index_select(0, work.embed_index.view(-1)))
        torch.sum(work.embedded.view(*output.shape, -1), 1, out=work.x)

    def decode(self, state: State) -> None:
        """Decode one position per row: state.work.x -> state.cache and state.logits. No allocation, no sync."""
        config, work, cache = self.config, state.work, state.cache
        if cache.filled is None:
            cache.mask_empty()
        torch.index_select(self.cos, 0, cache.position, out=work.cos)
        torch.index_select(self.sin, 0, cache.position, out=work.sin)
        for index, layer in enumerate(self.layers):
            project_qkv(layer, layer.code, work)
            cache.keep_queries(index, work.rotated_q)
            attend_cache(config, work, cache, index)
            project_out(layer, work)
            mlp(layer.code, work)
        rms_norm(work.x, self.norm, work.eps, work.h, work.scale)
        linear(work.h, self.head_codes, work.head)
        work.logits.view(work.head.shape).copy_(work.head)
