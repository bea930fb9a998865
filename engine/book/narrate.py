"""Speak a book into a folder, chapter by chapter, skipping what is already there."""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from ..audio.mastering import AS_IS, TARGETS
from ..core.config import MOST_JSON_BYTES, SAMPLE_RATE, SamplingParams
from ..core.errors import HiggsError
from ..core.threads import one_thread
from ..files.file_list import FileList, sole_writer, write_errors, write_file
from ..files.whole_file import read_whole, replacing
from ..prompt.chunking import estimate_frames
from ..prompt.script import Turn
from ..speech.note import note_of, read_note
from ..speech.result import DoubtfulWords, Retried, SpeechResult, outcome
from ..speech.speech_input import Listener
from ..speech.subtitles import Cue, srt_of
from ..voice.voice import Voice, voice_of_speech
from ..words.cues import lines_of
from ..words.word import MOST_SECONDS, Word, moved, read_words, words_json
from .book import Book, BookDetails
from .chapter_file import ChapterFile, parts_of
from .chapters import PlannedChapter, groups, passage_of, plan_chapters, portable, settings_of
from .report import BookFile, BookProgress, BookReport, BookSettings, Narrator
from .sound_file import BOUND, Tags, bind, opens, require, seconds_of
from .spoken import SpokenSequences

WORDS = "words.json"  # ending of the files of words
LIST, KEPT = "book.json", "spoken"  # in the book's folder: the list of files, and the spoken sequences
_KIND = "higgs-tts-book"
_PARTS = "chapters"  # below KEPT: parts of a single output file
_PART_KIND = "flac"
_LOCK = f"{KEPT}/.lock"


def narrate(
    speaker: Narrator,
    book: Book,
    folder: Path,
    voices: Mapping[str, Voice] | None = None,
    params: SamplingParams | None = None,
    settings: BookSettings = BookSettings(),  # noqa: B008 - it is immutable
    on_progress: Callable[[BookProgress], None] = lambda progress: None,
    on_file: Callable[[BookFile], None] = lambda file: None,
) -> BookReport:
    """Speak a book into `folder`: one file per chapter, or one M4B, each with SRT subtitles.

    Every sequence is saved as soon as it is spoken. After a stop, a call with the same book and settings speaks only
    what is missing. The files equal those of one uninterrupted call on the same kind of device. Finished chapters are
    left alone, and files that the user has edited are renamed before they are written again. A speaker without a voice
    gets one, by seed and name, from the start of their text. Memory holds at most about 20 minutes of sound for each
    device.

    on_progress is called after every step and may raise to cancel. on_file gets each complete chapter file, those of
    earlier runs first. Raises HiggsError like `speak_turns`, if a file cannot be written, or if another run writes
    there.
    """
    require(settings.kind)
    params = params or SamplingParams()
    params = replace(params, turn_gap=params.paragraph_gap)
    with sole_writer(folder, _LOCK):
        return _Narration(speaker, book, folder, dict(voices or {}), params, settings).run(on_progress, on_file)


class _Narration:
    def __init__(
        self,
        speaker: Narrator,
        book: Book,
        folder: Path,
        voices: dict[str, Voice],
        params: SamplingParams,
        settings: BookSettings,
    ):
        self._speaker, self._book, self._folder, self._voices = speaker, book, folder, voices
        self._params, self._settings, self._kind = params, settings, settings.kind
        self._files = FileList(folder, LIST, _KIND)
        model = speaker.fingerprint
        self._store = SpokenSequences(folder / KEPT, model)
        sound = [model, settings_of(params), settings.scene, settings.even, settings.kind]
        sound += [settings.srt_words] if settings.srt_words else []
        sound += [settings.loudness] if settings.loudness != AS_IS else []
        sound += [_details_of(book.details)] if book.details != BookDetails() else []
        sound += [_digest(settings.music[0]), settings.music[1]] if settings.music else []
        self._chapters = plan_chapters(book, sound, {name: voices[name] for name in book.speakers if name in voices})
        self._warnings: dict[str, None] = dict.fromkeys([*book.warnings, *filter(None, [self._files.damage])])
        self._retried: list[Retried] = []
        self._spoken = 0  # chunks, in this run
        self._how = ""
        self._frames = self._peak = 0  # decoded in this run; peak bytes of a GPU
        self._current: tuple[PlannedChapter, ChapterFile] | None = None  # the one being written
        self._tail = 0.0  # seconds of silence requested after what is written
        self._whole = self._before = self._later = 0  # estimated frames: in total, before this group, and after it
        self._began = time.perf_counter()

    def run(self, on_progress: Callable[[BookProgress], None], on_file: Callable[[BookFile], None]) -> BookReport:
        self._on_progress, self._on_file = on_progress, on_file
        missing = [one for one in self._chapters if not self._is_there(one)]
        self._finished: dict[int, BookFile] = {}  # by number
        for one in filter(lambda one: one not in missing, self._chapters):
            self._tell_file(one, made=False)
        self._whole, self._later = (sum(map(_frames, chapters)) for chapters in (self._chapters, missing))
        self._before = self._whole - self._later
        if missing:
            self._forget([file for one in missing for file in self._names(one)])
            self._give_voices(missing)
            self._speak(missing)
        files = [self._finished[one.number] for one in self._chapters]
        if self._kind == BOUND:
            made = self._bind()
            files = [BookFile(self._bound, seconds_of(self._folder / self._bound), made)]
        if damaged := self._store.damaged:
            self._warnings[f"{damaged} files in {self._folder / KEPT} could not be read and were spoken again."] = None
        doubts, checked = self._checks()
        return BookReport(
            self._folder,
            tuple(files),
            time.perf_counter() - self._began,
            self._store.reused,
            self._frames,
            tuple(self._retried),
            tuple(self._warnings),
            self._how or "none, as all speech was reused",
            self._peak,
            tuple(doubts),
            outcome([doubt for _, doubt in doubts], checked),
        )

    def _checks(self) -> tuple[list[tuple[str, DoubtfulWords]], list[bool]]:
        """Return the doubts of all chapters, and for each chunk if its words were checked."""
        doubts, checked = [], []
        for one in self._chapters:
            own, chunks = read_note(self._files.notes.get(self._names(one)[0]))
            doubts += [(one.chapter.title or one.name, doubt) for doubt in own]
            checked += chunks
        return doubts, checked

    def _names(self, one: PlannedChapter) -> list[str]:
        """Return a chapter's files: sound, subtitles and, if wanted, words. Those of a bound book are temporary."""
        is_part = self._kind == BOUND
        place = f"{KEPT}/{_PARTS}/{one.name}" if is_part else one.name
        kinds = (_PART_KIND, "json") if is_part else (self._kind, "srt")
        return [f"{place}.{kind}" for kind in (*kinds, *([WORDS] if self._settings.words else []))]

    def _is_there(self, one: PlannedChapter) -> bool:
        is_listed = all(self._files.has(file, one.fingerprint) for file in self._names(one))
        return is_listed and opens(self._sound(one)) and (self._kind != BOUND or self._held(one) is not None)

    def _held(self, one: PlannedChapter) -> tuple[list[Cue], list[Word]] | None:
        """Return the cues and words of a chapter to be bound, or None if a file is damaged."""
        try:
            texts = [read_whole(self._folder / name, MOST_JSON_BYTES).decode() for name in self._names(one)[1:]]
            cues = [Cue(**entry) for entry in json.loads(texts[0])]
            words = [word for text in texts[1:] for word in read_words(text)]
        except (OSError, TypeError, KeyError, ValueError, RecursionError, HiggsError):
            return None
        return (cues, words) if all(map(_is_timed, cues)) else None

    def _give_voices(self, missing: list[PlannedChapter]):
        """Give each speaker in these chapters a voice, by speaking a passage of their text on its own."""

        def on_frame(done: int, expected: int) -> None:
            self._tell(self._before, None, missing[0])

        for name in dict.fromkeys(turn.speaker for one in missing for turn in one.chapter.turns):
            if name not in self._voices:
                turn = Turn(name, passage_of(self._book, name))
                speech = self._say([turn], replace(self._params, chunk_seconds=0), on_frame)
                if not len(speech.codes):
                    raise HiggsError("The model produced no speech, so the narrator has no voice. Try another seed.")
                made = voice_of_speech(speech.codes, turn.text if speech.complete else None, "own")
                self._voices[name] = speech.voices.get(name, made)  # a server may have a default voice

    def _speak(self, missing: list[PlannedChapter]):
        """Speak chapter after chapter. A file is open from a chapter's first turn to its last."""
        with contextlib.ExitStack() as self._open_files:
            for group in groups(missing, self._settings.devices):
                self._write(group, *self._say_group(group))

    @one_thread()
    def _write(self, group: list[tuple[PlannedChapter, Turn]], speech: SpeechResult, words: tuple[Word, ...] | None):
        parts = parts_of(speech, self._tail, words)
        for at, ((one, turn), part) in enumerate(zip(group, parts, strict=True)):
            gap = part.gap
            if self._current is None:
                self._current, gap = (one, self._open(one)), 0.0
            elif at == 0:
                gap = gap or self._params.paragraph_gap
            with write_errors(self._sound(one)):
                self._current[1].append(gap, part)
            if turn is one.chapter.turns[-1]:
                self._finish(*self._current)
                self._current = None
        self._tail = (len(speech.wav) - speech.turns[-1].stop) / SAMPLE_RATE

    def _say_group(self, group: list[tuple[PlannedChapter, Turn]]) -> tuple[SpeechResult, tuple[Word, ...] | None]:
        turns, first = [turn for _, turn in group], group[0][0]
        size, spoken_before = sum(estimate_frames(turn.text) for turn in turns), self._frames
        self._later -= size

        def on_frame(done: int, expected: int) -> None:
            self._frames = spoken_before + done
            pace = self._frames / (time.perf_counter() - self._began)  # frames per second
            left = (expected - done + self._later) / pace if self._frames else None
            self._tell(self._before + size * done / max(1, expected), left, first)

        speech = self._say(turns, self._params, on_frame)
        self._before += size
        self._retried += [replace(one, chunk=self._spoken + one.chunk) for one in speech.retried]
        self._spoken += speech.chunks
        self._peak = max(self._peak, speech.peak_bytes)
        self._warnings |= dict.fromkeys(speech.warnings)
        self._how = speech.how if speech.frames and not speech.how.startswith("none") else self._how
        return speech, self._settings.words and self._settings.words(speech)

    def _tell(self, frames: float, left: float | None, one: PlannedChapter):
        """Report progress, with `frames` of the estimated total done."""
        share = min(1.0, frames / self._whole)
        self._on_progress(BookProgress(share, left, one.number, len(self._chapters), one.chapter.title))

    def _say(self, turns: list[Turn], params: SamplingParams, on_frame: Callable[[int, int], None]) -> SpeechResult:
        scene, even = self._settings.scene, self._settings.even
        listener = Listener(on_frame)
        return self._speaker.speak_turns(turns, self._voices, params, scene, listener, reuse=self._store, even=even)

    def _open(self, one: PlannedChapter) -> ChapterFile:
        kind = _PART_KIND if self._kind == BOUND else self._kind
        tags = Tags(one.chapter.title, self._book.title, self._book.author, one.number, self._book.details)
        finish = TARGETS[self._settings.loudness], self._settings.music
        with write_errors(self._sound(one)):
            return self._open_files.enter_context(ChapterFile(self._sound(one), kind, tags, *finish))

    def _finish(self, one: PlannedChapter, file: ChapterFile):
        with write_errors(self._sound(one)):
            file.finish()
            self._drop_words(self._names(one)[0])
        sound, subtitles, *words = self._names(one)
        most = self._settings.srt_words
        cues = lines_of(file.words, most) if most else file.cues
        text = json.dumps([asdict(cue) for cue in cues]) if self._kind == BOUND else srt_of(cues)
        write_file(self._folder / subtitles, text.encode())
        for name in words:
            write_file(self._folder / name, words_json(file.words).encode())
        for name in (sound, subtitles, *words):
            self._files.listed[name] = one.fingerprint, (self._folder / name).stat().st_size
        self._files.notes[sound] = note_of(file.doubts, file.checked)
        self._files.write()
        self._tell_file(one, True, file.loudness)

    def _tell_file(self, one: PlannedChapter, made: bool, loudness: str = ""):
        """Report a chapter's complete sound, unless it is only part of a bound book."""
        seconds = seconds_of(self._sound(one))
        file = self._finished[one.number] = BookFile(self._names(one)[0], seconds, made, loudness)
        if self._kind != BOUND:
            self._on_file(file)

    def _sound(self, one: PlannedChapter) -> Path:
        return self._folder / self._names(one)[0]

    def _forget(self, names: Sequence[str]):
        """Forget files that are written again. Those that the user has changed stay, under other names."""
        self._warnings |= dict.fromkeys(self._files.keep_changed(name for name in names if "/" not in name))
        self._files.forget(names)

    def _drop_words(self, sound: str):
        """Delete unwanted words of an earlier text beside a sound that is made again, unless the user edited them."""
        if not self._settings.words:
            name = f"{sound.rpartition('.')[0]}.{WORDS}"
            self._forget([name])
            (self._folder / name).unlink(missing_ok=True)

    @property
    def _bound(self) -> str:
        return f"{portable(self._book.title) or 'book'}.{BOUND}"

    def _bind(self) -> bool:
        """Join all chapters into one file. False if it is already there."""
        kinds = (BOUND, "srt", *([WORDS] if self._settings.words else []))
        path, names = self._folder / self._bound, [f"{self._bound[: -len(BOUND)]}{kind}" for kind in kinds]
        made_of = "".join(one.fingerprint for one in self._chapters)
        if all(self._files.has(name, made_of) for name in names) and opens(path):
            return False
        self._forget(names)
        cues: list[Cue] = []
        words: list[Word] = []
        parts, at = [], 0.0
        for one in self._chapters:
            own, spoken = self._held(one) or ((), ())
            cues += [replace(cue, start=at + cue.start, stop=at + cue.stop) for cue in own]
            words += moved(spoken, at)
            parts.append((one.chapter.title, self._sound(one)))
            at += seconds_of(self._sound(one))
        tags = Tags(self._book.title, self._book.title, self._book.author, 0, self._book.details)
        with write_errors(path), replacing(path) as partial:
            bind(partial, parts, tags)
            self._drop_words(self._bound)
        for name, text in zip(names[1:], (srt_of(cues), words_json(words)), strict=False):
            write_file(self._folder / name, text.encode())
        self._files.listed |= {name: (made_of, (self._folder / name).stat().st_size) for name in names}
        self._files.write()
        return True


def _details_of(details: BookDetails) -> dict[str, str]:
    return asdict(details) | {"cover": hashlib.sha256(details.cover).hexdigest()}


def _digest(wav: torch.Tensor) -> str:
    return hashlib.sha256(wav.contiguous().numpy().tobytes()).hexdigest()


def _frames(one: PlannedChapter) -> int:
    return sum(estimate_frames(turn.text) for turn in one.chapter.turns)


def _is_timed(cue: Cue) -> bool:
    """True if a cue that was read has texts, and times that are numbers in order."""
    numbers = all(type(time) in (int, float) for time in (cue.start, cue.stop))
    texts = all(isinstance(text, str) for text in (cue.text, cue.speaker))
    return texts and numbers and 0 <= cue.start <= cue.stop <= MOST_SECONDS
