"""How far off subtitles are, against a recogniser that is told the words and finds when each is said.

    python benchmarks/subtitles.py --texts 20

Narrations of the embedded checkpoint, each one chunk of several sentences: the hard case, for chunks of one sentence
are exact. Needs pocketsphinx, of benchmarks/requirements.txt. Its own error counts too: `aligner` is what it says of
where a sentence begins that was put there to the sample. Prints one JSON line last.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib

import torch
from common import ROOT, commit
from hearing import RATE, words_of

from engine import EMBEDDED, SAMPLE_RATE, Engine, EngineConfig, SamplingParams, Turn
from engine.resample import resample
from engine.subtitles import cues_of
from training import corpus

RESULT = ROOT / "benchmarks" / "results" / "time.json"
SENTENCES = 5  # a text


def main():
    """The command line; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--out", type=pathlib.Path, default=RESULT)
    given = parser.parse_args()
    align, errors, own, skipped = Aligner(), [], [], 0
    plain = [" ".join(corpus.TAG.sub(" ", text).split()) for text in corpus.sentences("heldout", 400, seed=3)]
    known = [text for text in plain if align.knows(text)][: given.texts * SENTENCES]
    with Engine(EngineConfig(str(EMBEDDED), device="cpu")) as engine:
        for at in range(0, len(known), SENTENCES):
            sentences = known[at : at + SENTENCES]
            speech = engine.speak(" ".join(sentences), params=SamplingParams(seed=at, chunk_seconds=0))
            begins = align(speech.wav, sentences)
            cues = cues_of(speech)
            turns = engine.speak_turns(
                [Turn("", text) for text in sentences], params=SamplingParams(seed=at), even=False
            )
            true = [turn.start / SAMPLE_RATE + 0.05 for turn in turns.turns]  # an edge of 0.05 s stays before the sound
            found = align(turns.wav, sentences)
            if not begins or not found or len(cues) != len(sentences):
                skipped += 1
                continue
            errors += [abs(cue.start - begin) for cue, begin in zip(cues[1:], begins[1:], strict=True)]
            own += [abs(one - other) for one, other in zip(true[1:], found[1:], strict=True)]
    result = json.loads(given.out.read_text()) if given.out.is_file() else {}
    result["srt_error"] = {
        "texts": len(known) // SENTENCES - skipped,
        "skipped": skipped,
        **spread(errors),
        "aligner": spread(own),
        "checkpoint": "embedded",
        "date": str(datetime.date.today()),
        "commit": commit(),
    }
    given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def spread(errors: list[float]) -> dict:
    """Seconds."""
    errors = sorted(errors)
    places = {"p50": 0.5, "p95": 0.95, "max": 1.0}
    return {name: round(errors[int(share * (len(errors) - 1))], 3) for name, share in places.items()}


class Aligner:
    """Pocketsphinx, told the words."""

    def __init__(self):
        from pocketsphinx import Decoder

        self._decoder = Decoder(samprate=RATE, loglevel="FATAL", bestpath=False)

    def knows(self, text: str) -> bool:
        """Whether all words of a text are in its dictionary."""
        return all(self._decoder.lookup_word(word) for word in words_of(text))

    def __call__(self, wav: torch.Tensor, sentences: list[str]) -> list[float]:
        """When each of the sentences begins, in seconds; nothing where the words do not fit the sound."""
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


if __name__ == "__main__":
    main()
