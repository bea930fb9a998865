"""Every setting, its default and its range. Knows no file format and no tensor."""

from __future__ import annotations

from dataclasses import dataclass

from .codes import CODE_VOCAB
from .errors import HiggsError

SAMPLE_RATE = 24_000  # Hz, what the codec writes
FRAME_SAMPLES = 960  # samples a codec frame
FRAME_RATE = SAMPLE_RATE // FRAME_SAMPLES  # 25 frames a second
RAS_WINDOW = 7  # frames of history the state keeps for v2's repetition rule
MAX_BATCH = 64  # rows of a batch at most
DTYPES = ("auto", "bf16", "fp32")
KERNELS = ("auto", "torch")
GRAPHS = {"auto": "auto", "on": "graph", "off": "eager"}  # a user's choice -> the executor behind it
RUNNERS = ("auto", "graph", "eager")
# The smallest and largest value of each sampling setting, for the widgets too.
RANGES = {
    "seed": (0, 2**64 - 1),
    "temperature": (0.0, 2.0),
    "top_p": (0.01, 1.0),
    "top_k": (0, CODE_VOCAB),
    "max_frames": (1, 8192),
    "chunk_seconds": (0.0, 120.0),
}


def _one_of(name: str, value: str, allowed: tuple[str, ...]):
    if value not in allowed:
        raise HiggsError(f"{name} is '{value}'. Choose one of: {', '.join(allowed)}.")


def _within(name: str, value: float, low: float, high: float):
    if not low <= value <= high:
        raise HiggsError(f"{name} is {value}. It must be between {low} and {high}.")


@dataclass(frozen=True)
class EngineConfig:
    """What is fixed when the engine opens."""

    model: str  # folder of the checkpoint
    codec: str | None = None  # folder of the codec where the checkpoint holds none
    device: str = "auto"  # "auto", "cpu", "cuda:0", ...
    dtype: str = "auto"  # "bf16", "fp32", or "auto": bf16 on a GPU, fp32 on a CPU
    context: int = 4096  # positions in the cache: prompt, reference and frames together
    batch: int = 0  # sequences of a long text that decode together at most; 0: as many as fit, up to MAX_BATCH
    runner: str = "auto"  # "graph", "eager", or "auto": graph on a GPU, eager elsewhere
    kernels: str = "auto"  # "auto": our CUDA kernels where they fit; "torch": torch's ops alone
    prefixes: int = 4  # beginnings of prompts (voice, scene) whose keys and values are kept between calls

    def __post_init__(self):
        _one_of("dtype", self.dtype, DTYPES)
        _one_of("kernels", self.kernels, KERNELS)
        _one_of("runner", self.runner, RUNNERS)
        _within("context", self.context, 64, 32768)
        _within("batch", self.batch, 0, MAX_BATCH)
        _within("prefixes", self.prefixes, 0, 64)


DEFAULT_GRAPHS = next(choice for choice, executor in GRAPHS.items() if executor == EngineConfig.runner)


@dataclass(frozen=True)
class SamplingParams:
    """What may change from call to call."""

    seed: int = 0
    # Steady: what SGLang-Omni and audio.cpp use for v3. Lively, as in Boson's first model card: 1.0, 0.95, 50.
    temperature: float = 0.8  # 0 is greedy
    top_p: float = 0.8  # 1 keeps all
    top_k: int = 30  # 0 keeps all
    max_frames: int = 2048  # 81.9 s; the limit for one chunk of text
    ban_specials: bool = True  # no stray begin/end codes inside speech
    ras_window: int = RAS_WINDOW  # v2 only: frames looked back on for repeats; 0 switches it off
    ras_repeats: int = 2  # v2 only: repeats in the window that make a code be drawn again
    chunk_seconds: float = 30.0  # longer text is split at sentence ends into chunks about this long; 0 never splits

    @property
    def greedy(self) -> bool:
        """Whether the likeliest code is always taken: at 0, and where 1 / temperature would be no number."""
        return self.temperature < 1e-6

    def __post_init__(self):
        for name, (low, high) in RANGES.items():
            _within(name, getattr(self, name), low, high)
        _within("ras_window", self.ras_window, 0, RAS_WINDOW)
        _within("ras_repeats", self.ras_repeats, 1, RAS_WINDOW + 1)
