"""A decode step of the alternative users would run: transformers' own network, eager or compiled. A process each.

transformers serves the talker's network, not its codes, so the eight-codebook embedding, head and sampling around it
are written here, as plainly as its `generate` would have them. v2's code path is a Llama of the same widths.
Prints one JSON line last.
"""

from __future__ import annotations

import argparse
import inspect
import json
import pathlib
import statistics
import sys
import time

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
BOOKS, VOCAB = 8, 1026
TOP_K, TOP_P = 50, 0.95
ROUNDS = 3


def main():
    """Time one peer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=("eager", "compiled"))
    parser.add_argument("family", choices=("v3", "v2"))
    parser.add_argument("--context", type=int, default=500)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--slots", type=int, default=1024, help="of the static cache")
    parser.add_argument("--layers", type=int, help="fewer than published, for a trial")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    with torch.no_grad():
        peer = Peer(args.family, args.device, args.layers, args.slots if args.peer == "compiled" else None)
        rounds = [peer.round(args.context, args.steps) for _ in range(ROUNDS + 1)]
    import transformers

    print(json.dumps({"ms_per_step": statistics.median(rounds[1:]), "transformers": transformers.__version__}))


class Peer:
    """Network, embedding, head and cache. A static cache of `slots` positions means a compiled step."""

    def __init__(self, family: str, device: str, layers: int | None, slots: int | None):
        self.config, kind = _network(family, layers)
        self.dtype = torch.bfloat16
        with torch.device(device):
            self.network = kind(self.config).to(self.dtype).eval()
        width = self.config.hidden_size
        self.embedding, self.head = (
            (torch.randn(BOOKS * VOCAB, width, device=device) * width**-0.5).to(self.dtype) for _ in range(2)
        )
        self.offsets = torch.arange(BOOKS, device=device) * VOCAB
        self.device, self.slots = torch.device(device), slots
        self.old_positions = "cache_position" in inspect.signature(self.network.forward).parameters
        self.step = self._step
        if slots:
            self.step = torch.compile(self._step, mode="reduce-overhead")
            self.static = self._new_static()

    def round(self, context: int, steps: int) -> float:
        """Return milliseconds per step over `steps` steps around `context` filled positions, without the prompt."""
        filled = context - steps // 2
        cache = self._filled(filled)
        codes = torch.randint(VOCAB, (BOOKS,), device=self.device)
        position = torch.full((1,), filled, device=self.device)
        for _ in range(3):  # compiles in the first round; fills a few more positions
            codes = self._next(codes, cache, position)
        began, ended = (self._event() for _ in range(2))
        began.record()
        for _ in range(steps):
            codes = self._next(codes, cache, position)
        ended.record()
        ended.synchronize()
        return began.elapsed_time(ended) / steps

    def _next(self, codes, cache, position):
        if self.slots:
            torch.compiler.cudagraph_mark_step_begin()
        codes = self.step(codes, cache, position).clone()
        position += 1
        return codes

    def _step(self, codes, cache, position):
        x = self.embedding[codes + self.offsets].sum(0).view(1, 1, -1)
        where = {"position_ids": position.view(1, 1)}
        if self.old_positions:
            where["cache_position"] = position
        out = self.network(inputs_embeds=x, past_key_values=cache, use_cache=True, **where)
        return _sample((out.last_hidden_state[0, -1] @ self.head.T).view(BOOKS, VOCAB).float())

    def _filled(self, filled: int):
        """Return a cache after a prompt of `filled` random positions."""
        from transformers import DynamicCache

        if self.slots:
            self.static.reset()
        cache = self.static if self.slots else DynamicCache()
        prompt = torch.randn(1, filled, self.config.hidden_size, device=self.device, dtype=self.dtype)
        where = {"cache_position": torch.arange(filled, device=self.device)} if self.old_positions else {}
        self.network(inputs_embeds=prompt, past_key_values=cache, use_cache=True, **where)
        return cache

    def _new_static(self):
        from transformers import StaticCache

        accepted = inspect.signature(StaticCache.__init__).parameters
        older = {"max_batch_size": 1, "device": self.device, "dtype": self.dtype}
        extra = {name: value for name, value in older.items() if name in accepted}
        return StaticCache(config=self.config, max_cache_len=self.slots, **extra)

    def _event(self):
        return torch.cuda.Event(enable_timing=True) if self.device.type == "cuda" else _Clock()


class _Clock:
    """A CUDA event's interface on a CPU, for trials there."""

    def record(self):
        self.at = time.perf_counter()

    def synchronize(self):
        """Do nothing: no work is pending."""

    def elapsed_time(self, later) -> float:
        return 1000 * (later.at - self.at)


def _network(family: str, layers: int | None):
    """Return (config, class) of transformers' network of the published widths, with a minimal text embedding."""
    from transformers import LlamaConfig, LlamaModel, Qwen3Config, Qwen3Model

    from engine.tools.published import PUBLISHED

    sizes = {**PUBLISHED[family], "vocab_size": 8, "max_position_embeddings": 8192}
    sizes["num_hidden_layers"] = layers or sizes["num_hidden_layers"]
    if family == "v3":
        return Qwen3Config(**sizes, rms_norm_eps=1e-6, rope_theta=1e6), Qwen3Model
    return LlamaConfig(**sizes, rms_norm_eps=1e-5, rope_theta=5e5), LlamaModel


def _sample(logits: torch.Tensor) -> torch.Tensor:
    """Sample logits [N, V] -> codes [N]: top-k, then top-p, then a draw."""
    values, index = logits.topk(TOP_K)
    chances = values.softmax(-1)
    values = values.masked_fill(chances.cumsum(-1) - chances > TOP_P, float("-inf"))
    return index.gather(1, torch.multinomial(values.softmax(-1), 1))[:, 0]


if __name__ == "__main__":
    main()
