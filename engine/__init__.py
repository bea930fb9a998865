"""Public API of the engine: the names imported here. `nodes/` imports no others; the terminal also runs the tools."""

import sys

if sys.argv[:1] == ["-m"] and __name__ in sys.orig_argv:  # `python -m engine` imports this before __main__.py
    from .interrupt import quit_at_once

    quit_at_once()

from .audio.bed import AFTER, Bed
from .audio.encoded import SOUND_FILES, encode_sound
from .audio.mastering import AS_IS, FRESH_TARGET, TARGETS, Target, master
from .audio.pcm import pcm_bytes, wav_bytes
from .audio.resample import check_rate, resample
from .book.book import Book
from .book.details import with_details, without_chapters
from .book.narrate import narrate
from .book.read import SUFFIXES as BOOK_SUFFIXES
from .book.read import read_book, read_book_text
from .book.report import BookFile, BookProgress, BookReport, BookSettings
from .checkpoint.adapter_files import SETTINGS as ADAPTER_SETTINGS
from .checkpoint.adapter_files import adapter_files
from .checkpoint.catalog import DOWNLOADS
from .checkpoint.discover import Match, find_checkpoints, find_in_hf_cache
from .checkpoint.download import download_checkpoint
from .checkpoint.embedded import EMBEDDED, EMBEDDED_NAME
from .core.config import (
    BOOK_FORMATS,
    DEFAULT_GRAPHS,
    DTYPES,
    FRAME_RATE,
    GRAPHS,
    KEY_VARIABLE,
    LORA_NAMES,
    MAX_PAGE_BODY,
    MAX_SHEET,
    MAX_WRITTEN,
    MOST_CLIPS,
    QUANTIZED,
    SAMPLE_RATE,
    VERSION,
    Adapter,
    CallLimits,
    ClipParams,
    CueParams,
    EngineConfig,
    LipSyncParams,
    SamplingParams,
    ServerConfig,
    SubtitleParams,
    TrainParams,
    range_of,
)
from .core.errors import HiggsError
from .core.optional import import_optional
from .dubbing.mix import mix_speech
from .dubbing.references import cut_references
from .dubbing.report import cue_lines, cue_summary
from .dubbing.speak import CueSpeech, speak_cues
from .engines.device_pool import Engines
from .engines.engine import Engine
from .engines.remote.address import Address, read_addresses
from .engines.remote.engine import RemoteEngine
from .engines.speech_api import SpeechAPI
from .engines.text_check import text_check, text_check_before
from .engines.voice_sound import codec_of, voice_sound
from .files.file_list import FileList, write_file
from .files.plain_text import read_plain_text
from .files.portable_names import composed, portable_parts
from .files.whole_file import file_stamp, read_whole
from .finetune.network import Network as TrainingNetwork
from .finetune.rows import IGNORED, TrainingRow
from .finetune.train import TrainProgress, TrainReport, train, training_bytes
from .prompt.casting import Cast
from .prompt.chunking import estimate_seconds
from .prompt.cues import CueSheet, cue_names, read_cues
from .prompt.dialogue import Dialogue, read_dialogue, script_names
from .prompt.hints import TextCheck
from .prompt.lengths import misfit
from .prompt.lines import LinesRow, read_lines, with_seed
from .prompt.names import speaker_key
from .prompt.plan import planned_seconds
from .prompt.pronunciations import Pronunciations, read_pronunciations
from .prompt.said import SaidText
from .prompt.script import Turn
from .speech.note import note_of, read_note
from .speech.result import Retried, SpeechResult, SpokenTurn, duration, outcome
from .speech.speech_input import Listener
from .voice.clip import (
    BUILT_IN_CLIPS,
    CLIP_SUFFIXES,
    FILM_SUFFIXES,
    MAX_CLIP_SECONDS,
    MIN_CLIP_SECONDS,
    TRANSCRIPT_SUFFIXES,
    Wave,
    built_in_clip,
    clip_seconds,
    cut_clip,
    read_clip,
    read_reference,
    transcript_of,
)
from .voice.join_clips import JoinedClips, NamedClip, join_clips
from .voice.reference import ClipCheck, clip_checks, reference_of
from .voice.voice import Voice, VoiceHead, read_voice_head
from .words.cues import to_srt, turn_to_srt, words_by_turn
from .words.estimate import estimate as estimate_words
from .words.letters import mark_words
from .words.mouth import OPENNESS, Mouth, mouth_of
from .words.transcribe import WHISPERS, download_whisper, find_whispers, transcribe
from .words.transcribe import size_of as whisper_size
from .words.word import Word, moved, read_words, word_rows, words_json
