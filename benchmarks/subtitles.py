"""Accuracy of subtitles, fit of speech to given ones, and voices of a dub, on the embedded checkpoint.

    python benchmarks/subtitles.py --parts error,fit,dub

error: narrations of the embedded checkpoint, each one chunk of several sentences: the hard case, since chunks of one
sentence are exact. A recogniser that is given the words finds when each is said. Its own error counts too: `aligner`
is its error for sentences whose start is known to the sample. Needs pocketsphinx, of training/requirements.txt. fit: a
file whose cues leave less or more time than their sentences take. dub: a film in which two of the pack's voices take
turns. A classifier that knows all voices names the one of each cue, in the film and in its dub. Prints one JSON line
last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import random
import time

import torch
from common import ROOT, commit

from engine import (
    EMBEDDED,
    SAMPLE_RATE,
    CueParams,
    CueSpeech,
    Engine,
    EngineConfig,
    SamplingParams,
    Turn,
    cut_references,
    mix_speech,
    read_clip,
    read_cues,
    resample,
    speak_cues,
    to_srt,
)
from training import corpus
from training.hearing import RATE, Speakers, words_of

RESULT = ROOT / "benchmarks" / "results" / "time.json"
SENTENCES = 5  # per text
LEAST = 20  # characters of a cue
CHARACTERS = (10, 20)  # per second, as subtitles have them
LATE = 0.02  # seconds: later is noticed
GAPS = (0.1, 0.1, 0.5, 2.0)  # seconds between cues
DUBBED, TAUGHT = 40, 12  # cues of the dub; pairs of sentences of each voice that the classifier learns
FILM = ("oliver", "amber")
KNOWN = tuple(sorted(path.stem for path in (ROOT / "engine" / "voice" / "built_in").glob("*.flac")))


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--texts", type=int, default=20, help="narrations for error")
    parser.add_argument("--cues", type=int, default=300, help="for fit")
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    now = commit()  # before the result is written
    for part in given.parts.split(","):
        with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as engine:
            found = PARTS[part](engine, given)
        found |= {"checkpoint": "embedded", "device": "cpu", "torch": torch.__version__}
        found |= {"date": str(datetime.date.today()), "commit": now}
        result = json.loads(given.out.read_text()) if given.out.is_file() else {}
        result[NAMES[part]] = found
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def error(engine: Engine, given) -> dict:
    """Measure where sentences inside a chunk begin."""
    align, errors, own, skipped = Aligner(), [], [], 0
    plain = [" ".join(corpus.TAG.sub(" ", text).split()) for text in corpus.sentences("heldout", 400, seed=3)]
    known = [text for text in plain if align.knows(text)][: given.texts * SENTENCES]
    for at in range(0, len(known), SENTENCES):
        sentences = known[at : at + SENTENCES]
        speech = engine.speak(" ".join(sentences), params=SamplingParams(seed=at, chunk_seconds=0))
        begins = align(speech.wav, sentences)
        cues = read_cues(to_srt(speech)).cues
        turns = engine.speak_turns([Turn("", text) for text in sentences], params=SamplingParams(seed=at), even=False)
        true = [turn.start / SAMPLE_RATE + 0.05 for turn in turns.turns]  # an edge of 0.05 s stays before the sound
        found = align(turns.wav, sentences)
        if not begins or not found or len(cues) != len(sentences):
            skipped += 1
            continue
        errors += [abs(cue.start - begin) for cue, begin in zip(cues[1:], begins[1:], strict=True)]
        own += [abs(one - other) for one, other in zip(true[1:], found[1:], strict=True)]
    return {"texts": len(known) // SENTENCES - skipped, "skipped": skipped, **spread(errors), "aligner": spread(own)}


def fit(engine: Engine, given) -> dict:
    """Fit a file of two speakers: counts by default, and the starts if cues may only shift."""
    numbers, at, cues = random.Random(5), 1.0, []
    for number, text in enumerate(sentences_of(given.cues, seed=5)):
        stop = at + len(text) / numbers.uniform(*CHARACTERS)
        cues.append((at, stop, text, "Ann" if number % 2 else "Bob"))
        at = stop + numbers.choice(GAPS)
    sheet = read_cues(as_srt(cues))
    voices = {name: clip_voice(engine, clip) for name, clip in (("Ann", "amber"), ("Bob", "oliver"))}
    ways = {"default": CueParams(), "shift_only": CueParams(faster=False, stretch=1.0)}
    result = {"characters_a_second": CHARACTERS, "gaps": GAPS, "film_seconds": round(sheet.cues[-1].stop, 1)}
    for name, how in ways.items():
        began = time.perf_counter()
        speech = speak_cues(engine, sheet.cues, voices, fit=how)
        late = spread([one.late for one in speech.cues])
        result[name] = fit_counts(speech) | {"late": late, "seconds": round(time.perf_counter() - began, 1)}
    return result


def dub(engine: Engine, given) -> dict:
    """Make a film of two of the pack's voices, and its dub. Classifies each cue's voice."""
    at, cues, sounds = 0.5, [], []
    known = {name: clip_voice(engine, name) for name in KNOWN}
    for number, text in enumerate(sentences_of(DUBBED, seed=9)):
        wav = engine.speak(text, known[FILM[number % 2]]).wav
        stop = at + len(wav) / SAMPLE_RATE
        cues.append((at, stop, text, f"Speaker {number % 2 + 1}"))
        sounds.append((at, wav))
        at = stop + 0.4
    film = mix_speech(sounds, at)
    sheet = read_cues(as_srt(cues))
    clips = cut_references(sheet.cues, film, SAMPLE_RATE, sheet.speakers)
    voices = {who: engine.encode_voice(clip.wav, SAMPLE_RATE, clip.transcript, who) for who, clip in clips.items()}
    speech = speak_cues(engine, sheet.cues, voices)
    taught = sentences_of(2 * TAUGHT, seed=7)
    taught = [f"{a} {b}" for a, b in zip(taught[::2], taught[1::2], strict=True)]
    speakers = Speakers({name: [engine.speak(text, known[name]).wav for text in taught] for name in KNOWN})
    right = [FILM[number % 2] for number in range(DUBBED)]
    return {
        "cues": DUBBED,
        "voices": list(FILM),
        "known_to_classifier": len(KNOWN),
        "reference_seconds": [round(clip.seconds, 1) for clip in clips.values()],
        "right_voice": sum(speakers(wav) == who for (_, wav), who in zip(speech.sounds, right, strict=True)),
        "right_voice_of_film": sum(speakers(wav) == who for (_, wav), who in zip(sounds, right, strict=True)),
        "fit": fit_counts(speech),
    }


def as_srt(cues: list[tuple[float, float, str, str]]) -> str:
    """Return (start, stop, text, speaker) rows as SubRip."""

    def clock(seconds: float) -> str:
        whole, milliseconds = divmod(round(1000 * seconds), 1000)
        return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02},{milliseconds:03}"

    rows = enumerate(cues, 1)
    return "\n".join(f"{n}\n{clock(start)} --> {clock(stop)}\n{who}: {text}\n" for n, (start, stop, text, who) in rows)


def fit_counts(speech: CueSpeech) -> dict:
    """Count cues by how they were fitted, some in several ways. over: a cue goes on beyond its time."""
    spoken = [one for one in speech.cues if one.cue.turns]
    late = [one.late for one in spoken]
    over = [one.stop - (one.cue.start + one.slot) for one in spoken]
    ways = {
        "faster": [bool(one.pace) for one in spoken],
        "stretched": [one.tempo > 1 for one in spoken],
        "shifted": [seconds > LATE for seconds in late],
        "over": [seconds > LATE for seconds in over],
    }
    counts = {"cues": len(speech.cues), "silent": len(speech.cues) - len(spoken)}
    counts["on_time"] = sum(not any(done) for done in zip(*ways.values(), strict=True))
    counts |= {way: sum(done) for way, done in ways.items()}
    return counts | {"worst_late": round(max([0.0, *late]), 3), "worst_over": round(max([0.0, *over]), 3)}


def sentences_of(count: int, seed: int) -> list[str]:
    """Return plain sentences without tags that the checkpoint never learned."""
    plain = (" ".join(corpus.TAG.sub(" ", text).split()) for text in corpus.sentences("heldout", 2 * count, seed=seed))
    return [text for text in plain if len(text) >= LEAST][:count]


def clip_voice(engine: Engine, name: str):
    """Return the voice of one of the pack's clips."""
    clip = ROOT / "engine" / "voice" / "built_in" / f"{name}.flac"
    return engine.encode_voice(*read_clip(clip), clip.with_suffix(".txt").read_text(encoding="utf-8").strip(), name)


def spread(errors: list[float]) -> dict:
    """Return quantiles in seconds."""
    errors = sorted(errors)
    places = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {name: round(errors[int(share * (len(errors) - 1))], 3) for name, share in places.items()}


class Aligner:
    """Pocketsphinx, given the words."""

    def __init__(self):
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=RATE, loglevel="FATAL", bestpath=False)

    def knows(self, text: str) -> bool:
        """True if all words of a text are in its dictionary."""
        return all(self._decoder.lookup_word(word) for word in words_of(text))

    def __call__(self, wav: torch.Tensor, sentences: list[str]) -> list[float]:
        """Return each sentence's start in seconds, or nothing if the words do not fit the sound."""
        words = [words_of(sentence) for sentence in sentences]
        sound = (resample(wav, SAMPLE_RATE, RATE) * 32767 * 0.9).clamp(-32768, 32767).to(torch.int16)
        self._decoder.set_align_text(" ".join(word for sentence in words for word in sentence))
        self._decoder.start_utt()
        self._decoder.process_raw(sound.numpy().tobytes(), full_utt=True)
        self._decoder.end_utt()
        heard = [one.start_frame / 100 for one in self._decoder.seg() or () if one.word[0] not in "<[("]
        if len(heard) != sum(map(len, words)):
            return []
        places = [sum(map(len, words[:number])) for number in range(len(words))]
        return [heard[place] for place in places]


PARTS = {"error": error, "fit": fit, "dub": dub}
NAMES = {"error": "srt_error", "fit": "fit", "dub": "dub"}  # in the result

if __name__ == "__main__":
    main()
