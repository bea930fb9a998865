"""The guard's hits and costs, and a scene of several voices, on the embedded checkpoint.

    python benchmarks/takes.py --device cuda:0 --sound scene/     everything but the words
    python benchmarks/takes.py --hear scene/                      speakers and words in the scene that was kept there

Failures are provoked by temperature and noise on the weights. --hear alone needs training/requirements.txt. Prints one
JSON line last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics
import sys
import time
from collections import Counter
from dataclasses import replace

import torch
from common import ROOT, commit

from engine import (
    EMBEDDED,
    SAMPLE_RATE,
    Engine,
    EngineConfig,
    SamplingParams,
    Turn,
    Voice,
    estimate_seconds,
    read_clip,
)
from training import corpus
from training.hearing import RECOGNISERS, Speakers, word_errors

RESULT = ROOT / "benchmarks" / "results" / "takes.json"
CLIPS = ROOT / "engine" / "voice" / "built_in"
HOT = {"temperature": 1.4, "top_p": 1.0, "top_k": 0}
NOISE = 0.5  # of each weight's own spread
TURNS, SAMPLES = 60, 8  # turns of the scene; sentences from which the classifier learns each voice
NARRATIONS, CHUNK_SECONDS = 6, 6.0


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--sentences", type=int, default=2000)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--sound", type=pathlib.Path, help="folder that the scene is kept in, for --hear")
    parser.add_argument("--hear", type=pathlib.Path, help="only has the scene in that folder heard")
    parser.add_argument("--recogniser", choices=RECOGNISERS, default="whisper")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    result = json.loads(given.out.read_text()) if given.out.is_file() else {}
    if given.hear:
        result["scene"] |= heard(given.hear, given.recogniser)
    else:
        result = measured(given, result)
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def measured(given, result: dict) -> dict:
    """Measure everything that needs no recogniser. Other parts of the result stay."""
    texts = corpus.sentences("heldout", given.sentences)
    with Engine(EngineConfig(str(EMBEDDED), device=given.device, context=1024)) as engine:
        where = torch.cuda.get_device_name(engine.device) if engine.device.type == "cuda" else engine.device.type
        ran = {"device": where, "torch": torch.__version__, "date": str(datetime.date.today()), "commit": commit()}
        for part in given.parts.split(","):
            PARTS[part](engine, texts, result, given)
            result.setdefault("ran", {})[part] = ran
    return {"date": ran["date"], "commit": ran["commit"], "checkpoint": "embedded"} | result | {"sentences": len(texts)}


def say(engine: Engine, texts: list[str], **params):
    """Speak all texts in one batch, each with a speaker of its own, so that none is the voice of another."""
    turns = [Turn(speaker=text, text=text) for text in texts]
    settings = SamplingParams(**{"max_frames": 750, "chunk_seconds": 0, **params})
    return engine.speak_turns(turns, params=settings, reuse=False, even=False)


def alarms(engine: Engine, texts: list[str], result: dict, given):
    """Measure the rate of false alarms at the defaults, and the cost of judging, with and without it in turn."""
    say(engine, texts[:64])
    seconds = {0: [], 2: []}
    for retries in (0, 2, 2, 0):
        speech = say(engine, texts, retries=retries)
        seconds[retries].append(speech.elapsed)
    without, judged = (statistics.median(seconds[retries]) for retries in (0, 2))
    flaws = Counter(flaw for chunk in speech.retried for flaw in chunk.flaws[0])
    result |= {
        "false_alarms": len(speech.retried),
        "false_alarms_by": dict(flaws),
        "false_alarms_of": [[chunk.text, chunk.flaws] for chunk in speech.retried[:30]],
        "seconds": {str(retries): [round(one, 3) for one in found] for retries, found in seconds.items()},
        "extra_seconds_pct": round(100 * (judged / without - 1), 2),
        "lengths_over_estimate": ratios(speech),
    }


def ratios(speech) -> dict:
    """Return spoken lengths over their estimates, for texts of 2 s and more."""
    found = sorted(
        (turn.frames[1] - turn.frames[0]) / 25 / seconds
        for turn in speech.turns
        if (seconds := estimate_seconds(turn.text)) >= 2
    )
    return {
        name: round(found[int(share * (len(found) - 1))], 2)
        for name, share in (("least", 0), ("p50", 0.5), ("most", 1))
    }


def heat(engine: Engine, texts: list[str], result: dict, given):
    """Count flaws of first and kept takes of a disturbed model. Comes last: the weights stay noisy."""
    noise = torch.Generator(engine.device).manual_seed(0)
    with torch.inference_mode():
        for weight in engine.loaded.talker.tensors():
            if weight.is_floating_point() and weight.dim() > 1:
                spread = weight.float().std() * NOISE
                weight += (torch.randn(weight.shape, generator=noise, device=weight.device) * spread).to(weight.dtype)
    speech = say(engine, texts[: len(texts) // 4], retries=2, **HOT)
    before = Counter(flaw for chunk in speech.retried for flaw in chunk.flaws[0])
    after = Counter(flaw for chunk in speech.retried for flaw in chunk.flaws[chunk.kept - 1])
    failures = result.setdefault("failures", {})
    for flaw in dict.fromkeys((*failures, *before, *after)):
        failures[flaw] = failures.get(flaw, {}) | {"before": before[flaw], "after": after[flaw]}


def joins(engine: Engine, texts: list[str], result: dict, given):
    """Measure joints of chunks, with and without their own silence: their step over the largest one nearby."""
    over = count = 0
    for number in range(NARRATIONS):
        text = " ".join(texts[10 * number : 10 * number + 10])
        plain = engine.speak(text, params=SamplingParams(seed=number, chunk_seconds=CHUNK_SECONDS))
        turns = [Turn("", sentence) for sentence in texts[10 * number : 10 * number + 10]]
        tight = engine.speak_turns(turns, params=SamplingParams(seed=number, turn_gap=0), reuse=False)
        for speech in (plain, tight):
            for at in [chunk.start for chunk in speech.said[1:]]:
                around = speech.wav[max(0, at - SAMPLE_RATE // 20) : at + SAMPLE_RATE // 20].diff().abs()
                over += int((speech.wav[at] - speech.wav[at - 1]).abs() > around.max())
                count += 1
    result["joins_over_local_level"] = {"joins": count, "over": over}


def voices_of(engine: Engine) -> dict[str, Voice]:
    """Return four voices: the pack's clips, and the voice without a clip, from its own speech."""
    found = {}
    for path in sorted(CLIPS.glob("*.flac")):
        found[path.stem] = engine.encode_voice(
            *read_clip(path), path.with_suffix(".txt").read_text().strip(), path.stem
        )
    text = "This is the voice that speaks when nobody has given it another one to follow."
    found["own"] = Voice(engine.speak(text).codes, text, "own", engine.checkpoint.codec.config.name)
    return found


def known(engine: Engine, voices: dict[str, Voice], texts: list[str]) -> Speakers:
    """Return a classifier of these voices, trained on sentences used nowhere else."""
    taught = texts[-2 * SAMPLES :]
    return Speakers({
        name: [engine.speak(f"{a} {b}", voice, SamplingParams(seed=77)).wav
               for a, b in zip(taught[::2], taught[1::2], strict=True)]
        for name, voice in voices.items()
    })  # fmt: skip


def context(engine: Engine, texts: list[str], result: dict, given):
    """Compare chunks conditioned on the clip with chunks conditioned on the chunk before: speaker and distance."""
    voices = voices_of(engine)
    speakers, found = known(engine, voices, texts), {"without": [], "with": []}
    for number in range(NARRATIONS):
        name = list(voices)[number % len(voices)]
        sentences = texts[10 * number : 10 * number + 10]
        before = voices[name]
        for place, text in enumerate(f"{a} {b}" for a, b in zip(sentences[::2], sentences[1::2], strict=True)):
            params = SamplingParams(seed=100 * number + place)
            plain, led = engine.speak(text, voices[name], params), engine.speak(text, before, params)
            before = Voice(
                led.codes[-250:].clamp(max=1023), text if len(led.codes) <= 250 else None, name, before.codec
            )
            for how, speech in (("without", plain), ("with", led)):
                found[how].append((speakers(speech.wav) == name, speakers.distance(speech.wav, name)))
    result["context"] = {how: round(statistics.mean(right for right, _ in chunks), 3) for how, chunks in found.items()}
    for how, chunks in found.items():
        result["context"][f"distance_{how}"] = round(statistics.mean(distance for _, distance in chunks), 2)
    result["context"]["chunks"] = len(found["with"])


def scene(engine: Engine, texts: list[str], result: dict, given):
    """Speak a scene of all voices in one run and with a call per line, in turn; then edit one turn."""
    voices = voices_of(engine)
    names = list(voices)
    turns = [
        Turn(names[number % len(names)], corpus.TAG.sub(" ", text))
        for number, text in enumerate(texts[100 : 100 + TURNS])
    ]
    together, one_by_one = [], []
    for _ in range(3):
        speech = engine.speak_turns(turns, voices, reuse=False)
        together.append(speech.elapsed)
        began = time.perf_counter()
        for turn in turns:
            engine.speak(turn.text, voices[turn.speaker])
        one_by_one.append(time.perf_counter() - began)
    engine.speak_turns(turns, voices)
    turns[TURNS // 2] = replace(turns[TURNS // 2], text="This line is another one now.")
    edited = engine.speak_turns(turns, voices)
    if given.sound:
        given.sound.mkdir(parents=True, exist_ok=True)
        taught = known(engine, voices, texts)
        torch.save({"speech": edited.wav, "turns": [vars(turn) for turn in edited.turns], "speakers": vars(taught)},
                   given.sound / "scene.pt")  # fmt: skip
    result["scene"] = {
        "turns": len(turns),
        "voices": len(voices),
        "audio_seconds": round(edited.seconds, 1),
        "seconds": round(statistics.median(together), 3),
        "seconds_one_by_one": round(statistics.median(one_by_one), 3),
        "respoken_after_one_edit": edited.chunks - edited.reused,
    }


def heard(folder: pathlib.Path, recogniser: str) -> dict:
    """Count the kept scene's turns that are recognised by their words, and those with the right voice."""
    kept = torch.load(folder / "scene.pt", weights_only=False)
    speakers, hear = Speakers.__new__(Speakers), RECOGNISERS[recogniser]()
    vars(speakers).update(kept["speakers"])
    texts = [turn["text"] for turn in kept["turns"]]
    text_right = voice_right = wrong = count = 0
    for number, turn in enumerate(kept["turns"]):
        wav = kept["speech"][turn["start"] : turn["stop"]]
        words, who = hear(wav), speakers(wav)
        errors = [word_errors(text, words)[0] for text in texts]
        text_right += errors[number] == min(errors) and errors.count(min(errors)) == 1
        voice_right += who == turn["speaker"]
        wrong, count = wrong + errors[number], count + word_errors(turn["text"], words)[1]
        print(turn["speaker"], who, errors[number], repr(turn["text"]), repr(words), file=sys.stderr)
    rate = round(wrong / count, 4)
    return {"text_right": text_right, "voice_right": voice_right, "wer": rate, "recogniser": hear.name}


PARTS = {"alarms": alarms, "joins": joins, "context": context, "scene": scene, "heat": heat}

if __name__ == "__main__":
    main()
