"""Sampling: temperature, top-k and top-p per codebook in fp32, then the Gumbel-max trick. No sync.

Always per codebook: over the fused vocabulary, whole codebooks could be filtered out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..core.codes import BOC, CODE_VOCAB, EOC
from ..core.config import RAS_WINDOW, SamplingParams
from ..device.buffers import Buffers, buffer
from ..device.memory import send
from .delay_machine import DelayMachine
from .philox import ROUNDS, gumbel, philox, round_keys

FP32, BOOL = torch.float32, torch.bool
SAMPLE, RESAMPLE = 0, 1  # noise streams: the sample, and v2's second sample of repeated codes
KEEP_ALL = 2.0  # a top-p above any cumulative probability, including rounding
NOISE_STREAM = 1 << 16  # factor of the stream number in the counter


@dataclass(eq=False)
class Sampler(Buffers):
    """Sampling parameters and scratch of B rows."""

    inverse_temperature: torch.Tensor = buffer("B", 1, 1, dtype=FP32, fill=1, lasts=True)
    noise_scale: torch.Tensor = buffer("B", 1, 1, dtype=FP32, lasts=True)  # 0: greedy
    top_p: torch.Tensor = buffer("B", 1, 1, dtype=FP32, fill=KEEP_ALL, lasts=True)
    top_k_index: torch.Tensor = buffer("B", "K", 1, fill=CODE_VOCAB - 1, lasts=True)  # last rank that top-k keeps
    suppress_specials: torch.Tensor = buffer("B", dtype=BOOL, lasts=True)
    sequence_index: torch.Tensor = buffer("B", lasts=True)  # part of the noise counter
    round_keys: torch.Tensor = buffer("B", ROUNDS, 2, lasts=True)  # Philox keys derived from the seed
    suppressed: torch.Tensor = buffer("B", "K", dtype=BOOL)  # codebooks on which EOC is banned
    finite: torch.Tensor = buffer("B", dtype=BOOL, fill=1, lasts=True)  # all logits so far were finite
    # Scratch
    largest: torch.Tensor = buffer("B", dtype=FP32)  # largest magnitude of a row's logits
    is_finite: torch.Tensor = buffer("B", dtype=BOOL)
    adjusted: torch.Tensor = buffer("B", "K", "V", dtype=FP32)  # logits after temperature, bans and truncation
    ordered: torch.Tensor = buffer("B", "K", "V", dtype=FP32)  # adjusted logits, largest first
    order: torch.Tensor = buffer("B", "K", "V")
    dropped: torch.Tensor = buffer("B", "K", "V", dtype=BOOL)
    probabilities: torch.Tensor = buffer("B", "K", "V", dtype=FP32)  # of ordered
    mass_above: torch.Tensor = buffer("B", "K", "V", dtype=FP32)  # total probability of likelier codes
    last_kept: torch.Tensor = buffer("B", "K", 1)  # rank of the last code that top-p keeps
    threshold_k: torch.Tensor = buffer("B", "K", 1, dtype=FP32)
    threshold_p: torch.Tensor = buffer("B", "K", 1, dtype=FP32)
    noise: torch.Tensor = buffer("B", "K", "V4", dtype=FP32)
    words: torch.Tensor = buffer("B", "K", 4, "Q")  # Philox counters, then random words; V4 = 4 * Q >= V
    product: torch.Tensor = buffer("B", "K", 2, "Q")
    quad: torch.Tensor = buffer("Q")  # 0..Q-1
    codebook: torch.Tensor = buffer("K")  # 0..K-1

    def initialize(self) -> None:
        self.quad.copy_(self.count("Q"))
        self.codebook.copy_(self.count("K"))

    @staticmethod
    def row_values(params: SamplingParams, index: int) -> dict[str, Any]:
        """Return a row's sampling parameters by buffer. `index` distinguishes sequences with the same seed."""
        return {
            "inverse_temperature": 1.0 if params.greedy else 1.0 / params.temperature,
            "noise_scale": 0.0 if params.greedy else 1.0,
            "top_p": KEEP_ALL if params.top_p >= 1 else params.top_p,
            "top_k_index": min(params.top_k or CODE_VOCAB, CODE_VOCAB) - 1,
            "suppress_specials": params.ban_specials,
            "sequence_index": index,
        }

    def start(self, row: int, params: SamplingParams, index: int) -> None:
        """Set a row's sampling parameters."""
        self.set_row(row, finite=True, **self.row_values(params, index))
        send(round_keys(params.seed), self.round_keys[row])

    def sample(self, logits: torch.Tensor, delay: DelayMachine, *, on_host: bool = False) -> None:
        """Sample logits [B, K, V] fp32 -> delay.output [B, K]. `suppressed` must be set for this step.

        on_host: the buffers are in the host's memory and the step is not captured, so the host may read them.
        """
        self._check(logits, delay.done)
        torch.mul(logits, self.inverse_temperature, out=self.adjusted)
        self._suppress(self.adjusted)
        self._truncate(on_host)
        self._choose(SAMPLE, delay.num_generated, delay.output)

    def _check(self, logits: torch.Tensor, done: torch.Tensor):
        """Clear `finite` for live rows whose logits contain NaN or infinity. Never sets it."""
        torch.linalg.vector_norm(logits.view(len(logits), -1), math.inf, -1, out=self.largest)
        torch.lt(self.largest, math.inf, out=self.is_finite)  # also False for NaN
        self.finite.logical_and_(self.is_finite.logical_or_(done))

    def _suppress(self, logits: torch.Tensor):
        """Mask banned specials in logits [B, K, V], in place."""
        logits[..., BOC].masked_fill_(self.suppress_specials.unsqueeze(1), float("-inf"))
        logits[..., EOC].masked_fill_(self.suppressed, float("-inf"))

    def _truncate(self, on_host: bool):
        """Apply top-k, then top-p to the rest, in place on `adjusted`. Ties with the last kept logit are kept."""
        ordered = self.ordered
        if on_host:  # NumPy sorts eight times as fast as torch on a CPU
            torch.neg(self.adjusted, out=ordered).numpy().sort(-1)
            ordered.neg_()
        else:
            torch.topk(self.adjusted, ordered.shape[-1], dim=-1, out=(ordered, self.order))
        torch.gather(ordered, -1, self.top_k_index, out=self.threshold_k)
        torch.lt(ordered, self.threshold_k, out=self.dropped)
        ordered.masked_fill_(self.dropped, float("-inf"))
        torch.softmax(ordered, dim=-1, out=self.probabilities)
        torch.cumsum(self.probabilities, dim=-1, out=self.mass_above)
        self.mass_above.sub_(self.probabilities)  # the code that crosses top-p is kept
        torch.lt(self.mass_above, self.top_p, out=self.dropped)
        self.probabilities.copy_(self.dropped)  # True for kept codes; as floats, since sums of bool allocate on CUDA
        torch.sum(self.probabilities, -1, keepdim=True, out=self.threshold_p)
        self.last_kept.copy_(self.threshold_p.sub_(1).clamp_(min=0))
        torch.gather(ordered, -1, self.last_kept, out=self.threshold_p)
        torch.maximum(self.threshold_p, self.threshold_k, out=self.threshold_p)
        torch.lt(self.adjusted, self.threshold_p, out=self.dropped)
        self.adjusted.masked_fill_(self.dropped, float("-inf"))

    def _choose(self, stream: int, num_generated: torch.Tensor, out: torch.Tensor):
        """Sample softmax(adjusted): out [B, K] = argmax(adjusted + Gumbel noise). Adds the noise to `adjusted`.

        Counters: (code within a word, codebook and stream, step, sequence). A counter's four words serve four codes.
        """
        words = self.words
        words[:, :, 0].copy_(self.quad)
        words[:, :, 1].copy_(self.codebook.view(1, -1, 1))
        words[:, :, 1].add_(stream * NOISE_STREAM)
        words[:, :, 2].copy_(num_generated.view(-1, 1, 1))
        words[:, :, 3].copy_(self.sequence_index.view(-1, 1, 1))
        philox(words, self.round_keys, self.product)
        gumbel(words.view(self.noise.shape), self.noise)
        if stream == SAMPLE:
            self.noise.mul_(self.noise_scale)
        self.adjusted.add_(self.noise[..., : self.adjusted.shape[-1]])
        torch.argmax(self.adjusted, dim=-1, out=out)


@dataclass(eq=False)
class RepetitionAwareSampler(Sampler):
    """Sampler with v2's repetition rule, as in transformers: resamples a code repeated too often in the last frames.

    Repeats are counted per codebook, without BOC and EOC. The second sample ignores temperature, top-k and top-p.
    """

    history: torch.Tensor = buffer("B", "W", "K", fill=BOC, lasts=True)  # finished outputs, oldest first
    window_mask: torch.Tensor = buffer("B", "W", 1, dtype=BOOL, lasts=True)  # frames that a row looks back at
    repeat_limit: torch.Tensor = buffer("B", 1, dtype=FP32, fill=RAS_WINDOW + 1, lasts=True)
    # Scratch
    resampled: torch.Tensor = buffer("B", "K")
    is_repeat: torch.Tensor = buffer("B", "W", "K", dtype=BOOL)
    is_code: torch.Tensor = buffer("B", "W", "K", dtype=BOOL)
    repeats: torch.Tensor = buffer("B", "W", "K", dtype=FP32)
    num_repeats: torch.Tensor = buffer("B", "K", dtype=FP32)
    too_often: torch.Tensor = buffer("B", "K", dtype=BOOL)
    next_history: torch.Tensor = buffer("B", "W", "K", fill=BOC)

    def start_window(self, row: int, params: SamplingParams, columns: torch.Tensor) -> None:
        """Set a row's window from the delayed codes [n, K] at the end of its prompt."""
        window = self.sizes["W"]
        looked_back = min(params.ras_window, window)
        active = looked_back > 0 and not params.greedy
        self.set_row(row, repeat_limit=params.ras_repeats if active else window + 1)
        send(torch.arange(window) >= window - looked_back, self.window_mask[row, :, 0])
        opening = columns.new_full((window, self.sizes["K"]), BOC)
        send(torch.cat([opening, columns])[-window:], self.history[row])

    def sample(self, logits: torch.Tensor, delay: DelayMachine, *, on_host: bool = False) -> None:
        super().sample(logits, delay, on_host=on_host)
        torch.eq(self.history, delay.output.unsqueeze(1), out=self.is_repeat)
        torch.lt(self.history, BOC, out=self.is_code)
        self.is_repeat.logical_and_(self.is_code).logical_and_(self.window_mask)
        self.repeats.copy_(self.is_repeat)
        torch.sum(self.repeats, 1, out=self.num_repeats)
        torch.ge(self.num_repeats, self.repeat_limit, out=self.too_often)
        if on_host and not self.too_often.any():
            return
        self.adjusted.copy_(logits)
        self._suppress(self.adjusted)
        self._choose(RESAMPLE, delay.num_generated, self.resampled)
        torch.where(self.too_often, self.resampled, delay.output, out=delay.output)

    def remember(self, output: torch.Tensor) -> None:
        """Shift the finished output [B, K] into the window."""
        self.next_history[:, :-1].copy_(self.history[:, 1:])
        self.next_history[:, -1].copy_(output)
        self.history.copy_(self.next_history)
