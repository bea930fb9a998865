"""Delay pattern during decoding: codebooks begin and end one after another.

A step's output is one column of K codes; its code of codebook c belongs to the frame c steps ago. Codebooks that have
not begun hold BOC, and codebooks that have ended hold EOC. The closing ramp counts down the steps until the last
codebook has ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.codes import BOC, EOC
from ..device.buffers import Buffers, buffer


@dataclass(eq=False)
class DelayMachine(Buffers):
    """Outputs, counters and end flags of B rows. A row that is done keeps stepping, but its steps do not count."""

    output: torch.Tensor = buffer("B", "K", fill=BOC, lasts=True)  # of the last step; embedded next
    outputs: torch.Tensor = buffer("B", "N", "K", lasts=True)  # of every step; the last of N = S + 1 slots is a dummy
    output_base: torch.Tensor = buffer("B")  # flat index of a row's first output
    output_index: torch.Tensor = buffer("B")
    num_generated: torch.Tensor = buffer("B", lasts=True)  # outputs so far
    max_generated: torch.Tensor = buffer("B", lasts=True)  # from the frame limit or the context
    countdown: torch.Tensor = buffer("B", fill=-1, lasts=True)  # steps left in the closing ramp; -1 before it
    done: torch.Tensor = buffer("B", dtype=torch.bool, fill=1, lasts=True)
    ended: torch.Tensor = buffer("B", dtype=torch.bool, lasts=True)  # done because speech ended, not because of a limit
    # Scratch
    codebook: torch.Tensor = buffer("K")  # 0..K-1
    live: torch.Tensor = buffer("B", dtype=torch.bool)
    in_ramp: torch.Tensor = buffer("B", dtype=torch.bool)
    found_end: torch.Tensor = buffer("B", dtype=torch.bool)
    suppresses: torch.Tensor = buffer("B", dtype=torch.bool)
    too_early: torch.Tensor = buffer("B", dtype=torch.bool)  # EOC suppressed before the first whole frame
    has_frame: torch.Tensor = buffer("B", dtype=torch.bool)
    is_last: torch.Tensor = buffer("B", dtype=torch.bool)
    at_limit: torch.Tensor = buffer("B", dtype=torch.bool)
    is_outside: torch.Tensor = buffer("B", "K", dtype=torch.bool)  # codebooks that have not begun or have ended
    is_eoc: torch.Tensor = buffer("B", "K", dtype=torch.bool)
    eoc_codebook: torch.Tensor = buffer("B", "K")  # index of each codebook with EOC, K for the others
    first_eoc: torch.Tensor = buffer("B")  # first codebook with EOC, or K
    num_ended: torch.Tensor = buffer("B")  # codebooks that have ended
    num_ended_by_ramp: torch.Tensor = buffer("B")
    ramp_length: torch.Tensor = buffer("B")  # of a ramp that begins now
    begun: torch.Tensor = buffer("B")  # new countdown of rows outside the ramp
    counted_down: torch.Tensor = buffer("B")  # new countdown of rows in the ramp
    # Operands of where(), which takes only tensors
    minus_one: torch.Tensor = buffer(fill=-1)
    zero: torch.Tensor = buffer()
    all_codebooks: torch.Tensor = buffer()  # K
    last_codebook: torch.Tensor = buffer()  # K - 1

    def initialize(self) -> None:
        self.output_base.copy_(self.count("B") * self.sizes["N"])
        self.codebook.copy_(self.count("K"))
        self.all_codebooks.fill_(self.sizes["K"])
        self.last_codebook.fill_(self.sizes["K"] - 1)

    def start(self, row: int, max_generated: int) -> None:
        """Prepare a row for its first step."""
        self.set_row(row, num_generated=0, max_generated=max_generated, countdown=-1, output=BOC)
        self.set_row(row, done=max_generated <= 0, ended=False)

    def suppress(self, specials: torch.Tensor, suppressed: torch.Tensor, ends_early: bool) -> None:
        """Set suppressed [B, K] bool: codebooks on which EOC is banned, in rows that ban specials (`specials` [B]).

        During speech, EOC is allowed only on codebook 0. In the closing ramp it is allowed on all codebooks.
        ends_early: allow EOC on codebook 0 before the first whole frame.
        """
        torch.lt(self.countdown, 0, out=self.suppresses)
        self.suppresses.logical_and_(specials)
        suppressed.copy_(self.suppresses.unsqueeze(1))
        if ends_early:
            suppressed[:, 0].fill_(False)
        else:
            torch.lt(self.num_generated, self.sizes["K"], out=self.too_early)
            self.too_early.logical_and_(self.suppresses)
            suppressed[:, 0].copy_(self.too_early)

    def _open(self):
        torch.gt(self.codebook, self.num_generated.unsqueeze(1), out=self.is_outside)
        self.output.masked_fill_(self.is_outside, BOC)
        torch.ge(self.countdown, 0, out=self.in_ramp)

    def end_on_codebook_0(self) -> None:
        """Apply v3's end rule: EOC on codebook 0 after a whole frame, then K - 2 more steps (as SGLang counts)."""
        self._open()
        torch.eq(self.output[:, 0], EOC, out=self.found_end)
        torch.ge(self.num_generated, self.sizes["K"], out=self.has_frame)
        self.found_end.logical_and_(self.has_frame)
        self.ramp_length.fill_(self.sizes["K"] - 2)
        self._count_down()

    def end_on_any_codebook(self) -> None:
        """Apply v2's end rule: the first codebook with EOC ends those before it; the others follow, one per step."""
        self._open()
        torch.eq(self.output, EOC, out=self.is_eoc)
        torch.where(self.is_eoc, self.codebook, self.all_codebooks, out=self.eoc_codebook)
        torch.amin(self.eoc_codebook, 1, out=self.first_eoc)
        torch.lt(self.first_eoc, self.sizes["K"], out=self.found_end)
        torch.where(self.found_end, self.first_eoc, self.zero, out=self.num_ended)
        torch.sub(self.all_codebooks, self.countdown, out=self.num_ended_by_ramp)
        torch.where(self.in_ramp, self.num_ended_by_ramp, self.num_ended, out=self.num_ended)
        torch.lt(self.codebook, self.num_ended.unsqueeze(1), out=self.is_outside)
        self.output.masked_fill_(self.is_outside, EOC)
        torch.sub(self.last_codebook, self.first_eoc, out=self.ramp_length)
        self._count_down()

    def _count_down(self):
        """Count down the closing ramp, or start it at ramp_length in rows with an end. A row ends at 0."""
        torch.sub(self.countdown, 1, out=self.counted_down)
        torch.where(self.found_end, self.ramp_length, self.minus_one, out=self.begun)
        torch.where(self.in_ramp, self.counted_down, self.begun, out=self.countdown)
        torch.eq(self.countdown, 0, out=self.is_last)

    def emit(self) -> None:
        """Store the output, count it for live rows, and mark rows that are done."""
        torch.add(self.output_base, self.num_generated, out=self.output_index)
        self.outputs.view(-1, self.sizes["K"]).index_copy_(0, self.output_index, self.output)
        torch.logical_not(self.done, out=self.live)
        self.num_generated.add_(self.live)
        torch.ge(self.num_generated, self.max_generated, out=self.at_limit)
        self.is_last.logical_and_(self.live)
        self.ended.logical_or_(self.is_last)
        self.done.logical_or_(self.is_last).logical_or_(self.at_limit)
