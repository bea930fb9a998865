"""What the terminal's commands take. Does nothing itself."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..config import (
    BOOK_FORMATS,
    BOOK_GAP,
    DEFAULT_GRAPHS,
    DTYPES,
    GRAPHS,
    KERNELS,
    QUANTIZED,
    CueParams,
    EngineConfig,
    SamplingParams,
    range_of,
)
from .tiny import FAMILIES


def make_parser() -> argparse.ArgumentParser:
    """The commands and their options, with the defaults and ranges of config.py; `command` is the one that is given."""
    parser = argparse.ArgumentParser(prog="python -m engine", description="Higgs Audio v2 and Higgs TTS 3.")
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    _say_parser(commands)
    _narrate_parser(commands)
    _voice_parser(commands)
    command = commands.add_parser("doctor", help="report what a checkpoint folder holds and what is wrong with it")
    command.add_argument("folder")
    command.add_argument("--json", action="store_true", help="print JSON")
    _bench_parser(commands)
    _serve_parser(commands)
    command = commands.add_parser("quantize", help="write a checkpoint in 8 or 4 bits, which loads as it is")
    command.add_argument("folder")
    command.add_argument("out", help="a new folder")
    command.add_argument("--dtype", choices=QUANTIZED, required=True)
    command = commands.add_parser("tiny", help="write a tiny checkpoint with random weights, for tests")
    command.add_argument("folder")
    command.add_argument("--family", choices=FAMILIES, required=True)
    command.add_argument("--seed", type=int, default=0)
    return parser


def _say_parser(commands):
    command = commands.add_parser("say", help="speak text into a sound file")
    command.add_argument("text", nargs="?", help="what to say; [pause 1.5] is that many seconds of silence")
    command.add_argument("--script", metavar="FILE.txt", help="a dialogue instead: lines such as Alice: Hello")
    command.add_argument("--uneven", action="store_true", help="leave turns and cues as loud as they are spoken")
    command.add_argument("--out", required=True, metavar="FILE.wav|.flac|.mp3|.ogg")
    _voice_arguments(command)
    _sampling_arguments(command)
    _sampling_argument(command, "paragraph_gap", "seconds of silence between paragraphs")
    _sampling_argument(command, "turn_gap", "seconds of silence between turns of a --script")
    command.add_argument("--allow-specials", action="store_true", help="allow stray begin and end codes")
    command.add_argument("--srt-out", metavar="FILE.srt", help="also write subtitles, a cue a sentence")
    command.add_argument("--codes", metavar="FILE.npy", help="also write the codes, [frames, 8] int64")
    _cue_arguments(command)
    _way_arguments(command)
    _model_arguments(command)


def _cue_arguments(command):
    group = command.add_argument_group("subtitles", "--srt-in speaks each cue at its time; names as in a script")
    group.add_argument("--srt-in", metavar="FILE.srt", help="SRT or VTT instead of a text")
    group.add_argument("--film", metavar="FILE", help="the film, or its sound: its speakers lend their voices")
    group.add_argument("--translated", action="store_true", help="the film speaks another language than the subtitles")
    group.add_argument("--bed", metavar="FILE", help="sound below the speech: a film or a sound file")
    _number_argument(group, CueParams, "lower_bed", "dB that it is lower while somebody speaks")
    group.add_argument("--no-faster", action="store_true", help="use no speed tags for what does not fit")
    _number_argument(group, CueParams, "stretch", "make what does not fit so many times as fast at most")
    group.add_argument("--no-shift", action="store_true", help="let no cue begin late, also while another is spoken")
    _number_argument(group, CueParams, "run_on", "seconds that a cue may run on where none follows")


def _narrate_parser(commands):
    command = commands.add_parser("narrate", help="speak a book into a folder; go on where it was stopped")
    command.add_argument("book", type=Path, metavar="BOOK.txt|.md|.epub")
    command.add_argument("--script", action="store_true", help="the book is a script: lines such as Alice: Hello")
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    command.add_argument(
        "--format", choices=BOOK_FORMATS, default=BOOK_FORMATS[0], help="a file a chapter, or one .m4b with chapters"
    )
    command.add_argument("--uneven", action="store_true", help="leave paragraphs as loud as they are spoken")
    _voice_arguments(command)
    _sampling_arguments(command)
    low, high, _ = range_of(SamplingParams, "paragraph_gap")
    text = f"seconds of silence between paragraphs; {low} to {high}, default {BOOK_GAP}"
    command.add_argument("--paragraph-gap", type=float, default=BOOK_GAP, help=text)
    command.set_defaults(turn_gap=BOOK_GAP, allow_specials=False)
    group = command.add_argument_group("several machines", "workers of a Ray cluster, one a GPU; needs pip install ray")
    group.add_argument("--ray", nargs="?", const="", metavar="ADDRESS", help="without one: this machine's cluster")
    group.add_argument("--ray-actors", type=int, default=0, metavar="N", help="so many workers instead")
    _way_arguments(command)
    _model_arguments(command)


def _voice_arguments(command):
    command.add_argument("--voice", metavar="REF.wav|VOICE.safetensors", help="clip to clone, or a saved voice")
    command.add_argument("--transcript", help="what the clip says")
    command.add_argument("--pronunciations", type=Path, metavar="FILE.txt", help="lines such as Nguyen = Win")
    command.add_argument("--scene", help="v2 only: description of the recording")


def _sampling_arguments(command):
    _sampling_argument(command, "seed")
    _sampling_argument(command, "temperature")
    _sampling_argument(command, "top_p")
    _sampling_argument(command, "top_k")
    command.add_argument("--greedy", action="store_true", help="always take the most likely code")
    _sampling_argument(command, "max_frames", "limit a chunk of text; 25 a second")
    _sampling_argument(command, "retries", "speak a chunk again that came out badly, so many times at most")


def _sampling_argument(command, name, *words):
    _number_argument(command, SamplingParams, name, *words)


def _number_argument(command, settings, name, *words):
    """The option of a number in the settings, with that field's default and range."""
    default, (low, high, _) = getattr(settings, name), range_of(settings, name)
    text = "; ".join([*words, f"{low} to {high}, default {default}"])
    command.add_argument("--" + name.replace("_", "-"), type=type(default), default=default, help=text)


def _voice_parser(commands):
    command = commands.add_parser("voice", help="encode a reference clip once into a voice file")
    command.add_argument("reference", metavar="REF.wav")
    command.add_argument("--transcript", help="what the clip says")
    command.add_argument("--out", required=True, metavar="VOICE.safetensors")
    _model_arguments(command)


def _bench_parser(commands):
    command = commands.add_parser("bench", help="time the decode step against the device's memory bandwidth")
    command.add_argument("--json", action="store_true", help="also print one line of JSON, last")
    _way_arguments(command)
    _model_arguments(
        command, "checkpoint folder; without it random weights in the published shapes, on a CPU the embedded model"
    )


def _serve_parser(commands):
    command = commands.add_parser("serve", help="answer programs that speak through OpenAI's /v1/audio/speech")
    command.add_argument("--host", default="127.0.0.1", help="address; any but this machine's own needs a key")
    command.add_argument("--port", type=int, default=8000)
    command.add_argument("--voices", type=Path, metavar="DIR", help="folder of saved voices and clips")
    command.add_argument("--api-key", default="", metavar="KEY", help="what callers must send; or HIGGS_TTS_API_KEY")
    command.add_argument("--max-characters", type=int, default=20_000, metavar="N", help="of one text")
    command.add_argument("--max-calls", type=int, default=256, metavar="N", help="at a time, waiting ones included")
    _number_argument(command, EngineConfig, "batch", "calls that are spoken at a time; 0: as many as fit")
    _number_argument(command, EngineConfig, "context", "positions of one text, its voice and its speech")
    _way_arguments(command)
    _model_arguments(command)


def _way_arguments(command):
    command.add_argument("--lora", action="append", metavar="FILE[:STRENGTH]", help="a LoRA to merge, once or more")
    command.add_argument(
        "--kernels", choices=KERNELS, default=EngineConfig.kernels, help="torch: no CUDA kernels of ours"
    )
    command.add_argument("--graphs", choices=GRAPHS, default=DEFAULT_GRAPHS, help="CUDA graphs; off is slower")


def _model_arguments(command, model="checkpoint folder; without it the embedded one speaks"):
    command.add_argument("--model", metavar="DIR", help=model)
    command.add_argument("--codec", metavar="DIR", help="codec folder, where the checkpoint holds none")
    several = 'auto, cpu, cuda:0, several as in cuda:0,cuda:2, or "all GPUs"'
    command.add_argument("--device", default=EngineConfig.device, help=several)
    command.add_argument("--dtype", choices=DTYPES, default=EngineConfig.dtype)
