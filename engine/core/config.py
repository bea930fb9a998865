"""Every setting, its default and its range."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeVar

from .codes import CODE_VOCAB
from .errors import HiggsError

VERSION = "0.2.0"  # of the pack; pyproject.toml says the same
SAMPLE_RATE = 24_000  # Hz, what the codec writes
FRAME_SAMPLES = 960  # samples a codec frame
FRAME_RATE = SAMPLE_RATE // FRAME_SAMPLES  # 25 frames a second
RAS_WINDOW = 7  # frames of history the state keeps for v2's repetition rule
MAX_BATCH = 64  # rows of a batch at most
QUANTIZED = ("int8", "int4")
DTYPES = ("auto", "bf16", "fp32", *QUANTIZED)
KERNELS = ("auto", "torch")
GRAPHS = {"auto": "auto", "on": "graph", "off": "eager"}  # a user's choice -> the executor behind it
RUNNERS = ("auto", "graph", "eager")
BOOK_FORMATS = ("flac", "wav", "mp3", "m4b")  # files of a book: one a chapter, of m4b one with all chapters
KEY_VARIABLE = "HIGGS_TTS_API_KEY"  # environment variable: the key of our server, and what clients send
BOOK_GAP = 0.6  # seconds of silence between a book's paragraphs
MAX_WRITTEN = 200_000  # characters of a text that a page has checked while it is written
MAX_SHEET = 1_000_000  # characters of a sheet of lines that a page has a seed written into
MAX_PAGE_BODY = 4 << 20  # bytes of a request of a page

# The most of what is typed, so that no text takes the machine's memory or its time.
MAX_PAUSE = 60.0  # seconds of one [pause]
MAX_PAUSE_SECONDS_IN_ALL = 600.0  # of a request; more in a long one, see check_pauses
MAX_NESTING = 8  # commands inside commands of a text
MAX_HINTS = 200  # places of a text that are marked while it is written
MAX_NAMES = 1000  # speakers that a script is searched for
MAX_PRONUNCIATIONS = 10_000  # entries of a list
MAX_PRONOUNCED = 100  # characters of a word in it, and of its spelling

# The most that is read of files, so that none takes the memory or the time of the machine.
MOST_JSON_BYTES = 32 << 20  # of a JSON file; the largest tokenizer.json of a Higgs checkpoint has 17 MB
MOST_HEADER_BYTES = 16 << 20  # of a safetensors file; a talker's has 0.1 MB
MOST_TENSORS = 16_384  # of a checkpoint or a LoRA; a talker with its codec has some 1,100
MOST_NAME = 200  # characters of a tensor's name
MOST_DIMENSIONS = 8
MOST_GGUF_BYTES = 64 << 20  # of all text in a GGUF header, which may hold a tokenizer.json
MOST_BOOK_CHARACTERS = 8 << 20  # all of Shakespeare has 5.6 million in 196,000 lines
MOST_BOOK_LINES = 200_000
MOST_BOOK_BYTES = 24 << 20  # of its file, or of an EPUB's files of text together
MOST_BOOK_TAGS = 1_000_000  # of those
MOST_TEXT_BYTES = 8 << 20  # of a script, a subtitle file, a list of pronunciations
MOST_CHANNELS = 16  # of a sound file
MOST_SOUND_RATE = 384_000  # Hz
MOST_FILM_SECONDS = 4 * 3600.0  # of a film's sound, and of the speech of its subtitles, which memory holds
MOST_VOICE_FRAMES = 1 << 15  # of a voice file: what the largest context holds
MOST_GGUF_ITEMS = 1 << 20  # settings, tensors, entries of arrays; a vocabulary has 0.3 million entries


_Number = TypeVar("_Number", int, float)


class Range(NamedTuple):
    """The values of a setting to offer a user; a widget goes up and down by `step`."""

    low: float
    high: float
    step: float | None = None


def range_of(settings: type, name: str) -> Range:
    """The range of a number in SamplingParams or EngineConfig, for widgets and the terminal."""
    return next(entry.metadata["offered"] for entry in fields(settings) if entry.name == name)


def _number(
    default: _Number, low: float, high: float, step: float | None = None, offered: tuple[float, float] | None = None
) -> _Number:
    """A field with a range. `offered` is narrower, where some legal values are of use to tests alone.

    Typed as what the field holds, as `dataclasses.field` is.
    """
    least, most = offered or (low, high)
    return field(default=default, metadata={"range": (low, high), "offered": Range(least, most, step)})


def _check_ranges(settings):
    for entry in fields(settings):
        if "range" in entry.metadata:
            _within(entry.name, getattr(settings, entry.name), *entry.metadata["range"])


def _one_of(name: str, value: str, allowed: tuple[str, ...]):
    if value not in allowed:
        raise HiggsError(f"{name} is '{value}'. Choose one of: {', '.join(allowed)}.")


def _within(name: str, value: float, low: float, high: float):
    if not low <= value <= high:
        raise HiggsError(f"{name} is {value}. It must be between {low} and {high}.")


@dataclass(frozen=True)
class Adapter:
    """A LoRA that is merged into the weights as they load."""

    path: str  # a .safetensors file, or the folder that PEFT saved
    strength: float = _number(1.0, -10.0, 10.0, step=0.05, offered=(-2.0, 2.0))

    def __post_init__(self) -> None:
        _check_ranges(self)

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """FILE or FILE:STRENGTH, as the terminal takes it."""
        path, _, strength = text.rpartition(":")
        try:
            number = float(strength)
        except ValueError:  # the colon of a drive
            return cls(text)
        return cls(path, number) if path else cls(text)


@dataclass(frozen=True)
class EngineConfig:
    """Settings that are fixed when the engine opens."""

    model: str  # folder of the checkpoint
    codec: str | None = None  # folder of the codec where the checkpoint holds none
    device: str = "auto"  # "auto", "cpu", "cuda:0", ...
    # "bf16", "fp32", or "int8" and "int4": so are the layers' matrices stored, and the rest is bf16 on a GPU, fp32 on a
    # CPU. "auto": bf16 on a GPU, int8 where its memory is too small for that, fp32 on a CPU.
    dtype: str = "auto"
    # Positions in the cache: prompt, reference and frames together.
    context: int = _number(4096, 64, 32768, step=256, offered=(512, 8192))
    batch: int = _number(0, 0, MAX_BATCH)  # sequences that decode together at most; 0: as many as fit
    runner: str = "auto"  # "graph", "eager", or "auto": graph on a GPU, eager elsewhere
    kernels: str = "auto"  # "auto": our CUDA kernels where they fit; "torch": torch's ops alone
    prefixes: int = _number(4, 0, 64)  # beginnings of prompts (voice, scene) whose keys and values are kept
    adapters: tuple[Adapter, ...] = ()  # merged in this order
    # GB of a GPU's memory that sequences which decode together may bring the engine to; 0: all that is free.
    memory: float = _number(0.0, 0.0, 1024.0, step=1.0)

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kernels", self.kernels, KERNELS)
        _one_of("runner", self.runner, RUNNERS)
        _check_ranges(self)

    @property
    def weights(self) -> str:
        """Format the layers' matrices are quantised to; empty if they are not."""
        return self.dtype if self.dtype in QUANTIZED else ""


DEFAULT_GRAPHS = next(choice for choice, executor in GRAPHS.items() if executor == EngineConfig.runner)


@dataclass(frozen=True)
class SamplingParams:
    """Settings that may change with each call."""

    seed: int = _number(0, 0, 2**64 - 1)
    # Steady: what SGLang-Omni and audio.cpp use for v3. Lively, as in Boson's first model card: 1.0, 0.95, 50.
    temperature: float = _number(0.8, 0.0, 2.0, step=0.05)  # 0 is greedy
    top_p: float = _number(0.8, 0.01, 1.0, step=0.01)  # 1 keeps all
    top_k: int = _number(30, 0, CODE_VOCAB)  # 0 keeps all
    max_frames: int = _number(2048, 1, 8192)  # 81.9 s; the limit for one chunk of text
    ban_specials: bool = True  # no stray begin/end codes inside speech
    ras_window: int = _number(RAS_WINDOW, 0, RAS_WINDOW)  # v2 only: frames searched for repeats; 0 disables it
    ras_repeats: int = _number(2, 1, RAS_WINDOW + 1)  # v2 only: repeats in the window that make a code be sampled again
    # Longer text is split at sentence ends into chunks about this long; 0 never splits.
    chunk_seconds: float = _number(30.0, 0.0, 120.0, step=5.0)
    retries: int = _number(2, 0, 8)  # how often a chunk that came out badly is spoken again; 0: nothing is judged
    paragraph_gap: float = _number(0.0, 0.0, 10.0, step=0.1)  # seconds of silence between paragraphs
    turn_gap: float = _number(0.25, 0.0, 10.0, step=0.05)  # and between the turns of a dialogue

    @property
    def greedy(self) -> bool:
        """True if the likeliest code is always taken: at 0, and where 1 / temperature would be no number."""
        return self.temperature < 1e-6

    def __post_init__(self) -> None:
        _check_ranges(self)


@dataclass(frozen=True)
class ServerConfig:
    """Which servers speak, and how they are asked."""

    addresses: str  # one a line, each with an environment variable of its own after it if need be
    model: str = ""  # as the servers call it; empty: the first that each has
    voice: str = ""  # of the servers, for who has no other; empty: the first chunk is the voice of the rest
    key_variable: str = KEY_VARIABLE
    calls: int = _number(16, 1, 256, offered=(1, 64))  # to one server at a time
    timeout: float = _number(600.0, 0.1, 86400.0, step=10.0, offered=(10.0, 3600.0))  # seconds that it may be silent

    def __post_init__(self) -> None:
        _check_ranges(self)


@dataclass(frozen=True)
class CueParams:
    """How the cues of a subtitle file are spoken at their times. The first three: what is done, in this order, to
    speech that does not fit its cue.
    """

    faster: bool = True  # it is spoken again with a speed tag, where the checkpoint has these
    stretch: float = _number(1.25, 1.0, 2.0, step=0.05)  # it is made so many times as fast at most; 1 leaves it
    shift: bool = True  # what comes next begins later; else that is spoken at its time, at once with this
    run_on: float = _number(0.5, 0.0, 10.0, step=0.1)  # seconds that it may go on past its cue where nothing follows
    lower_bed: float = _number(15.0, 0.0, 60.0, step=1.0)  # dB, of what sounds below the speech while somebody speaks

    def __post_init__(self) -> None:
        _check_ranges(self)


@dataclass(frozen=True)
class ClipParams:
    """Which part of a recording is a reference clip."""

    start: float = _number(0.0, 0.0, 36000.0, step=0.1)  # seconds
    length: float = _number(0.0, 0.0, 30.0, step=0.1)  # seconds; 0: all of it

    def __post_init__(self) -> None:
        _check_ranges(self)
