"""The hot path: one prompt into the cache, then one frame after another, the same code under every executor.

Nothing here depends on data in Python: no sync, no allocation in `decode_step`, masks instead of branches.
"""

import torch

from ..codes import BOC, EOC
from ..sequence import Sequence
from .prefix_cache import MIN_PREFIX, PrefixCache
from .sampling import remember, sample


def prefill(talker, state, row: int, sequence: Sequence, prefixes: PrefixCache | None = None):
    """Puts a sequence into a row of the state: cache, counters, sampling settings and the first logits."""
    keys, values = state.keys[:, row], state.values[:, row]
    start = _fill_prefix(talker, sequence, keys, values, prefixes)
    logits = talker.prefill(sequence.ids, sequence.audio, keys, values, start)
    state.logits[row].copy_(logits.view_as(state.logits[row]))
    state.start_row(row, sequence)


def _fill_prefix(talker, sequence: Sequence, keys, values, prefixes: PrefixCache | None) -> int:
    """Puts a prompt's prefix into the cache, kept or computed, and returns its length; 0 where it is too short.

    It is always computed by itself: the same shapes round the same way, so speech does not depend on what was kept.
    """
    if sequence.prefix < MIN_PREFIX:
        return 0
    if prefixes is None or not prefixes.load(sequence, keys, values):
        talker.fill(sequence.ids, sequence.audio, keys, values, 0, sequence.prefix)
        if prefixes is not None:
            prefixes.keep(sequence, keys, values)
    return sequence.prefix


def decode_step(talker, state):
    """One frame for every row: logits -> codes -> delay and end machine -> embedding -> talker -> next logits."""
    if state.front is not None:
        state.front.run()
    else:
        _bans(state)
        sample(state)
        _MACHINES[state.config.family](state)
        _emit(state)
        talker.embed_row(state)
    talker.decode(state)


def _bans(state):
    """state.banned [B, N]: where an end code may not be drawn. None may inside speech but on codebook 0.

    Once the ramp has begun they are the truth and allowed. v3 ignores an end before row N, so there it is banned too.
    """
    flags, books = state.flags, state.config.codebooks
    torch.lt(state.countdown, 0, out=flags["found"])
    flags["found"].logical_and_(state.ban)
    state.banned.copy_(flags["found"].unsqueeze(1))
    if not state.config.is_v2:
        torch.lt(state.written, books, out=flags["over"])
        flags["found"].logical_and_(flags["over"])
        state.banned[:, 0].copy_(flags["found"])
    else:
        state.banned[:, 0].fill_(False)


def _open_codebooks(state):
    """Codebooks that have not begun yet hold BOC: c > rows written."""
    torch.gt(state.book_index, state.written.unsqueeze(1), out=state.cells)
    state.row.masked_fill_(state.cells, BOC)


def _v3_machine(state):
    """v3's end: EOC on codebook 0 from row N on, then N - 2 rows more, in all frames + N - 1 (as SGLang counts)."""
    flags, number, books = state.flags, state.number, state.config.codebooks
    _open_codebooks(state)
    torch.ge(state.countdown, 0, out=flags["ramp"])
    torch.eq(state.row[:, 0], EOC, out=flags["found"])
    torch.ge(state.written, books, out=flags["over"])
    flags["found"].logical_and_(flags["over"])
    state.ramp_start.copy_(number[books - 2])
    _count_down(state)


def _v2_machine(state):
    """v2's end: the first codebook k with EOC ends the codebooks before it; the others follow one a row."""
    flags, number, books = state.flags, state.number, state.config.codebooks
    _open_codebooks(state)
    torch.ge(state.countdown, 0, out=flags["ramp"])
    torch.eq(state.row, EOC, out=state.is_eoc)
    torch.where(state.is_eoc, state.book_index, number[books], out=state.cell_numbers)
    torch.amin(state.cell_numbers, 1, out=state.first_eoc)
    torch.lt(state.first_eoc, books, out=flags["found"])
    torch.where(flags["found"], state.first_eoc, number[0], out=state.bound)
    torch.sub(number[books], state.countdown, out=state.ramp_start)
    torch.where(flags["ramp"], state.ramp_start, state.bound, out=state.bound)
    torch.lt(state.book_index, state.bound.unsqueeze(1), out=state.cells)
    state.row.masked_fill_(state.cells, EOC)
    torch.sub(number[books - 1], state.first_eoc, out=state.ramp_start)
    _count_down(state)
    remember(state)


_MACHINES = {"v3": _v3_machine, "v2": _v2_machine}


def _count_down(state):
    """Steps the ramp: begins at ramp_start where an end was found, and ends the row when it reaches 0."""
    flags, number = state.flags, state.number
    torch.sub(state.countdown, 1, out=state.steps)
    torch.where(flags["found"], state.ramp_start, number[-1], out=state.bound)
    torch.where(flags["ramp"], state.steps, state.bound, out=state.countdown)
    torch.eq(state.countdown, 0, out=flags["last"])


def _emit(state):
    """Writes the row out, marks rows that ended, and moves every live row on by one."""
    flags = state.flags
    torch.logical_not(state.done, out=flags["live"])
    torch.add(state.row_base, state.written, out=state.row_index)
    state.rows.view(-1, state.config.codebooks).index_copy_(0, state.row_index, state.row)
    torch.add(state.prompt_length, state.written, out=state.position)
    state.position.clamp_(max=state.context - 1)
    torch.add(state.slot_base, state.position.unsqueeze(1), out=state.slots)
    torch.gt(state.cache_index, state.position.view(-1, 1, 1), out=state.unfilled)
    state.written.add_(flags["live"])
    torch.ge(state.written, state.row_limit, out=flags["over"])
    flags["last"].logical_and_(flags["live"])
    state.ended.logical_or_(flags["last"])
    state.done.logical_or_(flags["last"]).logical_or_(flags["over"])
