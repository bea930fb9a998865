"""The command line: parses arguments, prints, writes files."""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from . import (
    BUILT_IN_CLIPS,
    SAMPLE_RATE,
    Book,
    BookSettings,
    CallLimits,
    CueParams,
    Engine,
    HiggsError,
    Pronunciations,
    SamplingParams,
    SpeechAPI,
    SpeechResult,
    SubtitleParams,
    TrainParams,
    Turn,
    Voice,
    adapter_files,
    built_in_clip,
    cue_lines,
    cue_summary,
    duration,
    import_optional,
    mix_speech,
    read_book,
    read_reference,
    speak_cues,
    to_srt,
    training_bytes,
    transcript_of,
    with_details,
    without_chapters,
)
from . import narrate as narrate_book
from . import train as train_voice
from .interrupt import STOPPED
from .tools.arguments import make_parser
from .tools.arriving import arriving_sentences, speak_arriving, stdin_text, to_stdout
from .tools.bench import as_text
from .tools.bench import bench as time_steps
from .tools.book_places import book_places, fault_of
from .tools.doctor import examine
from .tools.engine_choice import config_of, engine_on, engine_or_servers, named_loras, settings_of
from .tools.film import film_voices, read_film
from .tools.new_folder import new_folder, writable
from .tools.outputs import Outputs
from .tools.progress import book_bar, with_bar
from .tools.quantize_folder import quantize_folder
from .tools.text_files import cover_in, cues_in, dialogue_in, print_any_letter, pronunciations_in
from .tools.tiny import write_tiny


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. An error the user can fix is one line on stderr and code 2."""
    commands = {
        command.__name__: command for command in (say, narrate, voice, serve, doctor, bench, quantize, train, tiny)
    }
    args = make_parser().parse_args(argv)
    print_any_letter()
    try:
        return commands[args.command](args)
    except HiggsError as error:
        print(f"error: {error}", file=sys.stderr)
    except torch.cuda.OutOfMemoryError as error:
        reason = str(error).partition("\n")[0]
        print(
            "error: the GPU is out of memory. Choose --dtype int8 or a smaller --context, close other programs that "
            f"use it, or use --device cpu. ({reason})",
            file=sys.stderr,
        )
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return STOPPED
    return 2


def say(args: argparse.Namespace) -> int:
    params = _sampling(args)
    _check_voice(args)
    if sum(given is not None for given in (args.text, args.script, args.srt_in)) != 1:
        raise HiggsError("Give a text, a file with --script, or a file with --srt-in, but only one of them.")
    if args.show_text:
        return _show_text(args)
    if not args.out:
        raise HiggsError("Name a sound file with --out, such as --out hello.wav.")
    if args.codes and args.server:
        raise HiggsError("--codes needs a model on this machine. Omit --codes or --server.")
    if args.srt_in:
        return _say_cues(args, params)
    if "-" in (args.text, args.out):
        return _say_arriving(args, params)
    pronunciations, outputs = pronunciations_in(args.pronunciations), Outputs(args)
    with engine_or_servers(args) as engine:
        if args.script:
            speech = with_bar(_dialogue(engine, Path(args.script), params, args, pronunciations))
        else:
            voice = _own_voice(engine, args)
            text = pronunciations.apply(args.text)
            speech = with_bar(functools.partial(engine.speak, text, voice, params, args.scene))
        words = engine.words(speech) if outputs.need_words else None
    outputs.write(speech.wav, functools.partial(to_srt, speech, words, outputs.srt_words), speech.codes, words)
    for warning in (*speech.warnings, *speech.doubts):
        print(f"warning: {warning}", file=sys.stderr)
    for chunk in speech.spoken_again:
        print(f"spoken again: {chunk}", file=sys.stderr)
    print(
        f"{duration(speech.seconds)} of audio in {duration(speech.elapsed)}: {speech.frames_per_second:.1f} frames/s, "
        f"RTF {speech.rtf:.3f}. {speech.outcome} Backend: {speech.how}"
    )
    print(outputs.summary)
    return 0


def _show_text(args: argparse.Namespace) -> int:
    pronunciations, engine = pronunciations_in(args.pronunciations), engine_or_servers(args)
    if args.srt_in:
        sheet = cues_in(Path(args.srt_in), False, engine.planner.knows_tag).said_as(pronunciations)
        turns = [turn for cue in sheet.cues for turn in cue.turns]
    elif args.script:
        turns = dialogue_in(Path(args.script), pronunciations, engine.planner.knows_tag).turns
    else:
        turns = [Turn("", pronunciations.apply(stdin_text(sys.stdin.buffer.read()) if args.text == "-" else args.text))]
    for turn in turns:
        print(f"{turn.speaker}: " * bool(turn.speaker) + engine.planner.read_as(turn.text))
    return 0


def _say_arriving(args: argparse.Namespace, params: SamplingParams) -> int:
    """Speak text from stdin while it arrives, or any text to stdout."""
    if args.text is None or args.codes or args.srt_out or args.srt_words or args.words or args.mouth:
        raise HiggsError(
            "- goes with a text only. Omit --script, --srt-out, --srt-words, --words, --mouth and --codes, or give a "
            "text and a file for --out instead of -."
        )
    pronunciations, outputs = pronunciations_in(args.pronunciations), None if args.out == "-" else Outputs(args)
    texts = arriving_sentences(functools.partial(os.read, sys.stdin.fileno())) if args.text == "-" else [args.text]
    spoken, left_out = [], []
    try:
        with engine_or_servers(args) as engine:
            given = map(pronunciations.apply, texts), _own_voice(engine, args), params, args.scene
            for speech in speak_arriving(engine, *given, None if outputs else to_stdout, left_out):
                spoken.append(speech)
        if not spoken:
            raise HiggsError("There is nothing to speak: the text has no letters or digits.")
    finally:  # an error, or an interrupt, loses nothing of what was spoken before
        starts = itertools.accumulate((speech.seconds for speech in spoken), initial=0.0)
        doubts = [doubt.moved(at) for speech, at in zip(spoken, starts, strict=False) for doubt in speech.doubts]
        warnings = [*left_out, *(warning for speech in spoken for warning in speech.warnings)]
        for warning in (*dict.fromkeys(warnings), *doubts):
            print(f"warning: {warning}", file=sys.stderr)
        if outputs and spoken:
            outputs.write(torch.cat([speech.wav for speech in spoken]), str)
            print(outputs.summary)
    return 0


def _say_cues(args: argparse.Namespace, params: SamplingParams) -> int:
    if args.codes:
        raise HiggsError("--codes cannot be used with --srt-in. Omit it.")
    fit = CueParams(not args.no_faster, args.stretch, not args.no_shift, args.run_on, args.lower_bed)
    path = Path(args.srt_in)
    film, bed = (read_film(given) if given else None for given in (args.film, args.bed))
    engine = engine_or_servers(args)
    sheet, pronunciations = (
        cues_in(path, film is not None, engine.planner.knows_tag),
        pronunciations_in(args.pronunciations),
    )
    below, rate = (torch.from_numpy(bed[0]), bed[1]) if bed else (None, SAMPLE_RATE)
    outputs = Outputs(args, rate, 1 if below is None else len(below))
    with engine:
        voices = _voices(engine, sheet.head, path)
        voices |= {"": voice} if (voice := _own_voice(engine, args)) else {}
        if args.voice and "" not in sheet.speakers:
            print("warning: --voice was not used, because every cue has a name.", file=sys.stderr)
        if film:
            without = [speaker for speaker in sheet.speakers if speaker not in voices]
            voices |= film_voices(engine, sheet, film, without, args.translated)
        cues = sheet.said_as(pronunciations).cues
        how = {"words": outputs.need_words, "scene": args.scene, "even": not args.uneven}
        speech = with_bar(functools.partial(speak_cues, engine, cues, voices, params, fit, **how))
    seconds = max(speech.seconds, film[0].shape[1] / film[1] if film else 0.0)
    wav = mix_speech(speech.sounds, seconds, below, rate, fit.lower_bed)
    outputs.write(wav, functools.partial(speech.to_srt, outputs.srt_words), words=speech.words)
    for warning in (*sheet.warnings, *speech.warnings, *speech.doubts):
        print(f"warning: {warning}", file=sys.stderr)
    print("\n".join([*cue_lines(speech), f"{cue_summary(speech)} {speech.outcome}", outputs.summary]))
    return 0


def narrate(args: argparse.Namespace) -> int:
    """Speak books one after another. Of several, a broken one is named, the others go on, and the code is 2."""
    _check_voice(args)
    places = book_places(args.book, args.out)
    engine, is_alone = engine_on(args, config_of(args)), len(places) == 1
    failed: list[Path] = []
    books: list[tuple[Path, Path, Book]] = []
    for path, folder in places:
        with fault_of(path, failed, is_alone):
            books.append((path, folder, _book(path, args, engine)))
    with engine if books else contextlib.nullcontext():
        own = {"": _voice(engine, args.voice, args.transcript)} if args.voice and books else {}
        for path, folder, book in books:
            if not is_alone:
                print(f"{path.name}, into {folder}", file=sys.stderr)
            with fault_of(path, failed, is_alone):
                _narrate_one(engine, book, folder, _voices(engine, book.head, path) | own, args)
    if failed:
        print(f"{len(failed)} of {len(places)} books failed. Run again to continue.", file=sys.stderr)
    return 2 if failed else 0


def _book(path: Path, args: argparse.Namespace, engine: SpeechAPI) -> Book:
    book = without_chapters(read_book(path, args.script, (), engine.planner.knows_tag), args.leave_out)
    if book.left_out:
        print(f"left out: {', '.join(book.left_out)}", file=sys.stderr)
    book = with_details(book, "\n".join(args.detail), cover_in(args.cover), args.credits)
    return book.said_as(pronunciations_in(args.pronunciations))


def _narrate_one(
    engine: SpeechAPI, book: Book, folder: Path, voices: dict[str, Voice], args: argparse.Namespace
) -> None:
    try:
        with book_bar() as on_progress:
            srt_words = SubtitleParams(args.srt_words).srt_words
            words = engine.words if args.words or srt_words else None
            how = args.scene, args.format, not args.uneven, words, srt_words, engine.devices, args.loudness
            report = narrate_book(engine, book, folder, voices, _sampling(args), BookSettings(*how), on_progress)
    except KeyboardInterrupt:
        print(f"Finished speech is kept in {folder}. Run the same command again to continue.", file=sys.stderr)
        raise
    for file in report.files:
        print(f"{folder / str(file)}")
    for warning in report.messages:
        print(f"warning: {warning}", file=sys.stderr)
    for chunk in report.spoken_again:
        print(f"spoken again: {chunk}", file=sys.stderr)
    print(f"{duration(report.seconds)} of audio in {duration(report.elapsed)}. {report.outcome} Backend: {report.how}")


def voice(args: argparse.Namespace) -> int:
    out = writable(args.out, ".safetensors")
    made = _voice(Engine(config_of(args)), args.reference, args.transcript)
    missing = () if made.transcript else ("cloning works less well without a --transcript.",)
    for warning in (*made.warnings, *missing):
        print(f"warning: {warning}", file=sys.stderr)
    path = made.save(out)
    print(f"saved a voice with {made.seconds:.2f} s of reference audio in {path}")
    return 0


def serve(args: argparse.Namespace) -> int:
    """Serve speech over HTTP until the process is stopped."""
    import_optional("aiohttp.web", "Application")  # a one-line error if it is missing
    from .serve.serve import ServeSettings
    from .serve.serve import serve as run

    limits = CallLimits(args.max_characters, args.max_calls, args.max_items, args.max_seconds)
    named = named_loras(args)
    config = replace(config_of(args), context=args.context, batch=args.batch)
    adapted = {name: engine_on(args, replace(config, adapters=(*config.adapters, one))) for name, one in named.items()}
    with engine_on(args, config) as engine:
        place, who = (args.host, args.port, args.voices, args.api_key), tuple(args.host_name)
        settings = ServeSettings(*place, limits, args.access_log, who, args.loudness)
        run(engine, settings, print, adapted)
    return 0


def doctor(args: argparse.Namespace) -> int:
    """Describe a checkpoint folder. Returns exit code 1 if something in it needs repair."""
    report = examine(Path(args.folder))
    print(json.dumps(report.as_dict(), indent=2) if args.json else report.as_text())
    return 1 if report.problems else 0


def bench(args: argparse.Namespace) -> int:
    result = time_steps(settings_of(args, args.model or ""))
    print(as_text(result))
    if args.json:
        print(json.dumps(result))
    return 0


def tiny(args: argparse.Namespace) -> int:
    folder = Path(args.folder)
    with new_folder(folder) as partial:
        write_tiny(partial, args.family, seed=args.seed)
    print(folder)
    return 0


def train(args: argparse.Namespace) -> int:
    params = TrainParams(args.steps, args.learning_rate, args.rank, args.seed, args.codes_in_full, args.names)
    whisper, args.whisper = args.whisper, None
    config = config_of(args)
    print(f"Training takes about {training_bytes(config, params) / 2**30:.1f} GiB of memory.", file=sys.stderr)
    try:
        with book_bar() as on_progress:
            report = train_voice(config, args.recordings, args.out, params, whisper, on_progress)
    except KeyboardInterrupt:
        kept = f"{args.out} is the last LoRA that was kept. " if adapter_files(args.out)[0].is_file() else ""
        print(f"{kept}Run the same command again to continue.", file=sys.stderr)
        raise
    for clip, why in report.refused.items():
        print(f"left out: {clip}: {why}", file=sys.stderr)
    for warning in report.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"{report}\n{report.out}")
    return 0


def quantize(args: argparse.Namespace) -> int:
    out = quantize_folder(Path(args.folder), Path(args.out), args.dtype)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / 1e6:,.0f} MB")
    return 0


def _check_voice(args: argparse.Namespace):
    """Raise HiggsError if the options of `say` and `narrate` for voices do not go together."""
    if args.script and args.voice:
        raise HiggsError(
            "--voice cannot be used with --script. Name voices at the top of the script, as in: Alice = alice.wav"
        )
    if args.transcript and not args.voice:
        raise HiggsError("--transcript needs a clip. Add the clip with --voice, or omit --transcript.")


def _sampling(args: argparse.Namespace) -> SamplingParams:
    return SamplingParams(
        seed=args.seed,
        temperature=0.0 if args.greedy else args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_frames=args.max_frames,
        retries=args.retries,
        check=not args.no_check,
        paragraph_gap=args.paragraph_gap,
        turn_gap=args.turn_gap,
        ban_specials=not args.allow_specials,
    )


def _own_voice(engine: SpeechAPI, args: argparse.Namespace) -> Voice | None:
    """Return the voice of --voice, unless it is a server's."""
    is_theirs = args.server and not Path(args.voice or "").is_file()
    return _voice(engine, args.voice, args.transcript) if args.voice and not is_theirs else None


def _voices(engine: SpeechAPI, head: Mapping[str, str], file: Path) -> dict[str, Voice]:
    """Return the voices that a file's head names: built-in ones, or files beside it."""
    return {name: _voice(engine, voice, None, file.parent) for name, voice in head.items()}


def _voice(engine: SpeechAPI, name: str, transcript: str | None, folder: Path = Path()) -> Voice:
    """Load a voice file, or encode a clip: a path from `folder`, or the name of a built-in voice."""
    path = folder / name
    if not path.is_file() and not (path := built_in_clip(name)):
        known = ", ".join(sorted(clip.stem for clip in BUILT_IN_CLIPS.glob("*.flac")))
        raise HiggsError(
            f"There is no file {folder / name}, and no built-in voice of that name. Give the path of a clip or a saved "
            f"voice, or one of: {known}."
        )
    if path.suffix.lower() == ".safetensors":
        if transcript:
            raise HiggsError(f"{path} is a saved voice that has its own transcript. Omit --transcript.")
        return Voice.load(path)
    return engine.encode_voice(*read_reference(path), transcript or transcript_of(path)[0], path.stem)


def _dialogue(
    engine: SpeechAPI, path: Path, params: SamplingParams, args: argparse.Namespace, pronunciations: Pronunciations
) -> Callable[..., SpeechResult]:
    """Return a function that speaks a script with the voices in its head: files, relative to the script."""
    dialogue = dialogue_in(path, pronunciations, engine.planner.knows_tag)
    for warning in dialogue.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    voices = _voices(engine, dialogue.head, path)
    return functools.partial(engine.speak_turns, dialogue.turns, voices, params, args.scene, even=not args.uneven)
