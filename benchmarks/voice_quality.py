"""How well the embedded checkpoint speaks: intelligibility, cloning, ends and speed, on the CPU.

    python benchmarks/voice_quality.py --write

Needs benchmarks/requirements.txt, and Debian's flite and espeak-ng for the voices it is held against.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import sys

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from common import commit  # noqa: E402
from hearing import RECOGNISERS, Speakers, longest_silence, pitch, word_errors  # noqa: E402

from engine import SAMPLE_RATE, Engine, EngineConfig, SamplingParams  # noqa: E402
from training import corpus  # noqa: E402
from training.voices import synthesise  # noqa: E402

HOME = "slt"  # who speaks without a reference
CLONED = ("rms", "awb", "kal", "slt", "slt-1", "rms-7", "awb-6", "kal16-6", "en-us-f3", "en-us-m3")
REFERENCES = 20
SAMPLES = 10  # clips a speaker by which the classifier knows it
LONG_TEXT = 14  # sentences
WINDOW = 4 * SAMPLE_RATE
RESULT = ROOT / "benchmarks" / "results" / "voice_quality.json"


def plain(text: str) -> str:
    """A sentence without tags, for clips that no tag should shape."""
    return " ".join(corpus.TAG.sub(" ", text).split())


def intelligibility(engine: Engine, texts: list[str], params: SamplingParams, recognisers: dict) -> dict:
    """Says every sentence, and has it heard beside the source voice's."""
    errors = {name: [0, 0] for name in recognisers}
    of_source = {name: [0, 0] for name in recognisers}
    limit = cut = silent = 0
    spent = spoken = 0.0
    heard = []
    for number, text in enumerate(texts):
        speech = engine.speak(text, params=params)
        source = synthesise(HOME, text)
        spent, spoken = spent + speech.elapsed, spoken + speech.seconds
        ratio = len(speech.wav) / len(source)
        limit += speech.stopped != "end of speech"
        cut += not 1 / 1.5 <= ratio <= 1.5
        silent += longest_silence(speech.wav) > 1.5
        entry = {"text": text, "length_of_source": round(ratio, 2)}
        for name, recogniser in recognisers.items():
            for wav, total, key in ((speech.wav, errors, name), (source, of_source, f"{name}, source")):
                entry[key] = recogniser(wav)
                for i, count in enumerate(word_errors(text, entry[key])):
                    total[name][i] += count
        heard.append(entry)
        print(f"{number + 1}/{len(texts)} {entry}", file=sys.stderr)
    rates = {name: round(wrong / count, 4) for name, (wrong, count) in errors.items()}
    source_rates = {name: round(wrong / count, 4) for name, (wrong, count) in of_source.items()}
    first = next(iter(recognisers))
    return {
        "sentences": len(texts),
        "wer": rates[first],
        "wer_source": source_rates[first],
        "recogniser": recognisers[first].name,
        "others": {name: {"wer": rates[name], "wer_source": source_rates[name]} for name in list(rates)[1:]},
        "ran_to_limit": limit,
        "cut_short": cut,
        "long_silence": silent,
        "rtf_cpu": round(spent / spoken, 3),
        "heard": heard,
    }


def demo(engine: Engine, recognisers: dict) -> dict:
    """What `make demo` says, and what is heard of it."""
    (text,) = re.findall(r'engine say "(.*?)"', (ROOT / "Makefile").read_text(encoding="utf-8"))
    wav = engine.speak(text).wav
    return {"demo": {"text": text, **{name: recogniser(wav) for name, recogniser in recognisers.items()}}}


def cloning(engine: Engine, texts: list[str], params: SamplingParams, speakers: Speakers, references: int) -> dict:
    """Clones references of several speakers, half of them with their transcript; the clone says another sentence."""
    close = right = 0
    clones = []
    for number in range(references):
        speaker, said, text = CLONED[number % len(CLONED)], texts[2 * number], texts[2 * number + 1]
        clip = synthesise(speaker, said)
        voice = engine.encode_voice(clip, SAMPLE_RATE, said if number % 4 < 2 else None, speaker)
        speech = engine.speak(text, voice, params)
        ratio = pitch(speech.wav) / max(pitch(clip), 1.0)
        who = speakers(speech.wav)
        close += abs(ratio - 1) <= 0.15
        right += who == speaker
        clones.append({"reference": speaker, "taken_for": who, "pitch": round(ratio, 3), "text": text})
        print(clones[-1], file=sys.stderr)
    return {
        "references": references,
        "pitch_within_15pct": round(close / references, 3),
        "speaker_accuracy": round(right / references, 3),
        "clones": clones,
    }


def one_voice(engine: Engine, texts: list[str], params: SamplingParams, speakers: Speakers) -> dict:
    """A long text without a voice: in how many windows of 4 s the speaker is the one that it should be."""
    speech = engine.speak(" ".join(texts), params=params)
    windows = [part for part in speech.wav.split(WINDOW) if len(part) == WINDOW]
    kept = sum(speakers(part) == HOME for part in windows)
    return {"long_text_seconds": round(speech.seconds, 1), "long_text_one_voice": round(kept / len(windows), 3)}


def known_speakers() -> Speakers:
    """The classifier, taught by the source voices."""
    texts = [plain(text) for text in corpus.sentences("heldout", 4 * SAMPLES, seed=7)]
    texts = [f"{a} {b}" for a, b in zip(texts[::2], texts[1::2], strict=True)][:SAMPLES]
    return Speakers({name: [synthesise(name, text) for text in texts] for name in CLONED})


def main() -> None:
    """The command line; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(ROOT / "engine" / "embedded"))
    parser.add_argument("--sentences", type=int, default=200)
    parser.add_argument("--references", type=int, default=REFERENCES, help="0 for a talker that clones nobody")
    parser.add_argument("--recognisers", default=",".join(RECOGNISERS), help="the first of them is the judge")
    parser.add_argument("--temperature", type=float, default=SamplingParams.temperature)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help=f"keep the result in {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    recognisers = {name: RECOGNISERS[name]() for name in given.recognisers.split(",")}
    params = SamplingParams(seed=given.seed, temperature=given.temperature, max_frames=750)
    texts = [plain(text) for text in corpus.sentences("heldout", 200, seed=11)]
    pairs = [f"{a} {b}" for a, b in zip(texts[::2], texts[1::2], strict=True)]
    torch.manual_seed(0)
    with Engine(EngineConfig(model=given.model, device="cpu")) as engine:
        result = demo(engine, recognisers)
        result |= intelligibility(engine, corpus.sentences("heldout", given.sentences), params, recognisers)
        speakers = known_speakers()
        result |= {"pitch_within_15pct": None, "speaker_accuracy": None}
        if given.references:
            result |= cloning(engine, pairs, params, speakers, given.references)
        result |= one_voice(engine, texts[:LONG_TEXT], params, speakers)
    size = sum(path.stat().st_size for path in pathlib.Path(given.model).iterdir())
    result |= {"megabytes": round(size / 1e6, 2), "date": str(datetime.date.today()), "commit": commit()}
    if given.write:
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({key: value for key, value in result.items() if key not in ("heard", "clones")}))


if __name__ == "__main__":
    main()
