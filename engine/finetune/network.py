"""The network in training: frozen weights, the adapter's numbers in fp32, and its steps, captured on a GPU."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F

from ..checkpoint.load import ON_HOST, Checkpoint, load_talker
from ..core.codes import EOC
from ..core.config import EngineConfig
from ..device.deterministic import deterministic
from ..device.graph import Graph, GraphError, MemoryId, capture, capturing, drop_graphs, same_bits
from ..device.memory import PrivatePool, send, to_device
from ..talker import build_talker
from ..talker.low_rank import LowRank
from ..talker.weight import Weight
from ..talker.whole import embed, logits, whole
from .adapter_writer import PEFT_PREFIX
from .rows import IGNORED, SIZES, TrainingRow, shape_of
from .trained import LARGE, trained_parts

log = logging.getLogger("higgs_tts")

_BETAS, _EPS, _DECAY, _CLIP = (0.9, 0.95), 1e-8, 0.01, 1.0  # of AdamW; the largest norm of a gradient
_PADDED = "tokens codes is_code targets".split()


class Losses(NamedTuple):
    """Mean cross entropy in nats of all codes, and of those that end a codebook alone."""

    codes: float
    ends: float


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of one size on the device. scale [1]: of each target's loss in the gradient."""

    tokens: torch.Tensor
    codes: torch.Tensor
    is_code: torch.Tensor
    targets: torch.Tensor
    scale: torch.Tensor


class Network:
    """A checkpoint's talker with a trainable adapter. `close` gives everything back.

    vocabulary: ids of the tokens that rows may have; only their embeddings are on the device. sharpness: factor on the
    checkpoint's logits, which training takes back. `note` says why steps are not captured, if they are not.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        device: torch.device,
        dtype: torch.dtype,
        vocabulary: Iterable[int],
        rank: int,
        alpha: float,
        sharpness: float = 1.0,
        codes_in_full: bool = False,
    ):
        self.device, self.note = device, ""
        self.pool = PrivatePool(device)
        self._graphs: dict[tuple[int, ...], Graph] = {}
        self._batches: dict[tuple[int, ...], Batch] = {}
        self.changes: dict[Weight, LowRank] = {}
        self._tables: dict[str, torch.Tensor] = {}  # trained in full
        self._update: Graph | None = None
        self._memory: MemoryId = None
        try:
            self.parts = trained_parts(checkpoint, codes_in_full)
            self._open(checkpoint, config, dtype, vocabulary, rank, alpha, sharpness)
        except BaseException:
            self.close()
            raise
        self._captures = self._may_capture(config)

    def _open(self, checkpoint, config, dtype, vocabulary, rank, alpha, sharpness):
        tensors: dict[str, torch.Tensor] = {}
        load_talker(checkpoint, self.device, dtype, config.weights, allocate=self.pool.allocate, into=tensors)
        self.pool.adopt(tensor for name, tensor in tensors.items() if name != ON_HOST)
        self._vocabulary = torch.tensor(sorted(set(vocabulary)))
        spans, total = self._spans(rank)
        with self.pool.allocate():
            self._text = to_device(tensors[ON_HOST][self._vocabulary].to(dtype), self.device)
            self._norm = tensors["norm"] / sharpness
            self.talker = build_talker(checkpoint.config, tensors, SIZES[-1])
            # The adapter's numbers, their gradient, and AdamW's two moments.
            self.numbers, self.grad, self.first, self.second = (
                torch.zeros(total, device=self.device) for _ in range(4)
            )
            self._report = torch.zeros(4, device=self.device)
            self._rates = torch.zeros(3, device=self.device)  # learning rate, and what is left of the moments' bias
        self.pool.adopt([self._text, self._norm, self.numbers, self.grad, self.first, self.second])
        self.pool.adopt([self._report, self._rates, self.talker.cos, self.talker.sin, self.talker.offsets])
        by_name = {id(tensors[part.name]): part for part in self.parts if not part.in_full}
        for weight in self._weights():
            part = by_name[id(weight.data)]
            a, *b = (self._leaf(*span) for span in spans[part.name])
            self.changes[weight] = LowRank(a, tuple(b), alpha / rank)
        self._tables = {part.name: self._leaf(*spans[part.name][0]) for part in self.parts if part.in_full}
        self._recompute = sum(tensor.nbytes for tensor in self.talker.tensors()) > LARGE

    def _weights(self) -> list[Weight]:
        weights: dict[Weight, None] = {}
        for layer in self.talker.layers:
            weights |= dict.fromkeys([layer.qkv, layer.out])
            for expert in (layer.text, layer.code):
                weights |= dict.fromkeys([expert.gate_up, expert.down])
        return list(weights)

    def _spans(self, rank: int) -> tuple[dict[str, list[tuple[int, tuple[int, int]]]], int]:
        """Return each part's (start, shape) of `a` and each `b` in the flat numbers, and how many they are."""
        spans, total = {}, 0
        for part in self.parts:
            spans[part.name] = []
            for shape in part.shapes(rank):
                spans[part.name].append((total, shape))
                total += math.prod(shape)
        self._shapes, self._rank = spans, rank
        return spans, total

    def _leaf(self, start: int, shape: tuple[int, int]) -> torch.Tensor:
        span = slice(start, start + math.prod(shape))
        leaf = self.numbers[span].view(shape).requires_grad_()
        leaf.grad = self.grad[span].view(shape)
        return leaf

    def start(self, seed: int) -> None:
        """Draw the numbers as PEFT does: `a` uniform by its width, `b` zero, so that the adapter changes nothing.

        What is trained in full begins with the checkpoint's.
        """
        generator = torch.Generator().manual_seed(seed)
        fresh = torch.zeros_like(self.numbers, device="cpu")
        for part in self.parts:
            start, (rows, width) = self._shapes[part.name][0]
            if part.in_full:
                fresh[start : start + rows * width] = self._untrained(part.name).flatten()
            else:
                fresh[start : start + rows * width].uniform_(-(width**-0.5), width**-0.5, generator=generator)
        self.restore(fresh, torch.zeros_like(fresh), torch.zeros_like(fresh))

    def _untrained(self, name: str) -> torch.Tensor:
        """Return the code embedding or the head of the checkpoint, in fp32 on the device."""
        table = self.talker.embed_codes if name == "embed_codes" else self.talker.head_codes.dense(torch.float32)
        return table.float()

    def restore(self, numbers: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
        """Set the adapter's numbers and the moments of AdamW."""
        with torch.no_grad():
            for held, given in ((self.numbers, numbers), (self.first, first), (self.second, second)):
                held.copy_(given)

    def adapter(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the tensors of the adapter with these numbers, under PEFT's names, on the host."""
        tensors = {}
        for part in self.parts:
            (start, (rows, width)), *spans = self._shapes[part.name]
            if part.in_full:
                module = part.parts[0][0]
                tensors[PEFT_PREFIX + module] = numbers[start : start + rows * width].view(rows, width).clone()
                continue
            a = numbers[start : start + rows * width].view(len(part.parts), self._rank, width)
            for (name, _), one, (at, shape) in zip(part.parts, a, spans, strict=True):
                module = PEFT_PREFIX + name.removesuffix(".weight")
                tensors[f"{module}.lora_A.weight"] = one.clone()
                tensors[f"{module}.lora_B.weight"] = numbers[at : at + math.prod(shape)].view(shape).clone()
        return tensors

    @staticmethod
    def targets(rows: Sequence[TrainingRow]) -> int:
        """Return the number of codes that rows teach."""
        return sum(int((row.targets != IGNORED).sum()) for row in rows)

    def learn(self, groups: Sequence[list[TrainingRow]], rate: float, step: int) -> Losses:
        """Take one step on rows, in groups of one size. step: from 1. Returns the losses before it.

        On a GPU, the first step with rows of a size captures it.
        """
        self._capture_new(groups)
        self.accumulate(groups)
        rates = [rate, *(1.0 / (1.0 - beta**step) for beta in _BETAS)]
        send(torch.tensor(rates), self._rates)
        self._step() if self._update is None else self._update.replay()
        return self._losses()

    def accumulate(self, groups: Sequence[list[TrainingRow]]) -> None:
        """Add to `grad` the gradient of the mean loss over all codes that these rows teach."""
        scale = 1.0 / self.targets([row for rows in groups for row in rows])
        for rows in groups:
            batch = self._filled(rows, scale)
            if batch.tokens.shape in self._graphs:
                self._graphs[batch.tokens.shape].replay()
            else:
                self._backward(batch)

    def losses(self, groups: Sequence[list[TrainingRow]], strength: float = 1.0) -> Losses:
        """Return the losses of rows with the adapter at a strength, without learning them."""
        changes, tables = self.changes, self._tables
        self.changes = {one: replace(change, factor=change.factor * strength) for one, change in changes.items()}
        with torch.no_grad():
            self._tables = {name: self._untrained(name).lerp(table, strength) for name, table in tables.items()}
        try:
            with torch.no_grad():
                for rows in groups:
                    self._loss(self._filled(rows, 0.0))
        finally:
            self.changes, self._tables = changes, tables
        return self._losses()

    def shifted(self, rows: list[TrainingRow], shifts: Sequence[int]) -> list[float]:
        """Return the cross entropy of rows of one size, with their codes moved by so many positions."""
        batch = self._filled(rows, 0.0)
        with torch.no_grad():
            scores = self._logits(batch)
        means = []
        for shift in shifts:
            moved = batch.targets.roll(shift, 1)
            moved[(moved < 0) | (moved >= EOC) | (batch.targets < 0)] = IGNORED
            means.append(float(F.cross_entropy(scores.flatten(0, 1), moved.flatten(), ignore_index=IGNORED)))
        return means

    def _losses(self) -> Losses:
        total, count, ends, end_count = self._report.tolist()
        self._report.zero_()
        return Losses(total / max(1.0, count), ends / max(1.0, end_count))

    def _filled(self, rows: list[TrainingRow], scale: float) -> Batch:
        """Put rows of one size into the batch of that size, padded with rows that teach nothing.

        A CPU captures nothing, so it pads rows to the longest only.
        """
        on_cpu, books = self.device.type == "cpu", rows[0].codes.shape[1]
        shape = (len(rows), max(len(row.tokens) for row in rows)) if on_cpu else shape_of(rows)
        fresh = {
            "tokens": torch.zeros(shape, dtype=torch.int64),
            "codes": torch.zeros(*shape, books, dtype=torch.int64),
            "is_code": torch.zeros(shape, dtype=torch.bool),
            "targets": torch.full((*shape, books), IGNORED),
        }
        for at, row in enumerate(rows):
            for name in _PADDED:
                fresh[name][at, : len(row.tokens)] = getattr(row, name)
        text = fresh["tokens"].masked_fill_(fresh["is_code"], int(self._vocabulary[0]))
        fresh["tokens"] = torch.searchsorted(self._vocabulary, text)
        if on_cpu:
            return Batch(**fresh, scale=torch.tensor([scale]))
        if shape not in self._batches:
            with self.pool.allocate():
                held = {name: torch.empty_like(tensor, device=self.device) for name, tensor in fresh.items()}
                batch = self._batches[shape] = Batch(**held, scale=torch.zeros(1, device=self.device))
            self.pool.adopt([*held.values(), batch.scale])
        batch = self._batches[shape]
        for name, tensor in fresh.items():
            send(tensor, getattr(batch, name))
        send(torch.tensor([scale]), batch.scale)
        return batch

    def _logits(self, batch: Batch, kept: torch.Tensor | None = None) -> torch.Tensor:
        x = embed(self.talker, self._text, batch.tokens, batch.codes, batch.is_code, self._tables.get("embed_codes"))
        hidden = whole(self.talker, x, batch.is_code, self.changes, self._recompute and torch.is_grad_enabled())
        hidden = hidden if kept is None else hidden[kept][None]
        return logits(self.talker, hidden, self._norm, self._tables.get("head_codes", self.talker.head_codes))

    def _loss(self, batch: Batch) -> torch.Tensor:
        """Return the sum of all targets' losses, and add to the report."""
        kept = (batch.targets != IGNORED).any(2) if self.device.type == "cpu" else None  # elsewhere shapes are fixed
        targets = (batch.targets if kept is None else batch.targets[kept]).flatten()
        each = F.cross_entropy(self._logits(batch, kept).flatten(0, 1), targets, ignore_index=IGNORED, reduction="none")
        with torch.no_grad():
            is_end = targets == EOC
            kinds = [each, targets != IGNORED, torch.where(is_end, each, 0.0), is_end]
            self._report += torch.stack([kind.float().sum() for kind in kinds])
        return each.sum()

    def _backward(self, batch: Batch) -> None:
        with deterministic(self.device), torch.enable_grad():
            (self._loss(batch) * batch.scale).sum().backward()

    @torch.no_grad()
    def _step(self) -> None:
        """Clip the gradient, and take a step of AdamW, in place. The gradient's room holds the change, then zeros."""
        grad, (rate, first_bias, second_bias) = self.grad, self._rates
        grad.mul_((_CLIP / (torch.linalg.vector_norm(grad) + 1e-6)).clamp_(max=1.0))
        self.first.lerp_(grad, 1.0 - _BETAS[0])
        self.second.mul_(_BETAS[1]).addcmul_(grad, grad, value=1.0 - _BETAS[1])
        torch.mul(self.second, second_bias, out=grad).sqrt_().add_(_EPS)
        torch.div(self.first, grad, out=grad).mul_(rate * first_bias)
        self.numbers.mul_(1.0 - rate * _DECAY).sub_(grad)
        grad.zero_()

    def _may_capture(self, config: EngineConfig) -> bool:
        if self.device.type != "cuda" or config.runner == "eager":
            return False
        if not self.pool.is_private:
            self.note = (
                "Training runs without CUDA graphs and is several times slower, since this allocator has no private "
                "memory pools. Start ComfyUI with --disable-cuda-malloc for the full speed."
            )
        return self.pool.is_private

    def _capture_new(self, groups: Sequence[list[TrainingRow]]) -> None:
        """Capture the sizes that come for the first time. The gradient is zero before and afterwards."""
        if not self._captures or all(shape_of(rows) in self._graphs for rows in groups):
            return
        try:
            for rows in groups:
                if shape_of(rows) not in self._graphs:
                    self._capture(self._filled(rows, 1.0 / self.targets(rows)))
        except GraphError as error:
            self._drop_graphs()
            self._captures = False
            self.note = f"CUDA graphs are off for training, so it is slower: {error}."
            log.info("Higgs TTS: %s", self.note)
        self.grad.zero_()
        self._report.zero_()

    def _capture(self, batch: Batch) -> None:
        """Capture a size's pass, and prove it: an eager gradient and a replayed one must agree bit for bit."""
        shape = tuple(batch.tokens.shape)
        self.pool.hold_workspaces()
        stream = self.pool.capture_stream()
        with capturing(stream), torch.cuda.stream(stream), deterministic(self.device):
            self.grad.zero_()
            self._backward(batch)
            eager = self.grad.clone()
            torch.cuda.empty_cache()  # what eager passes took would be there twice
            graph = capture(lambda: self._backward(batch), stream, self._memory)
            self._memory, self._graphs[shape] = graph.pool(), graph
            self.grad.zero_()
            graph.replay()
            if not same_bits(self.grad, eager):
                raise GraphError(f"a replayed step of {shape[0]} x {shape[1]} positions differs from an eager one")
            if self._update is None:
                self._capture_update(stream)

    def _capture_update(self, stream: torch.cuda.Stream) -> None:
        """Capture AdamW's step. Libraries load its kernels in an eager one first, which changes nothing."""
        moments = self.first.clone(), self.second.clone()
        self.grad.zero_()
        self._rates.zero_()
        self._step()
        self.first.copy_(moments[0])
        self.second.copy_(moments[1])
        self._update = capture(self._step, stream, self._memory)

    def _drop_graphs(self) -> None:
        drop_graphs(self._graphs)
        if self._update is not None:
            self._update.reset()
        self._update = self._memory = None

    def close(self) -> None:
        """Give everything back to the device. Safe to call twice."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._drop_graphs()
        self._batches.clear()
        self.changes.clear()
        self._tables.clear()
        self.pool.close()

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
