"""Scheduling of sequences over the members of a pool: pure decisions, without threads, sockets or a clock.

A driver calls `take` for each member, reports the outcome, and passes on the output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import torch

from ...core.errors import HiggsError
from ...core.sequence import Sequence, next_fair
from ...speech.decoder import Heard

FIRST_REST, LONGEST_REST = 0.5, 30.0  # seconds of back-off after a failure; doubles each time
_FAILURES = 3  # consecutive failures after which a member is lost
_BUSY_SECONDS = 180.0  # a member that stays busy this long without an answer is lost


@dataclass(eq=False)
class Part:
    """A sequence that a member decodes for a caller. skip: samples heard already, from another member."""

    original: Sequence
    skip: int
    wavs: list[torch.Tensor] = field(default_factory=list)  # held until complete, unless `listened`


@dataclass(eq=False)
class Member:
    """One decoder of a pool.

    label: its name, capitalised to begin a sentence. kind: equal for members that produce identical samples for the
    same sequence; empty if no other does.
    """

    label: str
    kind: str = ""
    parts: dict[Sequence, Part] = field(default_factory=dict)  # by the copy it decodes
    spoken: int = 0  # sequences completed
    error: BaseException | None = None  # set once it is lost
    returns: bool = False  # a lost member that another of its kind will replace
    rest_until: float = 0.0
    _rests: int = 0  # since the last answer
    _failures: int = 0  # rests for reasons other than being busy
    _busy_since: float | None = None

    def answered(self) -> None:
        """Reset the failure counts."""
        self._rests, self._failures, self._busy_since = 0, 0, None

    def failed(self, now: float, is_busy: bool, rest: float) -> bool:
        """Back off, for `rest` seconds if given. True if the member should be given up.

        Failures during a rest do not count again.
        """
        if now < self.rest_until:
            return False
        self._rests += 1
        usual = min(LONGEST_REST, FIRST_REST * 2 ** (self._rests - 1))
        if is_busy:
            self._busy_since = now if self._busy_since is None else self._busy_since
            self.rest_until = now + min(LONGEST_REST, rest or usual)
            return now - self._busy_since > _BUSY_SECONDS
        self._failures, self._busy_since = self._failures + 1, None
        self.rest_until = now + usual
        return self._failures >= _FAILURES


class Pool:
    """A queue of sequences and the members that decode copies of them.

    A lost member's sequences return to the queue. If part of one was heard already, another member of the same kind
    decodes it again and skips the samples that were heard. Without such a member, the heard audio is void. Later output
    of a lost member is ignored. seats: number of members that work at a time; the others are spares.
    """

    def __init__(self, members: Iterable[Member], seats: int | None = None):
        self.members = list(members)
        self._seats = len(self.members) if seats is None else seats
        self._started: list[Member] = []
        self.lost: list[Member] = []  # in order of loss
        self._waiting: deque[Sequence] = deque()
        self._missing: set[Sequence] = set()
        self._played: dict[
            Sequence, tuple[int, str]
        ] = {}  # of incomplete ones: samples heard, and the kind that made them

    @property
    def is_done(self) -> bool:
        return not self._missing

    @property
    def left(self) -> list[Member]:
        return [member for member in self.members if member.error is None]

    def start(self) -> list[Member]:
        """Return the members to start: one per seat if none is running, and spares that must continue heard audio."""
        running = [member for member in self._started if member.error is None]
        starting = [] if running else self.left[: self._seats]
        spares = [member for member in self.left if member not in running + starting]
        needed = {self._played[one][1] for one in self._waiting if one in self._played}
        for kind in needed - {member.kind for member in running + starting}:
            starting += [member for member in spares if member.kind == kind][:1]
        self._started = running + starting
        return starting

    def join(self, member: Member, replaced: Member | None = None) -> list[Heard]:
        """Add a member. replaced: the lost one whose place it takes; audio heard from it may be void now."""
        self.members.append(member)
        return [] if replaced is None else self.give_up(replaced)

    def submit(self, *sequences: Sequence) -> None:
        self._missing.update(sequences)
        self._waiting.extend(sequences)

    def drop(self, *sequences: Sequence) -> list[tuple[Member, Sequence]]:
        """Remove sequences. Returns the copies that members should drop."""
        copies = []
        for sequence in sequences:
            self._missing.discard(sequence)
            self._played.pop(sequence, None)
            if sequence in self._waiting:
                self._waiting.remove(sequence)
            for member in self.members:
                for copy in [copy for copy, part in member.parts.items() if part.original is sequence]:
                    del member.parts[copy]
                    copies.append((member, copy))
        return copies

    def take(self, member: Member, room: int, now: float = 0.0) -> list[Sequence]:
        """Return copies of up to `room` sequences for a member to decode; none while it rests."""
        copies = []
        if room > 0 and now >= member.rest_until and (own := self._open_to(member)):
            running = [part.original for one in self.members for part in one.parts.values()]
            while own and len(copies) < room:
                original = next_fair(own, running)
                own.remove(original)
                self._waiting.remove(original)
                running.append(original)
                copy = replace(original)
                if original.finished:
                    copy.fill(torch.cat(original.codes), original.ended)
                member.parts[copy] = Part(original, self._played.get(original, (0, ""))[0])
                copies.append(copy)
        return copies

    def has_work(self, member: Member) -> bool:
        """True if a sequence is queued that this member may decode."""
        return bool(self._open_to(member))

    def _open_to(self, member: Member) -> deque[Sequence]:
        if member.error is not None:
            return deque()
        return deque(one for one in self._waiting if self._played.get(one, (0, member.kind))[1] == member.kind)

    def hear(self, member: Member, output: Heard) -> list[Heard]:
        """Convert a member's output to output for the callers."""
        copy, part = output.sequence, member.parts.get(output.sequence)
        if part is None:  # dropped, or the member is lost
            return []
        original, wav = part.original, output.wav[part.skip :]
        part.skip -= len(output.wav) - len(wav)
        original.num_frames = copy.num_frames
        if not original.listened:
            part.wavs.append(wav)
            wav = torch.cat(part.wavs) if output.is_last else wav[:0]
        if output.is_last:
            del member.parts[copy]
            self._missing.discard(original)
            self._played.pop(original, None)
            member.answered()
            if copy.error is None:
                member.spoken += 1
                original.fill(torch.cat(copy.codes), copy.ended)
                original.verdict = copy.verdict
            else:
                original.error, original.finished = copy.error, True
        elif len(wav):
            self._played[original] = self._played.get(original, (0, ""))[0] + len(wav), member.kind
        return [Heard(original, wav, output.is_last, cleared=output.cleared)]

    def fail(
        self, member: Member, copy: Sequence, error: HiggsError, now: float, is_busy: bool = False, rest: float = 0.0
    ) -> list[Heard]:
        """Handle a member's failure to decode a sequence: it rests, or is lost."""
        if copy not in member.parts or member.error is not None:
            return []
        if member.failed(now, is_busy, rest):
            return self.lose(member, error)
        return self._give_back(member, [copy], str(error))

    def lose(self, member: Member, error: BaseException, returns: bool = False) -> list[Heard]:
        """Remove a member. returns: another of its kind will replace it."""
        if member.error is not None:
            return []
        member.error, member.returns = error, returns
        self.lost.append(member)
        return self._give_back(member, list(member.parts), str(error))

    def give_up(self, member: Member) -> list[Heard]:
        """Wait no longer for a replacement of the same kind as a lost member."""
        member.returns = False
        return self._give_back(member, [], str(member.error))

    def _give_back(self, member: Member, copies: list[Sequence], why: str) -> list[Heard]:
        """Return a member's sequences to the front of the queue, and void heard audio that no other can continue."""
        returned = [member.parts.pop(copy).original for copy in copies]
        self._waiting.extendleft(reversed(returned))
        for sequence in returned:
            if not sequence.finished:
                sequence.clear()
        kinds = {one.kind for one in self.members if one.kind and (one.error is None or one.returns)}
        void = [one for one in self._waiting if one in self._played and self._played[one][1] not in kinds]
        for sequence in void:
            del self._played[sequence]
        reasons = dict.fromkeys(returned, "") | dict.fromkeys(void, f"{member.label} {why}")
        return [Heard(one, torch.empty(0), void=reason, cleared=0) for one, reason in reasons.items()]
