"""Prefill: prompts into the cache, and the logits of their last positions. Samples nothing.

With CUDA kernels prompts go in captured fills, see fill.py. With torch's ops each goes alone, at its exact length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from ..core.closing import Closable
from ..core.sequence import Sequence
from ..cuda.kernel import choose
from ..device.graph import Graph, GraphError, capture, capturing, drop_graphs, same_bits
from ..device.memory import PrivatePool, workspace_bytes
from ..talker import Talker
from ..talker.config import ModelConfig
from .fill import Fill, Piece, full_fill, pack
from .kernels.prompt import MAX_POSITIONS, PromptKernel, Size, sizes_of
from .kernels.single import unfit
from .prefix_cache import MIN_PREFIX, PrefixCache
from .state import DecodeState

MAX_AT_ONCE = MAX_POSITIONS  # positions for which other rows wait at most, between two steps
GRAPH_BYTES = 2 << 20  # that the driver takes for a captured fill or step, about
StartRow = Callable[[int, Sequence], None]


class Prefill(Closable):
    """Prefill into rows of any state of a talker.

    kernel: None for torch's ops.
    reason: why there is no kernel if one was wanted.
    """

    def __init__(self, talker: Talker, kernel: PromptKernel | None = None, reason: str = ""):
        self._talker, self._kernel, self._reason = talker, kernel, reason
        self._graphs: dict[Size, Graph] = {}
        self.note = ""  # why a capture failed

    @staticmethod
    def planned_sizes(
        config: ModelConfig, device: torch.device, dtype: torch.dtype, kernels: str, runner: str
    ) -> list[int]:
        """Return the bytes of each tensor and capture on `device`. Allocates nothing."""
        if kernels == "torch" or unfit(config, device, dtype):
            return []
        scratch = PromptKernel.make_scratch(config, torch.device("meta"))
        graphs = [] if runner == "eager" else [workspace_bytes(device), *(GRAPH_BYTES for _ in sizes_of(config))]
        return [*(tensor.nbytes for tensor in scratch.values()), *graphs]

    def sizes(self) -> list[int]:
        """Return the bytes of each tensor and capture on the device."""
        scratch = [] if self._kernel is None else [tensor.nbytes for tensor in self._kernel.tensors()]
        graphs = [workspace_bytes(self._talker.device), *(GRAPH_BYTES for _ in self._graphs)] if self._graphs else []
        return scratch + graphs

    def describe(self) -> str:
        """Return why torch's ops prefill beside CUDA kernels that decode, or an empty string."""
        return f", torch ops for prompts ({self._reason})" if self._reason else ""

    def capture(self, state: DecodeState, stream: torch.cuda.Stream) -> None:
        """Capture a fill of every size, once, on a state without a live row. Reports a failure to `note`."""
        if self._kernel is None or self._graphs or self.note:
            return
        try:
            with capturing(stream), torch.cuda.stream(stream):
                for size in sizes_of(self._talker.config):
                    self._capture(self._kernel, size, state, stream)
        except GraphError as error:
            drop_graphs(self._graphs)
            self.note = f"CUDA graphs are off for prompts, so speech begins later: {error}."

    def _capture(self, kernel: PromptKernel, size: Size, state: DecodeState, stream: torch.cuda.Stream):
        """Capture a size, and prove it: an eager run and a replay must agree bit for bit."""
        written = state.logits[0], state.cache.keys[-1, 0], state.cache.values[-1, 0]

        def results(run: Callable[[], None]) -> list[torch.Tensor]:
            for tensor in written:  # the size before may have left more
                tensor.zero_()
            run()
            return [tensor.clone() for tensor in written]

        full_fill(self._talker.config, kernel.layout, size, state).upload(self._talker, kernel, state)
        eager = results(lambda: kernel.run(size))
        graph = self._graphs[size] = capture(lambda: kernel.run(size), stream)
        if not all(map(same_bits, eager, results(graph.replay))):
            raise GraphError(f"replayed prompts of {size.places} places differ from eager ones")
        state.logits[0].zero_()

    def begin(
        self,
        state: DecodeState,
        admitted: list[tuple[int, Sequence]],
        prefixes: PrefixCache | None = None,
        by_kernel: bool = True,
        start: StartRow | None = None,
    ) -> PendingFill:
        """Return the prefill of sequences into their rows, with nothing launched yet.

        Args:
            admitted: (row, sequence) pairs.
            by_kernel: use the CUDA kernel if there is one.
            start: called for each row in the end; by default `state.start_row`.
        """
        kernel = self._kernel if by_kernel else None
        return PendingFill(self, state, admitted, prefixes, kernel, start or state.start_row)

    def packed(self, pieces: list[Piece], kernel: PromptKernel | None) -> list[tuple[Size, list[Piece]]]:
        """Return launches that hold the pieces, in order."""
        if kernel is not None:
            return list(pack(self._talker.config, pieces, kernel.sharing))
        return [(Size(piece.stop - piece.start, 0), [piece]) for piece in pieces]

    def launch(self, state: DecodeState, size: Size, held: list[Piece], kernel: PromptKernel | None) -> None:
        """Run one of the launches of `packed`."""
        talker = self._talker
        if kernel is not None:
            Fill(talker.config, kernel.layout, size, held).upload(talker, kernel, state)
            if size in self._graphs:
                self._graphs[size].replay()
            else:
                kernel.run(size)
            return
        (piece,) = held
        sequence, row = piece.sequence, piece.row
        keys, values = state.cache.row(row)
        hidden = talker.fill(sequence.ids, sequence.audio, keys, values, piece.start, piece.stop)
        if piece.ends:
            state.logits[row].copy_(talker.logits(hidden[-1:]).view_as(state.logits[row]))

    def _release(self) -> None:
        drop_graphs(self._graphs)
        if self._kernel is not None:
            self._kernel.close()


class PendingFill:
    """Prompts under way: pieces left to launch, then the counters and sampling parameters of their rows.

    Prefixes that are not kept are launched first, one by one, then the rest of all prompts. A prefix is always computed
    by itself. The same shapes round the same way, so codes do not depend on what was kept.
    """

    def __init__(
        self,
        prompts: Prefill,
        state: DecodeState,
        admitted: list[tuple[int, Sequence]],
        prefixes: PrefixCache | None,
        kernel: PromptKernel | None,
        start: StartRow,
    ):
        self.admitted, self._start = admitted, start
        self._prompts, self._state, self._prefixes, self._kernel = prompts, state, prefixes, kernel
        self._groups: deque[list[Piece]] = deque()  # pieces that may share launches
        rest = []
        for row, sequence in admitted:
            prefix = sequence.prefix if sequence.prefix >= MIN_PREFIX else 0
            if prefix:
                self._groups.append([Piece(sequence, row, 0, prefix)])
            rest.append(Piece(sequence, row, prefix, len(sequence)))
        self._groups.append(rest)
        self._launches: deque[tuple[Size, list[Piece]]] = deque()  # of the latest group

    def advance(self) -> bool:
        """Launch up to MAX_AT_ONCE of the positions left. True if none is left; otherwise other rows may step."""
        room = MAX_AT_ONCE
        while self._find():
            size, held = self._launches[0]
            count = sum(piece.stop - piece.start for piece in held)
            if room < min(count, MAX_AT_ONCE):
                for row, sequence in self.admitted:
                    self._state.park_row(row, len(sequence))
                return False
            room -= count
            self._prompts.launch(self._state, size, held, self._kernel)
            self._launches.popleft()
            if self._prefixes is not None and held[0].stop == held[0].sequence.prefix >= MIN_PREFIX:
                self._prefixes.keep(held[0].sequence, *self._state.cache.row(held[0].row))
        for row, sequence in self.admitted:
            self._start(row, sequence)
        return True

    def complete(self) -> None:
        """Launch all that is left."""
        while not self.advance():
            pass

    def _find(self) -> bool:
        """Find the next launch. False if there is none left."""
        kept = self._prefixes
        while self._groups and not self._launches:
            (first, *_) = group = self._groups.popleft()
            is_last = not self._groups  # the prompts' rest
            if is_last or kept is None or not kept.load(first.sequence, *self._state.cache.row(first.row)):
                self._launches.extend(self._prompts.packed(group, self._kernel))
        return bool(self._launches)


def open_prefill(talker: Talker, kernels: str, pool: PrivatePool) -> Prefill:
    """Return the prefill of a talker: CUDA kernels if they can serve it, with scratch in `pool`.

    kernels: as in EngineConfig.
    """
    with pool.allocate():
        kernel, reason = choose(kernels, talker.device, lambda: PromptKernel(talker))
    if kernel is not None:
        pool.adopt(kernel.tensors())
        pool.hold_workspaces()  # before the captures, which have their addresses inside
    return Prefill(talker, kernel, reason)
