"""Mutated files, texts and requests for every reader of untrusted input, each in a child that may be killed.

    python tests/faults/mutate.py [--seed N] [--tried 600] [--surfaces epub,gguf] [--children 2] [--write]
    python tests/faults/mutate.py --seed N --only epub:17        the same input again, here, with its traceback

An input may end as a value, or as one sentence: a HiggsError of at most 1,000 characters on one line. Anything else
is a failure: a traceback, or the child's death; a hang, over 6 s of CPU time (more if a surface says so), or as long
without any; over_1_gib, if memory grew by more than that. `surfaces.py` lists the surfaces.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import multiprocessing
import os
import pathlib
import platform
import random
import resource
import tempfile
import time
import traceback
from multiprocessing.connection import Connection, wait

import pack  # noqa: F401  (imports the pack as higgs_tts)
from higgs_tts.benchmarks.common import GB, ROOT, commit
from higgs_tts.tests.faults.asked import LONGEST_TURN
from higgs_tts.tests.faults.surfaces import HiggsError, prepared

RESULT = ROOT / "benchmarks" / "results" / "hardening.json"
OUTCOMES = ("value", "sentence", "traceback", "hang", "over_1_gib")
LIMIT, LONGEST = 6.0, 180.0  # seconds without any work, and of wall time on a busy machine
GUARD = 3 * GB  # of address space, so that no input takes the machine's memory
RENEWED = 200  # inputs after which a child is replaced
SENTENCE = 1000  # characters
TOLD = 20  # failures printed per surface


def main():
    """Run the command; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--tried", type=int, default=600, help="inputs for each surface")
    parser.add_argument("--surfaces", help="some of them, with commas between")
    parser.add_argument("--children", type=int, default=2)
    parser.add_argument("--only", metavar="SURFACE:NUMBER", help="one input, in this process")
    parser.add_argument("--write", action="store_true", help=f"into {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        surfaces = prepared(pathlib.Path(folder))
        if given.only:
            name, _, number = given.only.rpartition(":")
            print(
                surfaces[name].run(surfaces[name].input(random_of(given.seed, name, int(number))), pathlib.Path(folder))
            )
            return
        names = given.surfaces.split(",") if given.surfaces else list(surfaces)
        rows = [of_surface(name, surfaces[name], given, pathlib.Path(folder)) for name in names]
    told = {"seed": given.seed, "commit": commit(), "date": str(datetime.date.today()), "rows": rows}
    if given.surfaces and RESULT.is_file():  # the others keep their rows, each with its own run
        before = json.loads(RESULT.read_text(encoding="utf-8"))
        run = {name: told[name] for name in ("seed", "commit", "date")} | {"python": platform.python_version()}
        others = [row for row in before["rows"] if row["surface"] not in names]
        told = before | {"rows": [*others, *({**row, "run": run} for row in rows)]}
    if given.write:
        RESULT.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(told))


def random_of(seed: int, name: str, number: int) -> random.Random:
    """Return an input's random generator."""
    return random.Random(f"{seed}:{name}:{number}")


def of_surface(name: str, surface, given: argparse.Namespace, folder: pathlib.Path) -> dict:
    """Return a surface's row, and print its failures."""
    row = {"surface": name, "tried": 0, **dict.fromkeys(OUTCOMES, 0)}
    began = time.monotonic()
    todo = iter(range(given.tried))
    pool = [Child(surface, given.seed, name, folder) for _ in range(given.children)]
    try:
        for child in pool:
            child.next(todo)
        while busy := [child for child in pool if child.number is not None]:
            wait([child.pipe for child in busy], 0.5)
            for child in busy:
                if (end := child.end()) is None:
                    continue
                outcome, said = end
                if outcome is None:
                    raise SystemExit(f"{name}: {said}")
                row["tried"] += 1
                row[outcome] += 1
                failures = sum(row[kind] for kind in OUTCOMES[2:])
                if outcome in OUTCOMES[2:] and failures <= TOLD:
                    print(f"{name}:{child.number}  {outcome}  {said}", flush=True)
                child.next(todo)
    finally:
        for child in pool:
            child.stop()
    turns = [float(path.read_text()) for path in folder.glob(f"child-*/{LONGEST_TURN}")]
    row |= {"longest_turn_ms": max(turns)} if turns else {}
    for path in folder.glob(f"child-*/{LONGEST_TURN}"):
        path.unlink()
    print(f"{time.monotonic() - began:6.0f} s  {row}", flush=True)
    return row


class Child:
    """A process for the inputs of a surface, and its current input. Replaced when it dies or hangs."""

    def __init__(self, surface, *what: object):
        self._surface, self._what, self._done = surface, what, 0
        self.number: int | None = None
        self._start()

    def _start(self):
        self.pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=serve, args=(theirs, self._surface, *self._what), daemon=True)
        self._process.start()
        theirs.close()
        self._done = 0

    def next(self, todo):
        """Begin the next input, if there is one."""
        self.number = next(todo, None)
        if self.number is None:
            return
        if self._done >= RENEWED:
            self.stop()
            self._start()
        self._done += 1
        self.pipe.send(self.number)
        self._began, self._used = time.monotonic(), work_of(self._process.pid)[0]
        self._looked = self._began, self._used

    def end(self) -> tuple[str | None, str] | None:
        """Return how the input ended, or None while it runs. An outcome of None: the surface cannot be tried."""
        if self.pipe.poll():
            with contextlib.suppress(EOFError, ConnectionResetError):
                return self.pipe.recv()
            self._process.join()
            return self._replaced("traceback", f"the process died with exit code {self._process.exitcode}")
        now, (used, runs) = time.monotonic(), work_of(self._process.pid)
        stands = now - self._looked[0] >= LIMIT and used == self._looked[1] and not runs  # waiting without work
        if now - self._looked[0] >= LIMIT:
            self._looked = now, used
        if stands or used - self._used >= self._surface.limit or now - self._began >= LONGEST:
            return self._replaced("hang", f"{used - self._used:.1f} s of its own in {now - self._began:.1f} s")
        return None

    def _replaced(self, outcome: str, said: str) -> tuple[str, str]:
        self.stop()
        self._start()
        return outcome, said

    def stop(self):
        """End the process."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


def work_of(pid: int | None) -> tuple[float, bool]:
    """Return (CPU seconds used by a process, True if it is runnable)."""
    with contextlib.suppress(OSError, IndexError):
        held = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(held[11]) + int(held[12])) / os.sysconf("SC_CLK_TCK"), held[0] == "R"
    return 0.0, True


def serve(pipe: Connection, surface, seed: int, name: str, folder: pathlib.Path):
    """Serve in the child: receive numbers of inputs, send (outcome, message)."""
    place = folder / f"child-{os.getpid()}"
    place.mkdir()
    with open(os.devnull, "w") as nowhere:  # decoders print messages about damaged sound
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    surface.warm(place)
    for sample in surface.samples:  # all samples must pass undamaged, or nothing is tested
        outcome, said = outcome_of(surface, sample, place)
        if outcome != "value":
            pipe.send((None, f"a sample that is fine ends as {outcome}: {said}"))
    size = status("VmSize") + GUARD
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    while True:
        try:
            number = pipe.recv()
        except EOFError:
            return
        data = surface.input(random_of(seed, name, number))
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        before = status("VmRSS")
        outcome, said = outcome_of(surface, data, place)
        grown = status("VmHWM") - before
        if grown > GB:
            outcome, said = "over_1_gib", f"grew by {grown / GB:.1f} GiB; {outcome}: {said}"
        pipe.send((outcome, said))


def outcome_of(surface, data: bytes, place: pathlib.Path) -> tuple[str, str]:
    """Return (outcome, message) of one input."""
    try:
        surface.run(data, place)
        return "value", ""
    except HiggsError as error:
        said, cause = str(error), error
        while cause := cause.__cause__ or cause.__context__:
            if is_out_of_memory(cause):
                return "over_1_gib", f"{type(cause).__name__} behind: {said[:200]}"
        if len(said) > SENTENCE or "\n" in said:
            return "traceback", f"a message of {len(said)} characters: {said[:200]!r}"
        return "sentence", said
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = f"{type(error).__name__}: {str(error)[:200]!r} at {where.filename}:{where.lineno}"
        return ("over_1_gib" if is_out_of_memory(error) else "traceback"), said


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error means that the guard's limit was exceeded."""
    ours = isinstance(error, MemoryError) and not type(error).__module__.startswith("av.")  # FFmpeg's own limit
    return ours or "can't allocate memory" in str(error)


def status(name: str) -> int:
    """Return a value in bytes from the kernel's status of this process."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise SystemExit(f"the kernel tells no {name}")


if __name__ == "__main__":
    main()
