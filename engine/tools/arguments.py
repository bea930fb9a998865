"""Command-line arguments. Has no side effects."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..audio.mastering import AS_IS, FRESH_TARGET, TARGETS
from ..core.config import (
    BOOK_FORMATS,
    BOOK_GAP,
    DEFAULT_GRAPHS,
    DTYPES,
    GRAPHS,
    KERNELS,
    LORA_NAMES,
    QUANTIZED,
    CallLimits,
    CueParams,
    EngineConfig,
    SamplingParams,
    SubtitleParams,
    TrainParams,
    range_of,
)
from .tiny import FAMILIES


def make_parser() -> argparse.ArgumentParser:
    """Return the parser, with defaults and ranges from config.py. `command` holds the chosen command."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="Speak with Higgs TTS 3 and Higgs Audio v2.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    _say_parser(commands)
    _narrate_parser(commands)
    _voice_parser(commands)
    command = commands.add_parser("doctor", help="show what is in a checkpoint folder, and any problems")
    command.add_argument("folder", help="checkpoint folder")
    command.add_argument("--json", action="store_true", help="print JSON")
    _bench_parser(commands)
    _serve_parser(commands)
    command = commands.add_parser("quantize", help="save a checkpoint in 8 or 4 bits")
    command.add_argument("folder", help="checkpoint folder")
    command.add_argument("out", help="a new folder")
    command.add_argument("--dtype", choices=QUANTIZED, required=True, help="format of the weights")
    _train_parser(commands)
    command = commands.add_parser("tiny", help="write a tiny checkpoint with random weights, for tests")
    command.add_argument("folder", help="a new folder")
    command.add_argument("--family", choices=FAMILIES, required=True, help="layout: Higgs Audio v2 or Higgs TTS 3")
    command.add_argument("--seed", type=int, default=0, help="seed of the random weights; default 0")
    return parser


def _say_parser(commands):
    command = commands.add_parser("say", help="speak a text, a script or subtitles into a sound file")
    command.add_argument(
        "text", nargs="?", help="the text to speak; [pause 1.5] adds 1.5 seconds of silence; - reads stdin"
    )
    command.add_argument(
        "--script", metavar="FILE.txt", help="speak a dialogue instead, with lines such as Alice: Hello"
    )
    command.add_argument("--uneven", action="store_true", help="keep the natural loudness of turns and cues")
    _loudness_argument(command, "the file", FRESH_TARGET)
    command.add_argument(
        "--out",
        metavar="FILE.wav|.flac|.mp3|.ogg",
        help="sound file to write; its suffix sets the format; - writes samples to stdout (24 kHz, 16 bits, mono)",
    )
    command.add_argument(
        "--server",
        action="append",
        metavar="HOST:PORT",
        help="speak on a server instead of this machine; repeat for several; set the key in HIGGS_TTS_API_KEY",
    )
    _voice_arguments(command)
    _sampling_arguments(command)
    _sampling_argument(command, "paragraph_gap", "seconds of silence between paragraphs")
    _sampling_argument(command, "turn_gap", "seconds of silence between turns of a --script")
    command.add_argument("--allow-specials", action="store_true", help="allow begin and end codes inside speech")
    command.add_argument("--srt-out", metavar="FILE.srt", help="also write subtitles, one cue per sentence")
    _word_time_arguments(command)
    command.add_argument("--words", metavar="FILE.json", help="also write when each word is heard")
    command.add_argument("--mouth", metavar="FILE.json", help="also write mouth shapes, as Rhubarb Lip Sync does")
    command.add_argument(
        "--show-text", action="store_true", help="print what will be said, and exit without loading the weights"
    )
    command.add_argument("--codes", metavar="FILE.npy", help="also write the codes, [frames, 8] int64")
    _cue_arguments(command)
    _way_arguments(command)
    _model_arguments(command)


def _word_time_arguments(command):
    _number_argument(command, SubtitleParams, "srt_words", "most words of a subtitle cue; 0: one cue per sentence")
    _whisper_argument(command)


def _whisper_argument(command):
    help_text = "Whisper folder in transformers' format, for times of words if the model itself does not tell them"
    command.add_argument("--whisper", metavar="DIR", help=help_text)


def _cue_arguments(command):
    group = command.add_argument_group(
        "subtitles", "with --srt-in; each cue is spoken at its time, and names work as in a script"
    )
    group.add_argument("--srt-in", metavar="FILE.srt", help="speak an SRT or VTT file")
    group.add_argument("--film", metavar="FILE", help="the film or its sound, to clone its speakers")
    group.add_argument(
        "--translated", action="store_true", help="the film and the subtitles are in different languages"
    )
    group.add_argument("--bed", metavar="FILE", help="background under the speech: a film or a sound file")
    _number_argument(group, CueParams, "lower_bed", "dB to lower the background during speech")
    group.add_argument("--no-faster", action="store_true", help="do not use speed tags for cues that are too long")
    _number_argument(group, CueParams, "stretch", "maximum speed-up of speech that is still too long; 1 disables it")
    group.add_argument("--no-shift", action="store_true", help="start every cue on time, even if speech overlaps")
    _number_argument(group, CueParams, "run_on", "seconds that speech may run past its cue if no other cue starts")


def _narrate_parser(commands):
    command = commands.add_parser("narrate", help="speak books into a folder, or continue them")
    text = "the book to speak; several, or a folder of them, get a folder each in --out"
    command.add_argument("book", nargs="+", type=Path, metavar="BOOK.txt|.md|.epub", help=text)
    command.add_argument("--script", action="store_true", help="the book is a script, with lines such as Alice: Hello")
    command.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder for the chapters; if it holds an unfinished book, continue it",
    )
    command.add_argument(
        "--format",
        choices=BOOK_FORMATS,
        default=BOOK_FORMATS[0],
        help="one file per chapter, or one .m4b with chapters",
    )
    text = (
        "title, author, narrator, year, language, genre or description, in place of the book's own, or the text of its "
        "spoken credits, opening or closing; repeat for more"
    )
    command.add_argument("--detail", action="append", default=[], metavar="NAME=VALUE", help=text)
    text = "speak title, author and narrator as a first chapter, and the end as a last"
    command.add_argument("--credits", action="store_true", help=text)
    command.add_argument("--cover", type=Path, metavar="FILE.jpg|.png", help="cover in mp3 and m4b")
    command.add_argument("--leave-out", default="", metavar="1,3-5", help="numbers of the chapters that are not read")
    command.add_argument("--uneven", action="store_true", help="keep the natural loudness of paragraphs")
    _loudness_argument(command, "each chapter", FRESH_TARGET)
    _voice_arguments(command)
    _sampling_arguments(command)
    low, high, _ = range_of(SamplingParams, "paragraph_gap")
    text = f"seconds of silence between paragraphs; {low} to {high}, default {BOOK_GAP}"
    command.add_argument("--paragraph-gap", type=float, default=BOOK_GAP, help=text)
    _word_time_arguments(command)
    command.add_argument(
        "--words", action="store_true", help="also write when each word is heard, a file per chapter; --srt-words does"
    )
    command.set_defaults(turn_gap=BOOK_GAP, allow_specials=False)
    _ray_arguments(command)
    _way_arguments(command)
    _model_arguments(command)


def _loudness_argument(command, target_of, default):
    text = f"loudness of {target_of}; ACX: -20 dB RMS with peaks below -3 dB, for audiobooks; default {default}"
    command.add_argument("--loudness", choices=TARGETS, default=default, help=text)


def _ray_arguments(command):
    group = command.add_argument_group(
        "several machines", "a Ray cluster, with one worker per GPU; needs pip install ray"
    )
    group.add_argument(
        "--ray", nargs="?", const="", metavar="HOST:PORT", help="address of the cluster (default: this machine)"
    )
    group.add_argument(
        "--ray-actors", type=int, default=0, metavar="N", help="number of workers (default: one per GPU)"
    )


def _voice_arguments(command):
    help_text = "built-in voice such as amber, clip to clone, or saved voice"
    command.add_argument("--voice", metavar="NAME|REF.wav|VOICE.safetensors", help=help_text)
    command.add_argument("--transcript", help="the words spoken in the clip (default: those in REF.txt)")
    command.add_argument(
        "--pronunciations", type=Path, metavar="FILE.txt", help="pronunciations, one per line, such as Nguyen = Win"
    )
    command.add_argument("--scene", help="v2 only: description of the recording")


def _sampling_arguments(command):
    _sampling_argument(command, "seed", "another seed gives another take")
    _sampling_argument(command, "temperature", "randomness; lower is steadier, higher is livelier")
    _sampling_argument(command, "top_p", "limit choices to the likeliest codes, up to this total probability")
    _sampling_argument(command, "top_k", "limit choices to this many of the likeliest codes; 0 disables the limit")
    command.add_argument("--greedy", action="store_true", help="always take the most likely code")
    _sampling_argument(command, "max_frames", "longest speech per chunk, in frames (25 per second)")
    _sampling_argument(command, "retries", "maximum retries for a bad chunk or sentence")
    command.add_argument("--no-check", action="store_true", help="do not check that each word is said once")


def _sampling_argument(command, name, *words):
    _number_argument(command, SamplingParams, name, *words)


def _number_argument(command, settings, name, *words):
    """Add an option for a numeric setting, with the field's default and range."""
    default, (low, high, _) = getattr(settings, name), range_of(settings, name)
    text = "; ".join([*words, f"{low} to {high}, default {default}"])
    command.add_argument("--" + name.replace("_", "-"), type=type(default), default=default, help=text)


def _voice_parser(commands):
    command = commands.add_parser("voice", help="make a voice file from a clip")
    command.add_argument("reference", metavar="REF.wav", help="5 to 30 seconds of clear speech by one person")
    command.add_argument("--transcript", help="the words spoken in the clip (default: those in REF.txt)")
    command.add_argument("--out", required=True, metavar="VOICE.safetensors", help="voice file to write")
    _model_arguments(command)


def _bench_parser(commands):
    command = commands.add_parser("bench", help="measure the speed of this machine")
    command.add_argument("--json", action="store_true", help="also print the results as JSON, on the last line")
    _way_arguments(command)
    _model_arguments(
        command, "checkpoint folder (default: random weights in the published shapes; on a CPU, the embedded model)"
    )


def _train_parser(commands):
    command = commands.add_parser("train", help="train a LoRA on recordings of one voice, or continue a training")
    help_text = "folder of clips with transcripts (.txt, .srt, .vtt or a CSV), or one recording"
    command.add_argument("recordings", type=Path, metavar="FOLDER", help=help_text)
    command.add_argument(
        "--out", type=Path, required=True, metavar="LORA.safetensors|FOLDER", help="LoRA to write, in PEFT's format"
    )
    _number_argument(command, TrainParams, "steps", "optimiser steps; 0: by the minutes of speech")
    _number_argument(command, TrainParams, "learning_rate", "highest learning rate; 0: by the minutes of speech")
    _number_argument(command, TrainParams, "rank", "rank of the LoRA; a higher one learns more and takes more memory")
    _number_argument(command, TrainParams, "seed", "another seed gives another training")
    help_text = "also train the code embedding and the head, all of their numbers, which takes more memory"
    command.add_argument("--codes-in-full", action="store_true", help=help_text)
    help_text = "names of the LoRA's tensors: the model's, or those of Higgs TTS 3's transformers port"
    command.add_argument("--names", choices=LORA_NAMES, default=TrainParams.names, help=help_text)
    help_text = "Whisper folder in transformers' format; it writes down clips without text, and hears misread words"
    command.add_argument("--whisper", type=Path, metavar="DIR", help=help_text)
    command.add_argument("--graphs", choices=GRAPHS, default=DEFAULT_GRAPHS, help="CUDA graphs; off is slower")
    _model_arguments(command)


def _serve_parser(commands):
    command = commands.add_parser(
        "serve",
        help="serve speech through OpenAI's API, /v1/audio/speech, and text that streams in, /v1/audio/speech/stream",
    )
    command.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; any other than the default needs a key"
    )
    command.add_argument("--port", type=int, default=8000, help="port to listen on; default 8000")
    command.add_argument(
        "--host-name",
        action="append",
        default=[],
        metavar="NAME",
        help="name by which callers without a key may call this server; repeat for several",
    )
    command.add_argument("--voices", type=Path, metavar="DIR", help="folder of saved voices and clips")
    command.add_argument(
        "--api-key", default="", metavar="KEY", help="key that callers must send; or set HIGGS_TTS_API_KEY"
    )
    _number_argument(command, CallLimits, "max_characters", "longest text to accept, in characters")
    _number_argument(command, CallLimits, "max_calls", "maximum open calls, including waiting calls")
    _number_argument(command, CallLimits, "max_items", "maximum texts in a batch; each counts as a call")
    _number_argument(command, CallLimits, "max_seconds", "longest time for a call, waiting included; 0: no limit")
    _loudness_argument(command, "answers that are sent whole, unless the call has its own", AS_IS)
    command.add_argument(
        "--access-log", action="store_true", help="write a line per call to stderr: caller, path, status, seconds"
    )
    _number_argument(command, EngineConfig, "batch", "maximum chunks generated together; 0: as many as fit")
    _number_argument(command, EngineConfig, "context", "room for one text, its voice and its speech, in tokens")
    help_text = "start streams five frames sooner: their first 120 ms are then not exact to the bit"
    command.add_argument("--early", action="store_true", help=help_text)
    _whisper_argument(command)
    _ray_arguments(command)
    _way_arguments(
        command, "[NAME=]FILE[:STRENGTH]", "LoRA to add, or with a NAME one that calls choose as the model MODEL:NAME"
    )
    _model_arguments(command)


def _way_arguments(command, lora="FILE[:STRENGTH]", lora_help="LoRA to add"):
    command.add_argument("--lora", action="append", metavar=lora, help=f"{lora_help}; repeat for several")
    command.add_argument(
        "--partial-lora", action="store_true", help="load LoRAs without the tensors that have no place in the model"
    )
    command.add_argument(
        "--kernels", choices=KERNELS, default=EngineConfig.kernels, help="torch: do not use this pack's CUDA kernels"
    )
    command.add_argument("--graphs", choices=GRAPHS, default=DEFAULT_GRAPHS, help="CUDA graphs; off is slower")


def _model_arguments(command, model="checkpoint folder (default: the embedded model)"):
    command.add_argument("--model", metavar="DIR", help=model)
    command.add_argument("--codec", metavar="DIR", help="codec folder, if the checkpoint has none")
    several = 'auto, cpu, cuda:0, several such as cuda:0,cuda:2, or "all GPUs"'
    command.add_argument("--device", default=EngineConfig.device, help=several)
    command.add_argument(
        "--dtype",
        choices=DTYPES,
        default=EngineConfig.dtype,
        help="precision of the weights; int8 and int4 take less memory",
    )
