"""Random scenarios of a pool on a virtual clock: members that fail in every way, and callers who go away.

The pool and its session are the engine's. Members are events of an agenda instead of threads, so a seed repeats a
scenario exactly, and an hour passes in a millisecond.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from higgs_tts.engine import HiggsError
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.engines.pool.pool import Member, Pool
from higgs_tts.engine.engines.pool.session import PoolSession
from higgs_tts.engine.speech.decoder import Heard, SessionReport

SAMPLES, PARTS, SEQUENCES = 2, 3, 32  # samples of a part, parts of the longest sequence, and sequences at most
MODEL = SAMPLES * PARTS * SEQUENCES
SOUND = torch.arange(float(64 * MODEL))  # its values tell which model spoke which sequence
CODES = torch.zeros(1, 8, dtype=torch.int64)
TIMEOUT, DELAY = 5.0, 1.0  # virtual seconds until a silent member is given up, and at most between two events
LONGEST = 240.0  # virtual seconds that a fault costs at most: three minutes of a busy server, and its rests
DIED = HiggsError("died.")


class Failed(AssertionError):
    """A scenario broke a rule of the pool."""


def check(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


@dataclass(eq=False)
class Caller:
    """Hears sequences, and checks that each sounds once, in order, and by one model."""

    number: int
    missing: dict[Sequence, list[float]] = field(default_factory=dict)  # samples heard of each
    begun: int = -1  # index of the last sequence that was begun in order

    def hear(self, heard: Heard) -> None:
        sequence, index, wav = heard.sequence, heard.sequence.index, heard.wav.tolist()
        if sequence not in self.missing:
            check(not wav, f"sequence {index} is heard after its end")
            return
        said = self.missing[sequence]
        if heard.void:
            check(bool(said), f"sequence {index} is void, but was not heard")
            said.clear()
        check(not wav or heard.is_last or sequence.listened, f"sequence {index} is heard before it is whole")
        said += wav
        if said and heard.error is None:
            first = said[0] // MODEL * MODEL + index * SAMPLES * PARTS
            check(said == [first + n for n in range(len(said))], f"sequence {index} sounds like {said}")
        if heard.is_last:
            del self.missing[sequence]
            whole = len(said) == sequence.expected * SAMPLES and sequence.num_frames == sequence.expected
            check(heard.error is not None or (whole and sequence.finished), f"sequence {index} ends too early: {said}")


@dataclass(eq=False)
class Voice:
    """A member that decodes by the agenda, and the number of the model whose samples it makes."""

    member: Member
    model: int
    rows: int
    works: bool = False
    busy_until: float = 0.0
    wakes_at: float = 0.0  # end of the rest that is on the agenda: once, or events would multiply
    calls: set[Sequence] = field(default_factory=set)


class VirtualSession(PoolSession):
    """A session whose members have no threads."""

    def __init__(self, scenario: Scenario, pool: Pool):
        super().__init__(pool)
        self.scenario, self.pool, self.tell, self.decide = scenario, pool, self._tell, self._decide

    @property
    def is_closed(self) -> bool:
        return self._closed

    @property
    def report(self) -> SessionReport:
        return SessionReport()

    def drop(self, *sequences: Sequence) -> None:
        self.pool.drop(*sequences)

    def encode_voice(self, clip):
        raise NotImplementedError

    def _start(self, members: list[Member]) -> None:
        self.scenario.start(members)

    def _end(self) -> BaseException | None:
        return self.scenario.end()


class Scenario:
    """The scenario of a seed. `run` raises Failed if it breaks a rule.

    seats: members join by and by, and others take the place of those that die, as on a Ray cluster. at_once: a member's
    thread decides what its failure means, as with servers, not the caller's.
    """

    def __init__(self, seed: int, log: Callable[[str], object] | None = None):
        self.rng = rng = random.Random(seed)
        self.log, self.now, self.is_begun, self.is_over, self.is_heard = log, 0.0, False, False, True
        self.agenda: list[tuple[float, int, str, Callable[..., object], tuple]] = []
        self.ties, self.names, self.indices = itertools.count(), itertools.count(1), itertools.count()
        self.faults = self.faults_given = rng.choice((0, 1, 2, 3, 5, 8))
        self.seats, self.kinds = rng.random() < 0.3, rng.choice(("", "A", "AB", "ABC"))
        self.at_once = self.seats or rng.random() < 0.5
        self.models: dict[str, int] = {}  # by kind
        self.voices = [self.voice(rng.choice(self.kinds or [""])) for _ in range(rng.randint(1, 4))]
        self.coming = len(self.voices) if self.seats else 0  # seats whose member is not there
        self.has_alone = not self.seats and rng.random() < 0.2  # once all are lost, one goes on with a single row
        members = [voice.member for voice in self.voices]
        self.pool = Pool([]) if self.seats else Pool(members, rng.randint(1, len(members)))
        self.session = VirtualSession(self, self.pool)
        self.callers = [Caller(number) for number in range(rng.randint(1, 3))]

    def voice(self, kind: str) -> Voice:
        name = f"Member {next(self.names)}"
        model = self.models.setdefault(kind or name, len(self.models))
        return Voice(Member(name, kind), model, self.rng.randint(1, 3))

    def later(
        self, what: str, act: Callable[..., object], *given: object, after: float | None = None, when: float = 0.0
    ) -> None:
        when = when or self.now + (self.rng.random() * DELAY if after is None else after)
        heapq.heappush(self.agenda, (when, next(self.ties), what, act, given))

    def run(self) -> None:
        rng = self.rng
        for caller in self.callers:
            for _ in range(rng.randint(1, 2)):
                self.later(f"caller {caller.number} asks", self.ask, caller, rng.randint(1, 5))
            if rng.random() < 0.3:
                self.later(f"caller {caller.number} leaves", self.leave, caller, after=rng.random() * 6)
        if rng.random() < 0.1:
            self.later("the session closes", self.session.close, after=rng.random() * 6)
        while self.agenda:
            self.now, _, what, act, given = heapq.heappop(self.agenda)
            if self.log:
                self.log(f"{self.now:8.3f}  {what}")
            act(*given)
            self.settle(act == self.hear)
        check(self.ends_early or not any(caller.missing for caller in self.callers), "nothing happens any more")
        most = SEQUENCES * PARTS * DELAY + (1 + self.faults_given) * LONGEST
        check(self.now < most, f"it took {self.now:.0f} s")

    @property
    def ends_early(self) -> bool:
        return self.is_over or self.session.is_closed

    # Callers

    def ask(self, caller: Caller, count: int) -> None:
        asked = []
        for index in itertools.islice(self.indices, count):
            if index >= SEQUENCES or self.ends_early:
                break
            kept = self.rng.random() < 0.1  # its codes were decoded earlier
            listened = not kept and self.rng.random() < 0.5
            parts = self.rng.randint(1, PARTS)
            asked.append(Sequence([0], index=index, expected=parts, caller=caller.number, listened=listened))
            if kept:
                asked[-1].fill(CODES.expand(parts, -1), True)
        caller.missing.update((sequence, []) for sequence in asked)
        if asked:
            self.session.submit(*asked)

    def leave(self, caller: Caller) -> None:
        """Cancel one sequence, or all."""
        gone = list(caller.missing)[: 1 if self.rng.random() < 0.5 else None]
        for sequence in gone:
            del caller.missing[sequence]
        self.session.drop(*gone)

    def hear(self) -> None:
        """Step the session once, as the caller's thread does."""
        self.is_heard = True
        if self.ends_early:  # closed since
            return
        self.session.wake()
        try:
            heard = self.session.step() if self.session.is_busy else []
        except HiggsError:
            self.is_over = True
            check(not (self.pool.left or self.pool.is_done), "the call ended, although it could go on")
            return
        for one in heard:
            caller = self.callers[one.sequence.caller]
            caller.hear(one)
            if one.is_last and self.rng.random() < 0.1:
                self.later(f"caller {caller.number} makes another attempt", self.ask, caller, 1, after=0.0)
        for caller in self.callers:
            for sequence, said in caller.missing.items():
                self.check_hope(sequence, said)

    # Members

    def start(self, members: list[Member]) -> None:
        """Start members, and the first time all seats."""
        for voice in self.voices:
            voice.works |= voice.member in members
        for voice in () if self.is_begun or not self.seats else self.voices:
            self.later(f"{voice.member.label} joins", self.join, voice)
        self.is_begun = True

    def join(self, voice: Voice, lost: Member | None = None) -> None:
        self.coming -= 1
        if self.ends_early:
            return
        voice.works = True
        self.voices += [] if voice in self.voices else [voice]
        self.session.decide(self.pool.join, voice.member, lost)

    def give_up(self, lost: Member) -> None:
        self.coming -= 1
        self.session.tell(self.pool.give_up, lost)

    def end(self) -> HiggsError | None:
        """Return the error once all members are lost."""
        if self.coming:
            return None
        if not self.has_alone:
            return HiggsError("No member is left.")
        self.has_alone = False
        self.voices.append(self.voice(self.voices[0].member.kind))
        self.pool.join(self.voices[-1].member)
        return None

    def settle(self, is_heard: bool) -> None:
        """Let members take what they may, and the caller hear soon, as after each event."""
        if not self.ends_early:
            for voice in self.rng.sample(self.voices, len(self.voices)):
                if voice.works and voice.member.error is None:
                    self.take(voice)
            if self.is_heard and not is_heard:
                self.is_heard = False
                self.later("the caller hears", self.hear, after=self.rng.choice((0.0, self.rng.random() * DELAY)))
        asked = [part.original for voice in self.voices for part in voice.member.parts.values()]
        check(len(asked) == len(set(asked)), "two members decode the same sequence")

    def check_hope(self, sequence: Sequence, said: list[float]) -> None:
        """Check that somebody decodes a sequence, or may."""
        may = [voice for voice in self.voices if not said or voice.model == said[0] // MODEL]
        hope = any((voice.works and voice.member.error is None) or voice.member.returns for voice in may)
        check(hope or (self.coming > 0 and not said), f"nobody may decode sequence {sequence.index} any more")

    def take(self, voice: Voice) -> None:
        """Take what fits. Callers with the fewest running sequences must come first."""
        member, room = voice.member, voice.rows - len(voice.calls)
        if room <= 0:
            return
        running = [part.original for one in self.voices for part in one.member.parts.values()]
        counts, waiting = Counter(sequence.caller for sequence in running), Counter[int]()
        for caller in self.callers:
            waiting[caller.number] = sum(not said for one, said in caller.missing.items() if one not in running)
        copies = self.pool.take(member, room, self.now)
        for copy in copies:
            fewest = [counts[number] for number, count in waiting.items() if count > 0]
            check(counts[copy.caller] <= min([*fewest, SEQUENCES]), f"caller {copy.caller} has more than its share")
            counts[copy.caller] += 1
            waiting[copy.caller] -= not self.callers[copy.caller].missing[member.parts[copy].original]
            self.play(voice, copy)
        if len(copies) < room and self.pool.has_work(member):
            check(self.now < member.rest_until, f"{member.label} is idle, although there is work")
            if voice.wakes_at != member.rest_until:
                voice.wakes_at = member.rest_until
                self.later(f"{member.label} has rested", int, when=member.rest_until)

    def play(self, voice: Voice, copy: Sequence) -> None:
        """Put what becomes of a call on the agenda."""
        rng, when, fate = self.rng, 0.0, "answers"
        voice.calls.add(copy)
        if voice.busy_until > self.now:
            fate = "is busy"
        elif self.faults and rng.random() < 0.5:
            self.faults -= 1
            fate = rng.choice(("breaks", "is busy", "dies", "hangs", "answers twice", "has an error"))
        if fate == "is busy" and voice.busy_until <= self.now:
            voice.busy_until = self.now + rng.choice((1.0, 20.0, 400.0))
        answers, parts = fate.startswith("answers"), copy.expected
        stop = parts if answers else rng.randrange(parts) if fate != "is busy" else 0
        name = f"{voice.member.label}, sequence {copy.index}:"
        for part in range(stop):
            when += rng.random() * DELAY
            self.later(f"{name} part {part}", self.say, voice, copy, part, answers and part == parts - 1, after=when)
        if fate == "hangs":
            for part in range(stop, parts):  # what it says too late
                late = when + TIMEOUT + rng.random() * DELAY
                self.later(f"{name} part {part}, late", self.say, voice, copy, part, part == parts - 1, after=late)
        self.later(f"{name} {fate}", self.finish, voice, copy, fate, after=when + TIMEOUT * (fate == "hangs"))

    def say(self, voice: Voice, copy: Sequence, part: int, is_last: bool) -> None:
        """Let a part be heard, as the member's thread does."""
        start = voice.model * MODEL + (copy.index * PARTS + part) * SAMPLES
        if not copy.finished:
            copy.codes.append(CODES)
            copy.num_frames += 1
            copy.finished = copy.ended = is_last
        self.session.tell(self.pool.hear, voice.member, Heard(copy, SOUND[start : start + SAMPLES], is_last))

    def finish(self, voice: Voice, copy: Sequence, fate: str) -> None:
        """End a call."""
        voice.calls.discard(copy)
        member, decide = voice.member, self.session.decide if self.at_once else self.session.tell
        if fate == "answers twice":
            self.session.tell(self.pool.hear, member, Heard(copy, SOUND[:SAMPLES], True))
        elif fate == "has an error":
            copy.error = DIED
            self.session.tell(self.pool.hear, member, Heard(copy, SOUND[:0], True))
        elif fate in ("breaks", "is busy"):
            rest = self.rng.choice((0.0, 0.0, 2.0, 60.0))
            decide(self.pool.fail, member, copy, DIED, self.now, fate == "is busy", rest)
        elif fate in ("dies", "hangs") and voice.works:
            voice.works = False
            decide(self.pool.lose, member, DIED, self.seats)
            if self.seats:
                self.replace(voice)

    def replace(self, voice: Voice) -> None:
        """Let another member take a seat: of the same model or of another one, or none."""
        self.coming += 1
        lost, kind = voice.member, self.rng.choice((voice.member.kind, voice.member.kind, *(self.kinds or [""]), None))
        if kind is None:
            self.later(f"nobody takes the seat of {lost.label}", self.give_up, lost)
        else:
            self.later(f"another takes the seat of {lost.label}", self.join, self.voice(kind), lost)
