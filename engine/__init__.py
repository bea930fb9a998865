"""The engine's door: `nodes/` imports from here and from nowhere deeper. The terminal also runs the tools."""

import sys

if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv:  # `python -m engine` loads all of this before __main__.py
    from .interrupt import quit_at_once

    quit_at_once()

from .audio.resample import check_rate, resample
from .book.book import Book
from .book.narrate import narrate
from .book.read import SUFFIXES as BOOK_SUFFIXES
from .book.read import read_book, read_book_text, said_as
from .book.report import BookFile, BookProgress, BookReport
from .checkpoint.adapters import SETTINGS as ADAPTER_SETTINGS
from .checkpoint.adapters import adapter_files
from .checkpoint.catalog import DOWNLOADS
from .checkpoint.discover import Match, find_checkpoints, find_in_hf_cache
from .checkpoint.download import download_checkpoint
from .checkpoint.embedded import EMBEDDED, EMBEDDED_NAME
from .core.config import (
    BOOK_FORMATS,
    BOOK_GAP,
    DEFAULT_GRAPHS,
    DTYPES,
    FRAME_RATE,
    GRAPHS,
    KEY_VARIABLE,
    MAX_PAGE_BODY,
    MAX_SHEET,
    MAX_WRITTEN,
    QUANTIZED,
    SAMPLE_RATE,
    VERSION,
    Adapter,
    ClipParams,
    CueParams,
    EngineConfig,
    SamplingParams,
    ServerConfig,
    range_of,
)
from .core.errors import HiggsError
from .dubbing.mix import mix_speech
from .dubbing.references import cut_references
from .dubbing.report import cue_lines, cue_summary
from .dubbing.speak import CueSpeech, speak_cues
from .engines.device_pool import Engines
from .engines.engine import Engine
from .engines.remote.address import Address, read_addresses
from .engines.remote.engine import RemoteEngine
from .files.file_list import FileList, write_file
from .files.plain_text import decode_text, doubts
from .files.whole_file import write_whole
from .preview.text_check import text_check, text_check_before
from .preview.transcribe import WHISPERS, download_whisper, find_whispers, transcribe
from .preview.transcribe import size_of as whisper_size
from .preview.voice_sound import codec_of, voice_sound
from .prompt.chunking import estimate_seconds
from .prompt.cues import CueSheet, cue_names, read_cues
from .prompt.dialogue import Dialogue, read_dialogue, script_names
from .prompt.hints import Hint, TextCheck
from .prompt.lengths import misfit
from .prompt.lines import LinesRow, read_lines, with_seed
from .prompt.names import speaker_key
from .prompt.plan import planned_seconds
from .prompt.pronunciations import Pronunciations, read_pronunciations
from .prompt.script import Turn
from .speech.result import Retaken, SpeechResult, SpokenTurn, duration
from .speech.speech_input import Listener
from .speech.subtitles import to_srt, turn_to_srt
from .voice.clip import BUILT_IN_CLIPS, MAX_CLIP_SECONDS, MIN_CLIP_SECONDS, Wave, clip_seconds, cut_clip, read_clip
from .voice.voice import Voice, VoiceHead, read_voice_head

__all__ = [
    "ADAPTER_SETTINGS",
    "BOOK_FORMATS",
    "BOOK_GAP",
    "BOOK_SUFFIXES",
    "BUILT_IN_CLIPS",
    "DEFAULT_GRAPHS",
    "DOWNLOADS",
    "DTYPES",
    "EMBEDDED",
    "EMBEDDED_NAME",
    "FRAME_RATE",
    "GRAPHS",
    "KEY_VARIABLE",
    "MAX_CLIP_SECONDS",
    "MAX_PAGE_BODY",
    "MAX_SHEET",
    "MAX_WRITTEN",
    "MIN_CLIP_SECONDS",
    "QUANTIZED",
    "SAMPLE_RATE",
    "VERSION",
    "WHISPERS",
    "Adapter",
    "Address",
    "Book",
    "BookFile",
    "BookProgress",
    "BookReport",
    "ClipParams",
    "CueParams",
    "CueSheet",
    "CueSpeech",
    "Dialogue",
    "Engine",
    "EngineConfig",
    "Engines",
    "FileList",
    "HiggsError",
    "Hint",
    "LinesRow",
    "Listener",
    "Match",
    "Pronunciations",
    "RemoteEngine",
    "Retaken",
    "SamplingParams",
    "ServerConfig",
    "SpeechResult",
    "SpokenTurn",
    "TextCheck",
    "Turn",
    "Voice",
    "VoiceHead",
    "Wave",
    "adapter_files",
    "check_rate",
    "clip_seconds",
    "codec_of",
    "cue_lines",
    "cue_names",
    "cue_summary",
    "cut_clip",
    "cut_references",
    "decode_text",
    "doubts",
    "download_checkpoint",
    "download_whisper",
    "duration",
    "estimate_seconds",
    "find_checkpoints",
    "find_in_hf_cache",
    "find_whispers",
    "misfit",
    "mix_speech",
    "narrate",
    "planned_seconds",
    "range_of",
    "read_addresses",
    "read_book",
    "read_book_text",
    "read_clip",
    "read_cues",
    "read_dialogue",
    "read_lines",
    "read_pronunciations",
    "read_voice_head",
    "resample",
    "said_as",
    "script_names",
    "speak_cues",
    "speaker_key",
    "text_check",
    "text_check_before",
    "to_srt",
    "transcribe",
    "turn_to_srt",
    "voice_sound",
    "whisper_size",
    "with_seed",
    "write_file",
    "write_whole",
]
