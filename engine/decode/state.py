"""Every tensor one step reads or writes besides the weights: allocated once, reset in place. Runs nothing itself."""

from __future__ import annotations

import torch

from ..codes import BOC, CODE_VOCAB
from ..config import RAS_WINDOW
from ..memory import to_device
from ..sequence import Sequence
from ..talker.config import ModelConfig
from ..talker.layers import Work
from . import philox as noise

ALWAYS = 2.0  # a top-p that keeps all: above any cumulative probability, rounding included


class DecodeState:
    """Cache, feedback row, counters, sampling settings and scratch for `batch` rows of `context` positions.

    `position` is where the current row goes in the cache, `written` how many rows a batch row has emitted.
    A row that has ended keeps stepping in its own slots and nothing it does is counted.
    """

    fused = None  # a kernel that decodes this state in one launch, where there is one
    front = None  # a kernel that does the step's part before the talker; only beside `fused`

    def __init__(self, config: ModelConfig, batch: int, context: int, device, dtype):
        self.config, self.batch, self.context = config, batch, context
        self.device, self.dtype = device, dtype
        self.work = Work.make(config, batch, device, dtype)
        self._make_cache()
        self._make_machine()
        self._make_sampling()

    def _new(self, *shape, dtype=torch.int64, fill=0):
        return torch.full(shape, fill, dtype=dtype, device=self.device)

    def _make_cache(self):
        config, batch, slots = self.config, self.batch, self.context
        books, vocab, hidden = config.codebooks, config.code_vocab, config.hidden
        cache = (config.layers, batch, config.kv_heads, slots, config.head_dim)
        self.keys = self._new(*cache, dtype=self.dtype)
        self.values = self._new(*cache, dtype=self.dtype)
        heads = torch.arange(batch * config.kv_heads, dtype=torch.int64).view(batch, -1) * slots
        self.slot_base = heads.to(self.device)  # [B, kv_heads] first flat cache row
        self.slots = self._new(batch, config.kv_heads)  # where this step's key and value go
        self.cache_index = torch.arange(slots, dtype=torch.int64).to(self.device)
        self.unfilled = self._new(batch, 1, slots, dtype=torch.bool)
        scores = (batch * config.kv_heads, config.heads // config.kv_heads, slots)
        self.scores = self._new(*scores, dtype=self.dtype)
        self.embed_index = self._new(batch, books)
        self.embedded = self._new(batch * books, hidden, dtype=self.dtype)
        self.head = self._new(batch, books * vocab, dtype=self.dtype)
        self.logits = self._new(batch, books, vocab, dtype=torch.float32)

    def _make_machine(self):
        batch, books = self.batch, self.config.codebooks
        self.row = self._new(batch, books, fill=BOC)  # feedback: the codes just emitted
        self.rows = self._new(batch, self.context + 1, books)  # all emitted rows; the last slot takes what no one reads
        self.row_base = (torch.arange(batch, dtype=torch.int64) * (self.context + 1)).to(self.device)
        self.row_index = self._new(batch)
        self.prompt_length = self._new(batch)
        self.position = self._new(batch)
        self.written = self._new(batch)
        self.row_limit = self._new(batch)
        self.countdown = self._new(batch, fill=-1)  # rows left of the closing ramp; -1 outside it
        self.done = self._new(batch, dtype=torch.bool, fill=True)
        self.ended = self._new(batch, dtype=torch.bool)  # done because speech ended, not because of the limit
        self.finite = self._new(batch, dtype=torch.bool, fill=True)  # all logits the row was sampled from are numbers
        self.book_index = torch.arange(books, dtype=torch.int64).to(self.device)
        self.number = {n: self._new(fill=n) for n in (-1, 0, books, books - 1, books - 2)}  # operands of where()
        self.is_eoc = self._new(batch, books, dtype=torch.bool)
        self.flags = {name: self._new(batch, dtype=torch.bool) for name in ("live", "ramp", "found", "last", "over")}
        self.cells = self._new(batch, books, dtype=torch.bool)
        self.cell_numbers = self._new(batch, books)
        self.first_eoc = self._new(batch)
        self.bound = self._new(batch)
        self.ramp_start = self._new(batch)
        self.steps = self._new(batch)

    def _make_sampling(self):
        batch, books, vocab = self.batch, self.config.codebooks, self.config.code_vocab
        quads = -(-vocab // 4)
        per_row = {"dtype": torch.float32}
        self.inverse_temperature = self._new(batch, 1, 1, **per_row, fill=1)
        self.noise_scale = self._new(batch, 1, 1, **per_row)
        self.top_p = self._new(batch, 1, 1, **per_row, fill=ALWAYS)
        self.top_k_index = self._new(batch, books, 1, fill=vocab - 1)
        self.ban = self._new(batch, dtype=torch.bool)
        self.banned = self._new(batch, books, dtype=torch.bool)
        self.line = self._new(batch)
        self.peak = self._new(batch, **per_row)  # the largest magnitude of a row's logits
        self.peak_finite = self._new(batch, dtype=torch.bool)
        self.keys_philox = self._new(batch, noise.ROUNDS, 2)
        self.factors = noise.multipliers(self.device)
        self.quad_index = torch.arange(quads, dtype=torch.int64).to(self.device)
        self.words = self._new(batch, books, 4, quads)
        self.product = self._new(batch, books, 2, quads)
        self.high = self._new(batch, books, 2, quads)
        self.noise = self._new(batch, books, 4 * quads, **per_row)
        self.adjusted = self._new(batch, books, vocab, **per_row)
        self.ordered = self._new(batch, books, vocab, **per_row)
        self.order = self._new(batch, books, vocab)
        self.mass = self._new(batch, books, vocab, **per_row)
        self.cumulative = self._new(batch, books, vocab, **per_row)
        self.dropped = self._new(batch, books, vocab, dtype=torch.bool)
        self.kept = self._new(batch, books, 1)
        self.threshold_k = self._new(batch, books, 1, **per_row)
        self.threshold_p = self._new(batch, books, 1, **per_row)
        if self.config.is_v2:
            window = RAS_WINDOW
            self.redrawn = self._new(batch, books)
            self.history = self._new(batch, window, books, fill=BOC)
            self.history_next = self._new(batch, window, books, fill=BOC)
            self.repeats = self._new(batch, window, books, dtype=torch.bool)
            self.specials = self._new(batch, window, books, dtype=torch.bool)
            self.window_mask = self._new(batch, window, 1, dtype=torch.bool)
            self.repeats_wide = self._new(batch, window, books, **per_row)
            self.repeat_count = self._new(batch, books, **per_row)
            self.repeat_limit = self._new(batch, 1, **per_row, fill=window + 1)

    def tensors(self) -> list[torch.Tensor]:
        """Every tensor of the state."""
        groups = [vars(self).values(), vars(self.work).values(), self.number.values(), self.flags.values()]
        return [value for group in groups for value in group if isinstance(value, torch.Tensor)]

    def nbytes(self) -> int:
        """Bytes of all buffers; shared ones counted once."""
        storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in self.tensors()}
        return sum(storages.values())

    def start_row(self, b: int, sequence: Sequence):
        """Makes row `b` ready for a sequence's first step after prefill."""
        books, params, prompt_length = self.config.codebooks, sequence.params, len(sequence.ids)
        self.prompt_length[b], self.position[b], self.written[b] = prompt_length, prompt_length, 0
        limit = min(params.max_frames + books - 1, self.context - prompt_length)
        self.row_limit[b] = limit
        self.countdown[b], self.done[b], self.ended[b], self.finite[b] = -1, limit <= 0, False, True
        self.row[b] = BOC
        self.inverse_temperature[b] = 1.0 if params.greedy else 1.0 / params.temperature
        self.noise_scale[b] = 0.0 if params.greedy else 1.0
        self.top_p[b] = ALWAYS if params.top_p >= 1 else params.top_p
        self.top_k_index[b] = min(params.top_k or CODE_VOCAB, CODE_VOCAB) - 1
        self.ban[b] = params.ban_specials
        self.line[b] = sequence.index
        self.keys_philox[b] = to_device(noise.round_keys(params.seed), self.device)
        if self.fused is None:  # torch's attention weighs the slots behind the prompt with 0, but 0 times NaN is NaN
            self.values[:, b, :, prompt_length:].zero_()
        if self.config.is_v2:
            self._start_window(b, sequence)

    def _start_window(self, b: int, sequence: Sequence):
        """The repeat window as the codes at the end of the prompt leave it."""
        window, params = self.history.shape[1], sequence.params
        looked_back = min(params.ras_window, window)
        active = looked_back > 0 and not params.greedy
        self.repeat_limit[b] = params.ras_repeats if active else window + 1
        self.window_mask[b, :, 0] = torch.arange(window, device=self.device) >= window - looked_back
        self.history[b] = BOC
        if sequence.audio:
            tail = torch.cat([columns for _, columns in sequence.audio])[-window:]
            self.history[b, window - len(tail) :] = to_device(tail, self.device)
