"""The engine's door: `nodes/` imports from here and from nowhere deeper. The terminal also runs the tools."""

from .checkpoint.catalog import DOWNLOADS
from .checkpoint.discover import Found, find_checkpoints, find_in_hf_cache
from .checkpoint.download import download_checkpoint
from .checkpoint.embedded import EMBEDDED, EMBEDDED_NAME
from .config import (
    DEFAULT_GRAPHS,
    DTYPES,
    FRAME_RATE,
    GRAPHS,
    QUANTIZED,
    SAMPLE_RATE,
    VERSION,
    EngineConfig,
    SamplingParams,
    range_of,
)
from .engine import Engine
from .errors import HiggsError
from .result import SpeechResult
from .voice.clip import Wave, read_clip
from .voice.voice import Voice

__all__ = [
    "DEFAULT_GRAPHS",
    "DOWNLOADS",
    "DTYPES",
    "EMBEDDED",
    "EMBEDDED_NAME",
    "FRAME_RATE",
    "GRAPHS",
    "QUANTIZED",
    "SAMPLE_RATE",
    "VERSION",
    "Engine",
    "EngineConfig",
    "Found",
    "HiggsError",
    "SamplingParams",
    "SpeechResult",
    "Voice",
    "Wave",
    "download_checkpoint",
    "find_checkpoints",
    "find_in_hf_cache",
    "range_of",
    "read_clip",
]
