"""The talker's two passes: a prompt into the cache, and one row of codes after another. Knows nothing of sampling."""

from __future__ import annotations

import torch

from ..config import ModelConfig
from ..kernels.linear import linear
from ..kernels.norm import rms_norm
from .layers import Work, attend_cache, attend_prompt, mlp, project_out, project_qkv
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

    def embed_prompt(self, ids, spans) -> tuple[torch.Tensor, torch.Tensor]:
        """Prompt -> embeddings [P, H] and which positions are codes [P] bool, both on the device.

        ids: P token ids; spans: (start, rows [L, N]) pairs whose embeddings replace those of the ids.
        """
        x = self.embed_text[torch.as_tensor(ids)].to(self.device, self.dtype)
        is_code = torch.zeros(len(ids), dtype=torch.bool, device=self.device)
        for start, rows in spans:
            picked = self.embed_codes[rows.to(self.device) + self.offsets]  # [L, N, H]
            x[start : start + len(rows)] = picked.sum(1)
            is_code[start : start + len(rows)] = True
        return x, is_code

    def prefill(self, ids, spans, keys, values) -> torch.Tensor:
        """Runs a prompt of one row and fills its cache; returns the last position's logits [N * V] fp32.

        keys, values: [layers, kv_heads, S, D], the row's part of the cache.
        """
        x, is_code = self.embed_prompt(ids, spans)
        work = Work.make(self.config, len(ids), self.device, self.dtype)
        work.x.copy_(x)
        work.cos.copy_(self.cos[: len(ids)])
        work.sin.copy_(self.sin[: len(ids)])
        routes = self._routes(is_code)
        for index, layer in enumerate(self.layers):
            self._routed(
                layer, work, routes, lambda expert, part, layer=layer: project_qkv(self.config, layer, expert, part)
            )
            attend_prompt(self.config, work, keys[index], values[index])
            project_out(layer, work)
            self._routed(layer, work, routes, lambda expert, part: mlp(self.config, expert, part))
        hidden = work.x[-1:]
        rms_norm(hidden, self.norm, self.config.norm_eps, work.h[-1:], work.wide[-1:], work.scale[-1:])
        return (work.h[-1:] @ self.head_codes.t()).float()[0]

    def _routes(self, is_code):
        """Position lists of the text and the code expert in a mixed prompt; None where one expert serves all."""
        if not self.config.is_v2:
            return None
        return (~is_code).nonzero()[:, 0], is_code.nonzero()[:, 0]

    @staticmethod
    def _routed(layer, work, routes, run):
        """Runs `run(expert, work)` on every position with the position's own expert."""
        if routes is None:
            run(layer.code, work)
            return
        for expert, rows in ((layer.text, routes[0]), (layer.code, routes[1])):
            if len(rows):
                part = work.select(rows)
                run(expert, part)
                for name in ("x", "q", "k", "v"):
                    getattr(work, name)[rows] = getattr(part, name)

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
                state.scores_wide,
                state.probs,
            )
            project_out(layer, work)
            mlp(config, layer.code, work)
        rms_norm(work.x, self.norm, config.norm_eps, work.h, work.wide, work.scale)
        linear(work.h, self.head_codes, state.head)
        state.logits.view(state.batch, -1).copy_(state.head)
