"""HiggsTTSLines: turns rows of text into sound files in one batch, skipping files that are up to date."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from comfy_api.latest import io

from ..engine import (
    AS_IS,
    Cast,
    HiggsError,
    LinesRow,
    SpeechResult,
    Voice,
    Word,
    note_of,
    outcome,
    read_lines,
    read_note,
    turn_to_srt,
    words_by_turn,
    words_json,
)
from .comfy import audio, folders, types
from .comfy.linked import check_linked, is_used
from .comfy.memory import load_engine
from .comfy.node_errors import node_errors, refuse
from .comfy.remote_model import AnyModel
from .comfy.saved_sound import workflow_tags
from .comfy.written import Written
from .finish import loudness_input, target_of
from .library.voice_folders import listed_pronunciations, voice_called
from .sheet.files import KINDS, LineFiles, look, subtitles_of
from .sheet.plan import LinePlan, LineTake, plan
from .sheet.takes import takes_of
from .speak import (
    advanced_inputs,
    check_input,
    describe,
    pronunciations_of,
    retries_input,
    sampling,
    sampling_inputs,
    with_player,
)
from .speakers import by_name, even_loudness_input, voice_stamps, voices_input, voices_of
from .voice import transcript_warnings
from .word_times import srt_words_input, words_if_needed, words_output

NAME = "Higgs Lines"
WORDS = "HiggsTTSLines", 2  # the output
FOLDER, MOST_TAKES = "lines", 16
SHOWN = 5  # names of unrelated files in the report
LINES = """id,speaker,text
greeting,Anna,Welcome to my shop!
prices,Anna,"Two coins for bread, three for cheese."
thanks,Tom,Thank you. I will take both."""
_written = Written()
_asked: dict[str, str] = {}  # node id -> last request, as far as it is known before the node runs


class HiggsTTSLines(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HiggsTTSLines",
            display_name=NAME,
            category=types.CATEGORY,
            description="Makes a sound file for each line of a sheet, for games and apps. Lines are generated "
            "together as far as memory allows, and later runs make only the lines that changed.",
            search_aliases=[
                "batch",
                "game dialogue",
                "voice lines",
                "csv",
                "json",
                "text to speech",
                "tts",
                "higgs audio",
            ],
            is_output_node=True,
            is_input_list=True,  # a list of texts is one row each; separate runs would all write 001.wav
            inputs=[
                types.Model.Input("model", tooltip="From Higgs Load Model or Higgs TTS Server."),
                io.String.Input(
                    "lines",
                    multiline=True,
                    default=LINES,
                    tooltip="One row per line: CSV with a header (id, speaker, text, seed; only text is required), "
                    "JSON, or plain text. The id becomes the file name. You can also connect a list of texts.",
                ),
                voices_input(
                    "Speakers get the connected voices in order of first appearance, unless the rows use the voices' "
                    "names or socket numbers. Rows without a speaker use the first voice."
                ),
                *_file_inputs(),
                *sampling_inputs(new_seeds=False),
                *advanced_inputs(),
                even_loudness_input(
                    "Even out the loudness of all files, by up to 8 dB, if loudness is as is. Turn off to keep natural "
                    "differences."
                ),
                retries_input(),
                *_later_inputs(),
            ],
            outputs=[
                io.Audio.Output(display_name="audio", tooltip="The lines spoken in this run: 24 kHz, mono."),
                io.String.Output(display_name="report", tooltip="The result for each row, and any warnings."),
                words_output(),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def validate_inputs(
        cls, lines: Sequence[str | None], folder: Sequence[str | None] = (FOLDER,), voices: object = None
    ) -> bool:
        """Refuse a faulty sheet or folder before the run. A linked input ([None]) is checked when the node runs."""
        known = [text for text in lines if text is not None]
        refuse(NAME, lambda: known and read_lines(*known))
        return refuse(NAME, lambda: folder[0] is None or folders.below_output(folder[0]))

    @classmethod
    def fingerprint_inputs(cls, lines: Sequence[str | None], **others: object) -> list:
        """Run again if a voice file named in the rows, or an output file, has changed, or if `words` was connected.

        A linked input is [None].
        """
        known = [text for text in lines if text is not None]
        speakers = {row.speaker for row in read_lines(*known)} if known else set()
        asked = repr((cls.hidden.unique_id, lines, sorted(others.items())))
        key = _asked[cls.hidden.unique_id] = hashlib.sha256(asked.encode(errors="replace")).hexdigest()
        stamps = voice_stamps({}, sorted(filter(None, speakers)))
        return [listed_pronunciations(), is_used(*WORDS), _written.number(key), *stamps]

    @classmethod
    def execute(cls, lines: Sequence[str], **others: Sequence[Any]) -> io.NodeOutput:
        with node_errors(NAME):
            return cls._execute(lines, **{name: _single(name, values, "lines") for name, values in others.items()})

    @classmethod
    def _execute(
        cls,
        lines: Sequence[str],
        model: AnyModel,
        folder: str = FOLDER,
        voices: Mapping[str, Voice | None] | None = None,
        takes: int = 1,
        scene: str = "",
        pronunciations: str = "",
        even_loudness: bool = True,
        subtitles: bool = False,
        srt_words: int = 0,
        loudness: str = AS_IS,
        save_as: str = KINDS[0],
        **settings: float,
    ) -> io.NodeOutput:
        check_linked(model=model)
        if save_as not in KINDS:
            raise HiggsError(f"save_as is {str(save_as)[:40]!r}. Choose one of: {', '.join(KINDS)}.")
        params = sampling(settings)
        rows, files = read_lines(*lines), LineFiles(folders.below_output(folder))
        said_as, planner = pronunciations_of(pronunciations), model.engine.planner
        spoken = [row for row in rows if planner.is_spoken(said_as.apply(row.text, row.speaker))]
        scene = scene.strip()
        target = target_of(loudness)
        common = model.engine.fingerprint, scene, even_loudness, *([loudness] if target else [])
        speaking = _voices(spoken, voices, model)
        doubts = transcript_warnings(speaking.values())
        planned = plan(spoken, takes, params, said_as, speaking, common, save_as)
        has_renamed = files.keep_renamed({take.file: take.fingerprint for take in planned.takes})
        wanted = {take.file for take in planned.takes if not _is_there(files, take, subtitles, srt_words)}
        needed, turns, given = planned.to_speak(wanted)
        speech, numbers, said = None, [], []
        if turns:
            what = turns, given, params, scene or None
            engine = load_engine(model)
            speak = functools.partial(engine.speak_turns, *what, even=even_loudness)
            speech, words = with_player(engine, speak, doubts=doubts)
            speech = speech if target is None else audio.turns_mastered(speech, target)
            words = words_if_needed(engine, speech, WORDS, srt_words if subtitles else 0, words)
            timed = None if words is None else _of_rows(words_by_turn(speech, words), needed)
            numbers = _write(files, speech, needed, wanted, subtitles, timed, srt_words, cls.hidden)
            said = audio.words_of_turns(speech, numbers, timed or [])
        if key := _asked.get(cls.hidden.unique_id):
            _written.leave(key, functools.partial(look, files.folder), changed=has_renamed or bool(numbers))
        report = _report((*model.model.warnings, *doubts), model, rows, planned, files, wanted, speech)
        shown = {"text": (report,), "higgs_tts_takes": takes_of(planned, files)}
        return io.NodeOutput(audio.of_turns(speech, numbers), report, words_json(said), ui=shown)


def _file_inputs() -> list[io.Input]:
    return [
        io.String.Input(
            "folder",
            default=FOLDER,
            optional=True,
            tooltip="Folder for the files, inside ComfyUI's output folder. Use / for subfolders.",
        ),
        io.Int.Input(
            "takes",
            default=1,
            min=1,
            max=MOST_TAKES,
            optional=True,
            tooltip="Files to make for each row, so you can pick the best. id_1.wav uses the row's seed, id_2.wav the "
            "next seed, and so on.",
        ),
    ]


def _subtitles_input() -> io.Input:
    return io.Boolean.Input(
        "subtitles",
        default=False,
        optional=True,
        advanced=True,
        tooltip="Also write an SRT file next to each sound file, with one cue per sentence unless srt_words is set. "
        "For games and apps that show text.",
    )


def _later_inputs() -> list[io.Input]:
    """Return the widgets that came after those of older workflows, which store widgets by position."""
    kind = io.Combo.Input(
        "save_as",
        options=list(KINDS),
        default=KINDS[0],
        optional=True,
        tooltip="Kind of the files. flac, mp3 and ogg have the id and the speaker as title and artist, and contain the "
        "workflow.",
    )
    return [_subtitles_input(), srt_words_input(), check_input(), loudness_input("each file"), kind]


def _voices(rows: Sequence[LinesRow], voices: Mapping[str, Voice | None] | None, model: AnyModel) -> dict[str, Voice]:
    """Map speakers to voices by name or number if the rows use these, else in turn. Some may have none."""
    speakers = list(dict.fromkeys(row.speaker for row in rows))
    return voices_of(speakers, Cast(speakers, by_name(voices), {}, voice_called), model)


def _is_there(files: LineFiles, take: LineTake, subtitles: bool, srt_words: int) -> bool:
    """True if a take is in the folder, including its subtitles if `subtitles`."""
    has_subtitles = not subtitles or files.has(subtitles_of(take.file), _form(take, srt_words))
    return files.has(take.file, take.fingerprint) and has_subtitles


def _form(take: LineTake, srt_words: int) -> str:
    """Return the fingerprint of a take's subtitles."""
    return f"{take.fingerprint}-{srt_words}" if srt_words else take.fingerprint


def _of_rows(timed: Sequence[Sequence[Word]], takes: Sequence[LineTake]) -> list[list[Word]]:
    """Return the words of each turn with its row's speaker; turns have names of their own, see `LinePlan.to_speak`."""
    return [
        [replace(word, speaker=take.row.speaker) for word in words] for words, take in zip(timed, takes, strict=True)
    ]


def _write(
    files: LineFiles,
    speech: SpeechResult,
    takes: Sequence[LineTake],
    wanted: set[str],
    subtitles: bool,
    timed: Sequence[Sequence[Word]] | None,
    srt_words: int,
    hidden: object,
) -> list[int]:
    """Write the wanted files and return their turns' numbers in the speech.

    takes: one for each turn of the speech. timed: the words of each, if known. hidden: the node's.
    """
    made, notes, numbers = {}, {}, []
    for number, (spoken, take) in enumerate(zip(speech.turns, takes, strict=True)):
        if take.file in wanted and spoken.is_spoken:
            kind, speaker = take.file.rpartition(".")[2], take.row.speaker
            tags = {"title": take.row.id, **({"artist": speaker} if speaker else {}), **workflow_tags(kind, hidden)}
            made[take.file] = take.fingerprint, audio.turn_file(speech, number, kind, tags)
            alone = speech.of_turn(number)
            notes[take.file] = note_of(alone.doubts, alone.checked)
            beside = subtitles_of(take.file)
            if subtitles or beside in files.listed:  # keeps an existing SRT file in step with the sound
                size, own = (srt_words, timed[number]) if timed else (0, None)
                made[beside] = _form(take, size), turn_to_srt(speech, number, own, size).encode()
            numbers.append(number)
    files.put(made, notes)
    return numbers


def _report(
    warnings: Sequence[str],
    model: AnyModel,
    rows: Sequence[LinesRow],
    planned: LinePlan,
    files: LineFiles,
    wanted: set[str],
    speech: SpeechResult | None,
) -> str:
    """Return the info output: totals, how all rows came out, warnings, each row's state, and details of the speech."""
    of: dict[str, list[LineTake]] = {}  # by row id
    for take in planned.takes:
        of.setdefault(take.row.id, []).append(take)
    became, told, doubts, checked = Counter(), [], {}, []
    for row in rows:
        made = [take for take in of.get(row.id, ()) if files.has(take.file, take.fingerprint)]
        if not made:
            became["skipped"] += 1
            told.append(f"{row.id}: skipped, no text")
        for take in made:
            state = "spoken" if take.file in wanted else "unchanged"
            became[state] += 1
            told.append(f"{row.id}: {files.seconds(take.file):.2f} s, {take.file}, {state}")
            own, chunks = read_note(files.notes.get(take.file))
            doubts |= {f"{take.file}: {doubt}": doubt for doubt in own}
            checked += chunks
    totals = ", ".join(f"{became[state]} {state}" for state in ("spoken", "unchanged", "skipped") if became[state])
    lead = [f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} in {files.folder}: {totals}."]
    theirs = [file for take in planned.takes for file in (take.file, subtitles_of(take.file))]
    if others := files.others(theirs):
        names = ", ".join([*others[:SHOWN], *(["..."] if len(others) > SHOWN else [])])
        lead.append(f"Kept {len(others)} files from earlier runs that match no row ({names}).")
    warnings = (*warnings, *filter(None, [files.damage]), *files.changed)
    if speech is not None:
        result = outcome(doubts.values(), checked), doubts
        return "\n".join([*lead, describe(speech, model.model.label, warnings, *told, result=result)])
    lead += [outcome(doubts.values(), checked)] if checked else []
    warned = (f"Warning: {warning}" for warning in (*warnings, *doubts))
    return "\n".join([*lead, *warned, *told, f"Model: {model.model.label}"])


def _single(name: str, values: Sequence[Any] | Mapping[str, Any], several: str) -> Any:
    """Return the single value of an input, or of each of its sockets.

    Raises HiggsError if a longer list is linked. several: the input that accepts such a list.
    """
    if isinstance(values, Mapping):
        return {socket: _single(socket, held, several) for socket, held in values.items()}
    if len(values) != 1:
        raise HiggsError(
            f"{name} received {len(values)} values, but only {several} can be a list. Connect a single {name}."
        )
    return values[0]
