"""All tensors that a step reads or writes besides the weights, allocated once and reset in place."""

from __future__ import annotations

import torch

from ..core.config import RAS_WINDOW
from ..core.sequence import Sequence
from ..device.buffers import Buffers
from ..device.torch_names import storage_id
from ..talker import FAMILIES
from ..talker.config import Aligned, ModelConfig
from ..talker.layers import Work
from .delay_machine import DelayMachine
from .kv_cache import KVCache
from .sampler import RepetitionAwareSampler, Sampler


def sizes_of(config: ModelConfig, batch: int, max_seq_len: int) -> dict[str, int]:
    """Return the sizes for the letters in buffer shapes."""
    quads = -(-config.code_vocab // 4)
    return {
        "B": batch,
        "K": config.codebooks,
        "V": config.code_vocab,
        "Q": quads,
        "V4": 4 * quads,
        "S": max_seq_len,
        "N": max_seq_len + 1,
        "W": RAS_WINDOW,
        "H": config.hidden,
        "I": config.intermediate,
        "D": config.head_dim,
        "layers": config.layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
    }


class DecodeState:
    """KV cache, delay machine, sampler and the talker's buffers for `batch` rows of `max_seq_len` positions.

    aligned: see KVCache.
    """

    def __init__(
        self,
        config: ModelConfig,
        batch: int,
        max_seq_len: int,
        device: torch.device,
        dtype: torch.dtype,
        aligned: Aligned = (),
    ):
        self.config, self.batch, self.max_seq_len = config, batch, max_seq_len
        self.device, self.dtype = device, dtype
        self.family = FAMILIES[config.family]
        sizes = sizes_of(config, batch, max_seq_len)
        self.cache = KVCache(sizes, device, dtype, aligned)
        self.delay = DelayMachine(sizes, device, dtype)
        kind = RepetitionAwareSampler if self.family.resamples_repeats else Sampler
        self.sampler: Sampler = kind(sizes, device, dtype)
        self.work = Work(sizes, device, dtype)
        self.work.eps.fill_(config.norm_eps)

    @property
    def logits(self) -> torch.Tensor:
        """Logits [B, K, V] fp32 of the last decoded position."""
        return self.work.logits

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for part in vars(self).values() if isinstance(part, Buffers) for tensor in part.tensors()]

    def sizes(self) -> list[int]:
        """Return the bytes of each buffer. Shared buffers are counted once."""
        storages = {storage_id(tensor): tensor.untyped_storage().nbytes() for tensor in self.tensors()}
        return list(storages.values())

    def park_row(self, row: int, length: int) -> None:
        """Keep steps out of the slots of a prompt that is not complete yet: they write to the slot after it."""
        self.cache.set_row(row, prompt_length=length)
        self.delay.set_row(row, num_generated=0, done=True)

    def move_row(self, row: int, to: int, filled: int) -> None:
        """Move a row's sequence, which has `filled` slots, to a row without one. It changes no code."""
        self.cache.move(row, to, min(filled, self.max_seq_len))
        for part in (self.delay, self.sampler, self.work):
            part.move_row(row, to)
        self.delay.set_row(row, done=True)

    def limit(self, sequence: Sequence) -> int:
        """Return the most outputs of a sequence in a row of its own."""
        return min(sequence.params.max_frames + self.config.codebooks - 1, self.max_seq_len - len(sequence))

    def start_row(self, row: int, sequence: Sequence, clear: bool = True) -> None:
        """Prepare a row for a sequence's first step. The prompt must be in the cache. clear: see KVCache.start."""
        self.cache.start(row, len(sequence), clear)
        self.delay.start(row, self.limit(sequence))
        self.sampler.start(row, sequence.params, sequence.index)
        self.start_window(row, sequence)

    def start_window(self, row: int, sequence: Sequence) -> None:
        """Prepare a row's window of repeats, if the family has one."""
        if isinstance(self.sampler, RepetitionAwareSampler):
            columns = [columns for _, columns in sequence.audio]
            none = torch.empty((0, self.config.codebooks), dtype=torch.int64)
            self.sampler.start_window(row, sequence.params, torch.cat([none, *columns]))

    def sample(self, *, on_host: bool = False) -> None:
        """Sample logits -> the step's output, counters, end flags, and the cache slots of the next position.

        Unless `on_host` (see `Sampler.sample`), no sync, no allocation, and masks instead of branches on data.
        """
        family, delay, sampler = self.family, self.delay, self.sampler
        delay.suppress(sampler.suppress_specials, sampler.suppressed, ends_early=family.ends_on_any_codebook)
        sampler.sample(self.logits, delay, on_host=on_host)
        if family.ends_on_any_codebook:
            delay.end_on_any_codebook()
        else:
            delay.end_on_codebook_0()
        if isinstance(sampler, RepetitionAwareSampler):
            sampler.remember(delay.output)
        self.cache.seek(delay.num_generated)
        delay.emit()
