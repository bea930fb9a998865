"""Every setting with its default and range."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple, TypeVar

from .codes import CODE_VOCAB
from .errors import HiggsError

VERSION = "0.2.0"  # of the pack; pyproject.toml says the same
SAMPLE_RATE = 24_000  # Hz, what the codec writes
FRAME_SAMPLES = 960  # samples per codec frame
FRAME_RATE = SAMPLE_RATE // FRAME_SAMPLES  # 25 frames a second
RAS_WINDOW = 7  # frames of history kept for v2's repetition-aware sampling
MAX_BATCH = 128
QUANTIZED = ("int8", "int4")
DTYPES = ("auto", "bf16", "fp32", *QUANTIZED)
KERNELS = ("auto", "torch")
GRAPHS = {"auto": "auto", "on": "graph", "off": "eager"}  # user's choice -> runner
RUNNERS = ("auto", "graph", "eager")
LORA_NAMES = ("model", "port")
BOOK_FORMATS = ("flac", "wav", "mp3", "m4b")  # one file per chapter; m4b is one file with all chapters
KEY_VARIABLE = "HIGGS_TTS_API_KEY"  # environment variable with the API key, for our server and for clients
BOOK_GAP = 0.6  # seconds of silence between a book's paragraphs
MAX_WRITTEN = 200_000  # characters of text that the page checks as it is typed
MAX_SHEET = 1_000_000  # characters of a sheet of lines that the page can write a seed into
MAX_PAGE_BODY = 4 << 20  # bytes of a request from the page

# Limits on typed text, so that no text exhausts memory or time.
MAX_PAUSE = 60.0  # seconds of one [pause]
MAX_PAUSE_SECONDS_IN_ALL = 600.0  # per request; a long one may have more, see check_pauses
MAX_NESTING = 8  # depth of nested commands
MAX_HINTS = 200  # hints marked in a text as it is typed
MAX_NAMES = 1000  # speaker names looked for in a script
MAX_PRONUNCIATIONS = 10_000  # entries in a list
MAX_PRONOUNCED = 100  # characters of an entry's word, and of its spelling

# Limits on files, so that no file exhausts memory or time.
MOST_JSON_BYTES = 32 << 20  # the largest tokenizer.json of a Higgs checkpoint has 17 MB
MOST_HEADER_BYTES = 16 << 20  # safetensors header; a talker's has 0.1 MB
MOST_TENSORS = 16_384  # in a checkpoint or a LoRA; a talker with its codec has about 1,100
MOST_NAME = 200  # characters of a tensor's name
MOST_DIMENSIONS = 8
MOST_GGUF_BYTES = 64 << 20  # all text in a GGUF header, which may hold a tokenizer.json
MOST_BOOK_CHARACTERS = 8 << 20  # all of Shakespeare has 5.6 million in 196,000 lines
MOST_BOOK_LINES = 200_000
MOST_BOOK_BYTES = 24 << 20  # a text file, or all text files of an EPUB together
MOST_BOOK_TAGS = 1_000_000  # in those files
MOST_TEXT_BYTES = 8 << 20  # a script, a subtitle file or a list of pronunciations
MOST_CHANNELS = 16  # in a sound file
MOST_CLIPS = 8  # that make one voice
MOST_SOUND_RATE = 384_000  # Hz
MOST_FILM_SECONDS = 4 * 3600.0  # a film's sound, and the speech of its subtitles; both are held in memory
MOST_VOICE_FRAMES = 1 << 15  # in a voice file; fills the largest context
MOST_GGUF_ITEMS = 1 << 20  # settings, tensors and array entries; a vocabulary has 0.3 million entries


_Number = TypeVar("_Number", int, float)


class Range(NamedTuple):
    """Range of a setting offered to users. A widget moves by `step`."""

    low: float
    high: float
    step: float | None = None


def range_of(settings: type, name: str) -> Range:
    """Return the offered range of a numeric setting, for widgets and the terminal."""
    return next(entry.metadata["offered"] for entry in fields(settings) if entry.name == name)


def _number(
    default: _Number, low: float, high: float, step: float | None = None, offered: tuple[float, float] | None = None
) -> _Number:
    """Return a dataclass field with a range. `offered` is narrower if only tests need the rest of the range.

    Typed as the field's value, like `dataclasses.field`.
    """
    least, most = offered or (low, high)
    return field(default=default, metadata={"range": (low, high), "offered": Range(least, most, step)})


def _one_of(name: str, value: str, allowed: tuple[str, ...]):
    if value not in allowed:
        raise HiggsError(f"{name} is '{value}'. Choose one of: {', '.join(allowed)}.")


@dataclass(frozen=True)
class _Ranged:
    """Base class of settings. Raises HiggsError if a number is out of its range."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            if "range" in entry.metadata:
                value, (low, high) = getattr(self, entry.name), entry.metadata["range"]
                if not low <= value <= high:
                    raise HiggsError(f"{entry.name} is {value}. It must be between {low} and {high}.")


@dataclass(frozen=True)
class Adapter(_Ranged):
    """LoRA merged into the weights at load time."""

    path: str  # a .safetensors file or a folder saved by PEFT
    strength: float = _number(1.0, -10.0, 10.0, step=0.05, offered=(-2.0, 2.0))
    partial: bool = False  # load it without the tensors that have no place in the model

    @classmethod
    def parse(cls, text: str) -> Adapter:
        """Parse FILE or FILE:STRENGTH, as given on the terminal."""
        path, _, strength = text.rpartition(":")
        try:
            number = float(strength)
        except ValueError:  # the colon of a drive letter
            return cls(text)
        return cls(path, number) if path else cls(text)


@dataclass(frozen=True)
class EngineConfig(_Ranged):
    """Settings fixed when the engine opens."""

    model: str  # folder of the checkpoint
    codec: str | None = None  # folder of the codec if the checkpoint has none
    device: str = "auto"  # "auto", "cpu", "cuda:0", ...
    # "bf16" or "fp32"; "int8" and "int4" quantise the layers' matrices, and the rest is bf16 on a GPU and fp32 on a
    # CPU. "auto": bf16 on a GPU, int8 if bf16 does not fit its memory, fp32 on a CPU.
    dtype: str = "auto"
    # Positions in the KV cache: prompt, reference and frames together.
    context: int = _number(4096, 64, 32768, step=256, offered=(512, 8192))
    batch: int = _number(0, 0, MAX_BATCH)  # maximum batch size; 0: as many as fit
    runner: str = "auto"  # "graph", "eager", or "auto": graph on a GPU, eager elsewhere
    kernels: str = "auto"  # "auto": our CUDA kernels if supported; "torch": torch ops only
    adapters: tuple[Adapter, ...] = ()  # merged in this order
    whisper: str | None = None  # folder of a Whisper in transformers' format, for word times where no head aligns
    early: bool = False  # a listener gets the first sound five frames sooner; 120 ms are not exact then
    # GB of GPU memory that the engine may grow to as it batches sequences; 0: all free memory.
    memory: float = _number(0.0, 0.0, 1024.0, step=1.0)

    def __post_init__(self) -> None:
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kernels", self.kernels, KERNELS)
        _one_of("runner", self.runner, RUNNERS)
        super().__post_init__()

    @property
    def weights(self) -> str:
        """Quantised format of the layers' matrices, or empty if they are not quantised."""
        return self.dtype if self.dtype in QUANTIZED else ""


DEFAULT_GRAPHS = next(choice for choice, runner in GRAPHS.items() if runner == EngineConfig.runner)


@dataclass(frozen=True)
class SamplingParams(_Ranged):
    """Settings that may differ per call."""

    seed: int = _number(0, 0, 2**64 - 1)
    # SGLang-Omni and audio.cpp use these for v3 (steady). Boson's first model card: 1.0, 0.95, 50 (lively).
    temperature: float = _number(0.8, 0.0, 2.0, step=0.05)  # 0 is greedy
    top_p: float = _number(0.8, 0.01, 1.0, step=0.01)  # 1 keeps all
    top_k: int = _number(30, 0, CODE_VOCAB)  # 0 keeps all
    max_frames: int = _number(2048, 1, 8192)  # per chunk of text; 2048 frames are 81.9 s
    ban_specials: bool = True  # bans stray BOC and EOC inside speech
    ras_window: int = _number(RAS_WINDOW, 0, RAS_WINDOW)  # v2 only: frames searched for repeats; 0 disables it
    ras_repeats: int = _number(2, 1, RAS_WINDOW + 1)  # v2 only: repeats in the window that trigger resampling
    # Longer text is split at sentence ends into chunks of about this length; 0 never splits.
    chunk_seconds: float = _number(30.0, 0.0, 120.0, step=5.0)
    retries: int = _number(2, 0, 8)  # maximum retries of a bad chunk or sentence; 0: the first attempt is kept
    check: bool = field(default=True, repr=False)  # check each word where the talker's attention follows them
    paragraph_gap: float = _number(0.0, 0.0, 10.0, step=0.1)  # seconds of silence between paragraphs
    turn_gap: float = _number(0.25, 0.0, 10.0, step=0.05)  # seconds of silence between turns of a dialogue

    @property
    def greedy(self) -> bool:
        """True if sampling is greedy: temperature 0, or so small that 1 / temperature overflows."""
        return self.temperature < 1e-6


@dataclass(frozen=True)
class ServerConfig(_Ranged):
    """Settings for speech by remote servers."""

    addresses: str  # one per line, optionally followed by the name of its key's environment variable
    model: str = ""  # leave empty for each server's first model
    voice: str = ""  # server voice for text without a voice; empty: the first chunk sets the voice
    key_variable: str = KEY_VARIABLE
    calls: int = _number(16, 1, 256, offered=(1, 64))  # concurrent calls per server
    timeout: float = _number(600.0, 0.1, 86400.0, step=10.0, offered=(10.0, 3600.0))  # seconds without data


@dataclass(frozen=True)
class CallLimits(_Ranged):
    """Limits of our own server."""

    max_characters: int = _number(20_000, 1, 10_000_000)  # per text
    max_calls: int = _number(256, 1, 65_536)  # at once, including waiting ones
    max_items: int = _number(32, 1, 1000)  # texts per batch, each counted as a call
    max_seconds: float = _number(0.0, 0.0, 86_400.0)  # from a call's arrival until all of it is spoken; 0: no limit


@dataclass(frozen=True)
class CueParams(_Ranged):
    """Settings for timing speech to subtitle cues. The first three are tried in order if speech overruns its cue."""

    faster: bool = True  # speak again with a speed tag, if the checkpoint has speed tags
    stretch: float = _number(1.25, 1.0, 2.0, step=0.05)  # maximum speed-up; 1 disables
    shift: bool = True  # start the next cue later; otherwise both sound at once
    run_on: float = _number(0.5, 0.0, 10.0, step=0.1)  # seconds of overrun allowed if nothing follows the cue
    lower_bed: float = _number(15.0, 0.0, 60.0, step=1.0)  # dB of ducking of the background under speech


@dataclass(frozen=True)
class SubtitleParams(_Ranged):
    """Form of the subtitles that are written."""

    srt_words: int = _number(0, 0, 20)  # most words of a cue; 0: a cue per sentence


@dataclass(frozen=True)
class LipSyncParams(_Ranged):
    """Form of the mouth shapes."""

    fps: float = _number(25.0, 1.0, 240.0, step=0.01)  # frames per second of the video


@dataclass(frozen=True)
class ClipParams(_Ranged):
    """Part of a recording to use as the reference clip."""

    start: float = _number(0.0, 0.0, 36000.0, step=0.1)  # seconds
    length: float = _number(0.0, 0.0, 30.0, step=0.1)  # seconds; 0: to the end


@dataclass(frozen=True)
class TrainParams(_Ranged):
    """Settings of a training. 0 has the minutes of speech decide."""

    steps: int = _number(0, 0, 100_000)
    learning_rate: float = _number(0.0, 0.0, 0.1, step=1e-6)
    rank: int = _number(16, 1, 256)
    seed: int = _number(0, 0, 2**64 - 1)
    codes_in_full: bool = False  # also train the code embedding and the head, all of their numbers
    names: str = "model"  # of the tensors in the file: the model's own, or the transformers port's

    def __post_init__(self) -> None:
        _one_of("names", self.names, LORA_NAMES)
        super().__post_init__()
