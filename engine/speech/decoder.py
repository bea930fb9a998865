"""Interface between requests, which own text, and decoders, which turn sequences into codes and audio."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from ..core.errors import HiggsError
from ..core.sequence import Sequence
from ..voice.clip import Wave
from ..voice.voice import Voice

Answer = TypeVar("Answer")


class Stage(NamedTuple):
    """Session settings that determine codes and memory, fixed before the first step."""

    rows: int  # maximum batch size; 0 if all sequences come with codes
    slots: int = 0  # KV cache positions of the longest sequence
    alone: bool = False  # a single sequence may use the single-row runner
    own_voices: int = 0  # voices whose prefixes no later session uses; 0 to cache all
    shared: bool = False  # other devices decode part of the stage
    open: bool = False  # sequences of many listeners come at any time, and none should wait for a first use


class ReferenceClip(NamedTuple):
    """Reference audio [S] or [C, S] for a voice, with its transcript."""

    wav: Wave
    sample_rate: int
    transcript: str = ""


class Heard(NamedTuple):
    """Progress of one sequence, whose codes and counters are up to date."""

    sequence: Sequence
    wav: torch.Tensor  # new samples [n] float32 on the host; may be empty
    is_last: bool = False  # codes and audio are complete, or the sequence has an error
    void: str = ""  # why earlier audio is void; empty if it stands
    cleared: int | None = None  # samples of the sequence that a listener may hear; None: all

    @property
    def error(self) -> BaseException | None:
        """The error that ended this sequence; others continue."""
        return self.sequence.error


class SessionReport(NamedTuple):
    """Kernels, warnings and peak memory of a session."""

    how: str = ""  # kernels, graphs and devices, for users
    notes: tuple[str, ...] = ()  # for users, such as a failed capture or a lost device
    peak_bytes: int = 0  # GPU memory


class Session(Protocol):
    """Decodes the sequences of one stage, or of a server's callers while there are any.

    Call `step` while it `is_busy`. Not thread-safe, except for `wake`.
    """

    @property
    def report(self) -> SessionReport: ...

    def submit(self, *sequences: Sequence) -> None:
        """Add sequences. Finished ones only need their audio decoded."""
        ...

    def drop(self, *sequences: Sequence) -> None:
        """Remove sequences. They yield nothing more, and their rows are free at the next step."""
        ...

    def encode_voice(self, clip: ReferenceClip) -> Future[Voice]:
        """Encode a clip as a voice between two steps. Fails with the errors of `Engine.encode_voice`."""
        ...

    def ask(self, engine: Any, question: Callable[[Any], Answer]) -> Future[Answer]:
        """Put a question to the session's engine between two steps; of several devices, to the engine of one."""
        ...

    def wake(self) -> None:
        """Make `step` return soon. Thread-safe."""
        ...

    @property
    def is_busy(self) -> bool:
        """True until all submitted sequences are complete."""
        ...

    def step(self) -> list[Heard]:
        """Return new output after a step or a short wait; it may be empty.

        Raises HiggsError or torch.OutOfMemoryError if no sequence can continue.
        """
        ...


class Decoder(Protocol):
    """Turns sequences into codes and audio, one session at a time."""

    def session(self, stage: Stage) -> AbstractContextManager[Session]:
        """Return a context manager that holds a stage's memory and decodes it."""
        ...


def done_now(work: Callable[[], Answer]) -> Future[Answer]:
    """Return a future whose work is done now. See `run_into`."""
    future: Future[Answer] = Future()
    run_into(future, work)
    return future


def run_into(future: Future, work: Callable[[], object]) -> None:
    """Run a future's work now, unless it was cancelled, and store its result or error.

    Runtime, file and value errors are stored as HiggsError, such as that of a codec file that was moved. Others than
    these, HiggsError and out-of-memory errors are raised, too.
    """
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except (HiggsError, torch.cuda.OutOfMemoryError) as error:
        future.set_exception(error)
    except (RuntimeError, OSError, ValueError) as error:
        wrapped = HiggsError(f"{type(error).__name__}: {error}")
        wrapped.__cause__ = error
        future.set_exception(wrapped)
    except BaseException as error:
        future.set_exception(error)
        raise
