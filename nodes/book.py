"""HiggsTTSBook: turns a book into a folder of sound files, and resumes a stopped run."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import comfy.utils
import torch
from comfy_api.latest import io

from ..engine import (
    AS_IS,
    BOOK_FORMATS,
    BOOK_SUFFIXES,
    Book,
    BookProgress,
    BookReport,
    BookSettings,
    Cast,
    Engine,
    Engines,
    HiggsError,
    RemoteEngine,
    SpeechResult,
    Voice,
    duration,
    file_stamp,
    import_optional,
    narrate,
    read_book,
    read_book_text,
    read_plain_text,
    script_names,
    with_details,
    without_chapters,
)
from .comfy import audio, folders, progress_text, types, widgets
from .comfy.exit_guard import is_exiting
from .comfy.info import info
from .comfy.linked import check_linked
from .comfy.memory import load_engine
from .comfy.node_errors import check_interrupt, node_errors, refuse
from .comfy.remote_model import AnyModel
from .comfy.written import Written
from .finish import bed_inputs, bed_of, loudness_input, target_of
from .library.voice_folders import listed_pronunciations, voice_called
from .page.chapter_list import chapter_teller, chapters_of
from .speak import advanced_inputs, check_input, pronunciations_of, retries_input, sampling, sampling_inputs
from .speakers import by_name, even_loudness_input, voice_doubts, voice_stamps, voices_input, voices_of
from .voice import transcript_warnings

NAME = "Higgs Book"
FOLDER, TITLE = "book", "Book"
OWN_TEXT = "the text below"
BAR_STEPS = 1000
TEXT = """# The Lighthouse

## The Letter

The lighthouse had been dark for eleven years when the letter came.

## The Lamp

On the last night of October he carried the oil up all the steps, and lit the lamp."""
_written = Written()
_asked: dict[str, str] = {}  # node id -> last request, as far as it is known before the node runs


class HiggsTTSBook(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSBook",
            display_name=NAME,
            category=types.CATEGORY,
            description="Reads a book (plain text, Markdown or EPUB) aloud into a folder, with a sound file and "
            "subtitles for each chapter, or as one M4B audiobook. Stop at any time; the next run continues where "
            "this one stopped.",
            search_aliases=[
                "audiobook",
                "epub",
                "narration",
                "m4b",
                "chapters",
                "tts",
                "text to speech",
                "higgs audio",
            ],
            is_output_node=True,
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model or Higgs TTS Server."),
                *_book_inputs(),
                voices_input(
                    "The narrator's voice. In a script, voices go to the speakers in order of first appearance, "
                    "unless the script uses the voices' names or socket numbers."
                ),
                *_file_inputs(),
                *sampling_inputs(new_seeds=False),
                *advanced_inputs(),
                even_loudness_input(
                    "Even out the loudness of paragraphs, by up to 8 dB. Turn off to keep quiet passages quiet."
                ),
                retries_input(),
                check_input(),
                loudness_input("each chapter"),
                *bed_inputs(),
                *_player_inputs(),
            ],
            outputs=[
                io.String.Output(display_name="report", tooltip="The files made, their lengths, and any warnings."),
                io.String.Output(display_name="folder", tooltip="The folder that holds the files."),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(
        cls, book: str | None, text: str | None = TEXT, folder: str | None = FOLDER, voices: object = None
    ) -> bool:
        """Refuse a missing book, an empty text or a wrong folder before the run. Linked inputs are None.

        `voices` must be named: ComfyUI passes it to every validation.
        """
        refuse(NAME, lambda: _check_book(book, text))
        return refuse(NAME, lambda: folder is None or folders.below_output(folder))

    @classmethod
    def fingerprint_inputs(
        cls, book: str | None, text: str | None = TEXT, script: bool | None = False, **others: object
    ) -> list:
        """Run again if the book's file, a voice file of its script, or an output file has changed.

        Linked inputs are None.
        """
        path = folders.files_in_input(BOOK_SUFFIXES).get(book or "")
        asked = repr((cls.hidden.unique_id, book, text, script, sorted(others.items())))
        key = _asked[cls.hidden.unique_id] = hashlib.sha256(asked.encode(errors="replace")).hexdigest()
        stamps = []
        if script is not False:
            if path and path.suffix.lower() != ".epub":
                text = _script_in(path)[0]
            stamps = voice_stamps(*script_names(text or ""))
        return [listed_pronunciations(), _written.number(key), file_stamp(path), *stamps]

    @classmethod
    def execute(
        cls,
        model: AnyModel,
        book: str = OWN_TEXT,
        text: str = TEXT,
        voices: Mapping[str, Voice | None] | None = None,
        folder: str = FOLDER,
        format: str = BOOK_FORMATS[0],
        script: bool = False,
        scene: str = "",
        pronunciations: str = "",
        even_loudness: bool = True,
        loudness: str = AS_IS,
        details: str = "",
        cover: torch.Tensor | None = None,
        leave_out: str = "",
        credits: bool = False,
        **settings: Any,
    ) -> io.NodeOutput:
        with node_errors(NAME):
            check_linked(model=model)
            target_of(loudness)
            music = _music(*bed_of(settings))
            params, place = sampling(settings), folders.below_output(folder)
            sockets = by_name(voices)
            found, cast = _read(book, text, script, sockets, model)
            found = without_chapters(found, leave_out)
            given = voices_of(found.speakers, cast, model)
            doubts = *voice_doubts(sockets, given), *transcript_warnings(given.values())
            found = replace(found, warnings=(*found.warnings, *doubts))
            found = with_details(_narrated_by(found, given), details, None if cover is None else _jpeg(cover), credits)
            found = found.said_as(pronunciations_of(pronunciations))
            node_id = cls.hidden.unique_id
            progress_text.NodeText(node_id).show("\n".join(found.warnings))
            how = BookSettings(scene.strip() or None, format, even_loudness, loudness=loudness, music=music)
            tellers = _teller(node_id), chapter_teller(place, node_id)
            report = narrate(_Lazy(model), found, place, given, params, how, *tellers)
            if key := _asked.get(cls.hidden.unique_id):
                made = any(file.made for file in report.files)
                _written.leave(key, functools.partial(_look, place), changed=made)
            shown = {"text": (_describe(report, found, model),), "higgs_tts_chapters": chapters_of(report)}
        return io.NodeOutput(*shown["text"], str(place), ui=shown)


def _narrated_by(book: Book, voices: Mapping[str, Voice]) -> Book:
    narrator = ", ".join(dict.fromkeys(voice.name for voice in voices.values() if voice.name))
    return replace(book, details=replace(book.details, narrator=narrator))


def _jpeg(image: torch.Tensor) -> bytes:
    """Return the first of images [B, H, W, 3], from 0 to 1, as a JPEG file."""
    file = BytesIO()
    pixels = (image[0, ..., :3].detach().float().cpu().clamp(0, 1) * 255).round().to(torch.uint8)
    import_optional("PIL.Image", "fromarray")(pixels.numpy()).save(file, "JPEG", quality=92)
    return file.getvalue()


def _music(bed: tuple[torch.Tensor, int] | None, lower: float) -> tuple[torch.Tensor, float] | None:
    """Return music in the format of the chapters, and the dB by which it is lowered."""
    return bed and (audio.for_player(*bed)[None], lower)


class _Lazy:
    """The engine, loaded when it first speaks: a finished book needs none."""

    def __init__(self, model: AnyModel):
        self._model = model
        self.fingerprint = model.engine.fingerprint

    def speak_turns(self, *what, **options) -> SpeechResult:
        return self._engine.speak_turns(*what, **options)

    @functools.cached_property
    def _engine(self) -> Engine | Engines | RemoteEngine:
        return load_engine(self._model)


def _book_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "book",
            options=[OWN_TEXT, *folders.files_in_input(BOOK_SUFFIXES)],
            default=OWN_TEXT,
            extra_dict=widgets.upload_button(BOOK_SUFFIXES),
            tooltip="A .txt, .md or .epub file in ComfyUI's input folder, or the text below. Upload a file with the "
            "button, or copy one there and press R.",
        ),
        io.String.Input(
            "text",
            multiline=True,
            default=TEXT,
            optional=True,
            tooltip="The book's text, if no file is chosen. Markdown headings (#) and lines such as CHAPTER II start "
            "chapters.",
        ),
    ]


def _file_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "folder",
            default=FOLDER,
            optional=True,
            tooltip="Folder for the files, inside ComfyUI's output folder. Use a separate folder for each book: "
            "finished speech is kept there.",
        ),
        io.Combo.Input(
            "format",
            options=list(BOOK_FORMATS),
            default=BOOK_FORMATS[0],
            optional=True,
            tooltip="flac and wav are lossless. mp3 and m4b are encoded at 64 kbit/s. m4b is a single file with "
            "chapters.",
        ),
        io.Boolean.Input(
            "script",
            default=False,
            optional=True,
            tooltip="Turn on if the book is a script with several speakers, as in Higgs Dialogue.",
        ),
    ]


def _player_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "details",
            multiline=True,
            default="",
            optional=True,
            advanced=True,
            placeholder="narrator = Anna",
            tooltip="What players show, one per line: title, author, narrator, year, language, genre, description. An "
            "EPUB brings its own, and the voice's name is the narrator. opening and closing are spoken as credits.",
        ),
        io.Image.Input(
            "cover",
            optional=True,
            tooltip="Picture for the book's cover, in mp3 and m4b. Without one, an EPUB's own is used.",
        ),
        io.String.Input(
            "leave_out",
            default="",
            optional=True,
            advanced=True,
            placeholder="1, 3-5",
            tooltip="Numbers of the chapters that are not read, such as 1, 3-5.",
        ),
        io.Boolean.Input(
            "credits",
            default=False,
            optional=True,
            advanced=True,
            tooltip="Speak title, author and narrator as a first chapter, and the end as a last one, in the book's "
            "language. details may give other words: opening = ..., closing = ...",
        ),
    ]


def _check_book(book: str | None, text: str | None) -> None:
    if book == OWN_TEXT:
        if text is not None and not text.strip():
            raise HiggsError("the text is empty. Enter the book's text, or choose a file in book.")
    elif book is not None and str(book) not in folders.files_in_input(BOOK_SUFFIXES):
        raise HiggsError(f"there is no book {str(book)[:80]!r} in ComfyUI's input folder. Put it there and press R.")


def _read(
    book: str, text: str, is_script: bool, sockets: Mapping[str, Voice], model: AnyModel
) -> tuple[Book, Cast[Voice]]:
    """Return the book and its cast."""
    title, warnings, narrator = TITLE, (), Cast((), sockets, {}, voice_called)
    _check_book(str(book), text)
    if book != OWN_TEXT:
        path = folders.files_in_input(BOOK_SUFFIXES)[book]
        if not is_script or path.suffix.lower() == ".epub":
            return read_book(path, is_script), narrator
        text, title, warnings = _script_in(path)
    if not is_script:
        return read_book_text(text, title), narrator
    head, names = script_names(text)
    cast = Cast(names, sockets, head, voice_called)
    found = read_book_text(text, title, True, cast.known, model.engine.planner.knows_tag)
    return replace(found, warnings=(*found.warnings, *warnings)), cast


def _script_in(path: Path) -> tuple[str, str, tuple[str, ...]]:
    """Return (text, title, warnings) of a script file."""
    try:
        text, warnings = read_plain_text(path)
        return text, path.stem, warnings
    except OSError as error:
        raise HiggsError(f"{path} cannot be read ({error.strerror or error}). Choose another file.") from error


def _teller(node_id: str):
    """Return a callback that shows progress and raises if the user pressed stop."""
    bar, shown = comfy.utils.ProgressBar(BAR_STEPS), ""

    def on_progress(progress: BookProgress) -> None:
        nonlocal shown
        if is_exiting():
            raise InterruptedError("ComfyUI exits")  # ends other devices' threads; `node_errors` then holds this one
        check_interrupt()
        bar.update_absolute(round(BAR_STEPS * progress.share), BAR_STEPS)
        if (line := str(progress)) != shown:
            shown = line
            progress_text.show(line, node_id)

    return on_progress


def _describe(report: BookReport, book: Book, model: AnyModel) -> str:
    count, spoken = len(book.chapters), sum(file.made for file in report.files)
    chapters = f"{count} {'chapter' if count == 1 else 'chapters'}"
    made = f"{chapters}, {duration(report.seconds)} of speech in {report.folder}, made in {duration(report.elapsed)}."
    return info(
        [f"{made} {report.outcome}", *([f"Left out: {', '.join(book.left_out)}."] if book.left_out else [])],
        (*model.model.warnings, *report.messages),
        report.spoken_again,
        map(str, report.files),
        model.model.label,
        f"{report.frames} frames spoken, {report.reused} chunks reused, {spoken} files written. Backend: {report.how}.",
    )


def _look(folder: Path) -> list:
    """Return [name, bytes, time] of each output file. The list changes if a file is deleted or modified."""
    return [[path.name, *file_stamp(path)] for path in sorted(folder.glob("*")) if path.is_file()]
