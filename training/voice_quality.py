"""English speech quality of a checkpoint: words, sound, tags, clones, ends and speed, on the CPU.

    python -m training.voice_clips --model kokoro-v1.0.int8.onnx --voices DIR --out CLIPS
    python -m training.voice_quality CLIPS --write

Needs training/requirements.txt. --parts runs some of the parts and leaves the others in the result as they are.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import numpy as np
import soundfile
import torch

from benchmarks.common import ROOT, commit
from engine import (
    BUILT_IN_CLIPS,
    SAMPLE_RATE,
    Engine,
    EngineConfig,
    SamplingParams,
    read_clip,
    resample,
    transcript_of,
)
from engine.prompt.spell_out import spell_out

from . import corpus
from .hearing import Dnsmos, Whisper, longest_silence, pitch, similarity, voice_print, word_errors, words_of
from .voice_clips import KNOWN, plain

PARTS = ("demo", "sentences", "ends", "tags", "clones", "long", "readings")  # and people, if --people names folders
MANY = 500  # sentences that must end well
COMPARED = 30  # sentences of the other checkpoints
TAGGED = 20  # sentences, each with every tag and without
CLONED = 3  # clips of a person, each for as many sentences
LONG_TEXT, WINDOW = 14, 4 * SAMPLE_RATE
MOST_SILENCE = 1.5  # seconds
LONGER = 0.15  # seconds more silence than without the tag: an audible pause
SPEEDS = {tag: stretch > 1 for tag, stretch in corpus.SPEEDS.items()}  # tag -> True if it makes speech longer
RESULT = ROOT / "benchmarks" / "results" / "voice_quality.json"


class Judges:
    """Judges of a clip: Whisper base and DNSMOS."""

    def __init__(self):
        self.whisper, self.dnsmos = Whisper(), Dnsmos()

    def __call__(self, text: str, wav: torch.Tensor) -> dict:
        heard = self.whisper(wav)
        wrong, words = word_errors(text, heard)
        return {"text": text, "heard": heard, "wrong": wrong, "words": words, **self.dnsmos(wav)}


def summary(judged: list[dict]) -> dict:
    """Return the word error rate, and means of DNSMOS."""
    total = {name: sum(one[name] for one in judged) for name in ("wrong", "words")}
    means = {name: round(float(np.mean([one[name] for one in judged])), 3) for name in Dnsmos.NAMES}
    return {"sentences": len(judged), "wer": round(total["wrong"] / total["words"], 4), **total, **means}


def flite(text: str) -> torch.Tensor:
    """Speak with Debian's flite, voice slt, a synthesiser typical of 2005."""
    with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        subprocess.run(["flite", "-voice", "slt", "-t", plain(text), "-o", file.name], check=True)
        samples, rate = soundfile.read(file.name, dtype="float32")
    return resample(torch.from_numpy(samples), rate, SAMPLE_RATE)


def read_as(text: str) -> set[str]:
    """Return the letters of a text's readings: as written, by the engine's table, and by the judges' rules."""
    forms = (text, spell_out(text, "en").text)
    plain_figures = re.sub(r"(?<![0-9:])0(?=[0-9])", "", text)
    return {"".join(words_of(form)) for form in forms} | {corpus.letters_of(form) for form in (*forms, plain_figures)}


class Quality:
    """One checkpoint and the clips it is judged by."""

    def __init__(self, clips: pathlib.Path, engine: Engine, params: SamplingParams, count: int, others: dict[str, str]):
        self.engine, self.params, self.count, self.others = engine, params, count, others
        self.clips = json.loads((clips / "list.json").read_text(encoding="utf-8"))
        self.folder = clips
        self.persons: list[pathlib.Path] = []

    def sound(self, row: dict) -> torch.Tensor:
        return torch.from_numpy(soundfile.read(self.folder / f"{row['name']}.wav", dtype="float32")[0])

    def rows(self, use: str, speaker: str = "") -> list[dict]:
        return [row for row in self.clips if row["use"] == use and speaker in ("", row["speaker"])]

    def say(self, text: str, voice=None):
        speech = self.engine.speak(text, voice, self.params)
        print(f"{speech.seconds:.1f} s  {text}", file=sys.stderr)
        return speech

    def demo(self) -> dict:
        """Speak the text of `make demo`, and judge it."""
        (text,) = re.findall(r'engine say "(.*?)"', (ROOT / "Makefile").read_text(encoding="utf-8"))
        return {"demo": {"text": text, "heard": Whisper()(self.say(text).wav)}}

    def sentences(self) -> dict:
        """Compare the source's sentences by the checkpoint, the source and the others."""
        judges, rows = Judges(), self.rows("sentence")[: self.count]
        spent = spoken = 0.0
        judged = []
        for row in rows:
            begin = time.process_time()
            speech = self.say(row["text"])
            spent, spoken = spent + time.process_time() - begin, spoken + speech.seconds
            judged.append(judges(row["text"], speech.wav))
        sounds = {"source": lambda row: self.sound(row)}
        if "flite" in self.others:
            sounds["flite"] = lambda row: flite(row["text"])
        compared = {
            name: summary([judges(row["text"], sound(row)) for row in rows[: None if name == "source" else COMPARED]])
            for name, sound in sounds.items()
        }
        for name, model in self.others.items():
            if name != "flite":
                with Engine(EngineConfig(model=model, device="cpu")) as other:
                    said = [(row["text"], other.speak(row["text"], params=self.params).wav) for row in rows[:COMPARED]]
                compared[name] = summary([judges(*one) for one in said])
        own = summary(judged)
        return {
            "wer": own["wer"],
            "wer_source": compared["source"]["wer"],
            **{f"dnsmos{end}": own[name] for name, end in zip(Dnsmos.NAMES, ("", "_signal", "_p808"), strict=True)},
            "recogniser": Whisper.name,
            "sentences": own,
            "compared": compared,
            "rtf_cpu": round(spent / spoken, 3),  # CPU seconds per second of speech
            "heard": [one for one in judged if one["wrong"]],
        }

    def ends(self) -> dict:
        """Check that many sentences end completely and without a silence. Cut short: half the time its letters take."""
        said = [(text, self.say(text)) for text in corpus.sentences("heldout", MANY)]
        letters = [len(corpus.letters_of(text)) for text, _ in said]
        usual = float(np.median([speech.seconds / count for (_, speech), count in zip(said, letters, strict=True)]))
        found = {"sentences": MANY, "ran_to_limit": 0, "cut_short": 0, "long_silence": 0, "spoken_again": 0}
        for (text, speech), count in zip(said, letters, strict=True):
            least = (0.3 if "speed_very_fast" in text else 0.5) * usual * count
            found["ran_to_limit"] += speech.stopped != "end of speech"
            found["cut_short"] += speech.seconds < least
            found["long_silence"] += longest_silence(speech.wav) > MOST_SILENCE
            found["spoken_again"] += len(speech.spoken_again) > 0
        return {"ends": found}

    def tags(self) -> dict:
        """Count how often a speed tag changes the length as it should, and a pause tag lengthens a silence."""
        texts = [text for text in map(plain, corpus.sentences("heldout", 120, seed=13)) if len(text.split()) > 4]
        held = dict.fromkeys(SPEEDS, 0)
        for text in texts[:TAGGED]:
            usual = self.say(text).seconds
            for tag, longer in SPEEDS.items():
                held[tag] += (self.say(tag + text).seconds > usual) == longer
        pairs = [(a, b) for a, b in zip(texts[::2], texts[1::2], strict=False) if a[-1] in ".?!"][:TAGGED]
        pauses = {tag: [] for tag in ("", *corpus.PAUSES)}
        for a, b in pairs:
            for tag, silences in pauses.items():
                silences.append(longest_silence(self.say(f"{a} {tag} {b}" if tag else f"{a} {b}").wav))
        plain_silences = pauses.pop("")
        medians = {tag: round(float(np.median(found)), 2) for tag, found in {"none": plain_silences, **pauses}.items()}
        longer = {
            tag: round(float(np.mean([x > y + LONGER for x, y in zip(found, plain_silences, strict=True)])), 2)
            for tag, found in pauses.items()
        }
        return {
            "speed_tags": {"hold": sum(held.values()), "of": TAGGED * len(SPEEDS), **held},
            "pause_tags": {"pairs": len(pairs), "longer": longer, "median_silence": medians},
        }

    def clones(self) -> dict:
        """Clone every reference, half of them with their transcript. Each clone says another sentence.

        Its pitch is compared with the median over all clips of the speaker, since sentences differ.
        """
        prints = {}
        for name in dict.fromkeys(row["speaker"] for row in self.rows("profile")):
            prints[name] = np.mean([voice_print(self.sound(row)) for row in self.rows("profile", name)], 0)
        texts = [plain(text) for text in corpus.sentences("heldout", 200, seed=17)]
        clones = []
        for number, row in enumerate(self.rows("reference")):
            speaker, clip = row["speaker"], self.sound(row)
            known = [name for name in prints if (name in KNOWN) == (speaker in KNOWN)]
            voice = self.engine.encode_voice(clip, SAMPLE_RATE, row["text"] if number % 2 else None, speaker)
            wav = self.say(texts[number], voice).wav
            heard = voice_print(wav)
            alike = {name: similarity(heard, prints[name]) for name in known}
            own = [similarity(voice_print(self.sound(one)), prints[speaker]) for one in self.rows("profile", speaker)]
            found = {"reference": speaker, "known": speaker in KNOWN, "taken_for": max(alike, key=alike.__getitem__)}
            usual = np.median([pitch(self.sound(one)) for one in self.clips if one["speaker"] == speaker])
            ratio = pitch(wav) / float(usual)
            found |= {"similarity": round(alike[speaker], 3), "of_itself": round(float(np.mean(own)), 3)}
            clones.append(found | {"pitch": round(ratio, 3)})
        groups = {"known": [c for c in clones if c["known"]], "unseen": [c for c in clones if not c["known"]]}
        return {
            "clones": {
                name: {
                    "references": len(found),
                    "right_speaker": sum(c["taken_for"] == c["reference"] for c in found),
                    "pitch_within_15pct": sum(abs(c["pitch"] - 1) <= 0.15 for c in found),
                    "similarity": round(float(np.mean([c["similarity"] for c in found])), 3),
                }
                for name, found in groups.items()
            }
            | {"each": clones}
        }

    def readings(self) -> dict:
        """Count what is read right of what people write, by kind, by the default voice and the built-in ones in turn.

        Right: what Whisper writes down reads as the text does, however it spells figures and wherever it puts blanks.
        """
        clips = sorted(BUILT_IN_CLIPS.glob("*.flac"))
        voices = [self.engine.encode_voice(*read_clip(clip), transcript=transcript_of(clip)[0]) for clip in clips]
        whisper, kinds, wrong = Whisper(), {}, []
        for number, row in enumerate((corpus.templates.TEXT / "readings.txt").read_text(encoding="utf-8").splitlines()):
            kind, _, text = row.partition(" | ")
            heard = whisper(self.say(text, [None, *voices][number % (1 + len(voices))]).wav)
            right = not read_as(text).isdisjoint(read_as(heard))
            count = kinds.setdefault(kind, {"right": 0, "of": 0})
            count["right"] += right
            count["of"] += 1
            wrong += [] if right else [{"kind": kind, "text": text, "heard": heard}]
        return {"readings": {**kinds, "wrong": wrong}}

    def people(self) -> dict:
        """Clone the first three clips of real people. Their other clips show how they sound."""
        texts = [plain(text) for text in corpus.sentences("heldout", 200, seed=17)]
        found = {}
        for folder in self.persons:
            wavs = [(torch.from_numpy(wav), rate) for wav, rate in map(read_clip, sorted(folder.glob("*.wav")))]
            prints = [voice_print(resample(wav.mean(0), rate, SAMPLE_RATE)) for wav, rate in wavs]
            own = np.mean(prints[CLONED:], 0)
            clones = [
                self.say(text, self.engine.encode_voice(*wav, None, folder.name)).wav
                for wav in wavs[:CLONED]
                for text in texts[:CLONED]
            ]
            usual = float(np.median([pitch(resample(wav.mean(0), rate, SAMPLE_RATE)) for wav, rate in wavs]))
            found[folder.name] = {
                "of_itself": round(float(np.mean([similarity(one, own) for one in prints[:CLONED]])), 3),
                "similarity": [round(similarity(voice_print(wav), own), 3) for wav in clones],
                "pitch": [round(pitch(wav) / usual, 3) for wav in clones],
                "default_voice": round(similarity(voice_print(self.say(texts[0]).wav), own), 3),
            }
        return {"people": found}

    def long(self) -> dict:
        """Speak a long text without a voice, and compare every window of 4 s with the default voice."""
        texts = [plain(text) for text in corpus.sentences("heldout", 200, seed=11)][:LONG_TEXT]
        own = np.mean([voice_print(self.sound(row)) for row in self.rows("sentence")[:8]], 0)
        speech = self.say(" ".join(texts))
        windows = [part for part in speech.wav.split(WINDOW) if len(part) == WINDOW]
        alike = [round(similarity(voice_print(part), own), 3) for part in windows]
        return {"long_text": {"seconds": round(speech.seconds, 1), "least_similarity": min(alike)}}


def main() -> None:
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clips", type=pathlib.Path, help="folder that voice_clips.py wrote")
    parser.add_argument("--model", default=str(ROOT / "engine" / "embedded"))
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--sentences", type=int, default=200, help="of the part sentences")
    parser.add_argument("--compare", nargs="*", default=[], help="NAME=FOLDER of other checkpoints, or flite")
    parser.add_argument("--people", nargs="*", type=pathlib.Path, default=[], help="folders of a person's WAV files")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--temperature", type=float, default=SamplingParams.temperature)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=pathlib.Path, help="file of the result, in which other parts stay")
    parser.add_argument("--write", action="store_true", help=f"the same with {RESULT.relative_to(ROOT)}")
    given = parser.parse_args()
    params = SamplingParams(seed=given.seed, temperature=given.temperature, max_frames=750)
    others = dict((*one.split("="), "")[:2] for one in given.compare)
    out = RESULT if given.write else given.out
    result = {"date": str(datetime.date.today()), "commit": commit(), "torch": torch.__version__}
    with Engine(EngineConfig(model=given.model, device=given.device)) as engine:
        quality = Quality(given.clips, engine, params, given.sentences, others)
        quality.persons = given.people
        for part in given.parts.split(","):
            result |= getattr(quality, part)()
    if out:
        kept = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
        out.write_text(json.dumps(kept | result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in result.items() if name not in ("heard", "clones")}))


if __name__ == "__main__":
    main()
