"""The engine's door. `nodes/` and the terminal import from here and from nowhere deeper."""

from .config import DEFAULT_GRAPHS, DTYPES, FRAME_RATE, GRAPHS, RANGES, SAMPLE_RATE, EngineConfig, SamplingParams
from .download import download_checkpoint
from .engine import Engine
from .errors import HiggsError
from .files import DOWNLOADS, Found, find_checkpoints, find_in_hf_cache
from .shipped import EMBEDDED, EMBEDDED_NAME
from .speech import Speech
from .voice import Voice, read_clip

__all__ = [
    "DEFAULT_GRAPHS",
    "DOWNLOADS",
    "DTYPES",
    "EMBEDDED",
    "EMBEDDED_NAME",
    "FRAME_RATE",
    "GRAPHS",
    "RANGES",
    "SAMPLE_RATE",
    "Engine",
    "EngineConfig",
    "Found",
    "HiggsError",
    "SamplingParams",
    "Speech",
    "Voice",
    "download_checkpoint",
    "find_checkpoints",
    "find_in_hf_cache",
    "read_clip",
]
