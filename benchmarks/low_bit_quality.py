"""Quality loss of 8 and 4 bit weights, in figures that anybody can reproduce.

    python benchmarks/low_bit_quality.py FOLDER --sentences 200 --out low_bit.json

Led: every format gets the codes that the reference spoke, so that one early difference does not decide the rest. Its
logits are compared with the reference's at every code. Free: each format speaks the sentences by itself, and audible
failures are counted: speech that runs on, stops early, or falls silent. The reference is bf16. Free speech of one
seed diverges after a few frames in any two formats, so `free` also compares the reference with its own other seeds:
that is the spread to read the others against. Words are recognised if training/requirements.txt is installed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import pathlib
import statistics
import sys

import torch
import torch.nn.functional as F
from common import Prompts, commit

from engine import EMBEDDED, FRAME_RATE, QUANTIZED, SAMPLE_RATE, Engine, EngineConfig, SamplingParams, Turn
from training import corpus
from training.hearing import RECOGNISERS, longest_silence, word_errors

REFERENCE = "bf16"
CODEBOOK_SIZE, END = 1024, 1025  # codes of a codebook, and the one that ends speech
LED_SENTENCES = 20
MOST_FRAMES = 750  # of a sentence; 30 s
SILENCE = 2.0  # seconds that count as a long silence


def main():
    """Run the benchmark; the last line of output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=str(EMBEDDED))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--formats", default=",".join(("fp32", *QUANTIZED)))
    parser.add_argument("--sentences", type=int, default=200, help="of each seed")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--recogniser", choices=RECOGNISERS, help="what hears the words; none: nobody does")
    parser.add_argument("--out", type=pathlib.Path)
    given = parser.parse_args()
    texts = corpus.sentences("heldout", given.sentences)
    hear = RECOGNISERS[given.recogniser]() if given.recogniser else None
    spoken = {REFERENCE: speak(given, REFERENCE, texts, hear)}
    rows = [{"weights": REFERENCE} | free(spoken[REFERENCE], spoken[REFERENCE], shifted=True)]
    for name in given.formats.split(","):
        spoken[name] = speak(given, name, texts, hear)
        led_by = led(given, name, texts[:LED_SENTENCES], spoken[REFERENCE])
        rows.append({"weights": name} | led_by | free(spoken[name], spoken[REFERENCE]))
        print(rows[-1], file=sys.stderr)
    counts = {"sentences": given.sentences, "seeds": given.seeds}
    result = {"checkpoint": pathlib.Path(given.folder).resolve().name, "device": given.device}
    result |= {"torch": torch.__version__, "date": str(datetime.date.today()), "commit": commit()}
    result |= counts | {"reference": REFERENCE, "recogniser": hear.name if hear else None, "quality": rows}
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result))


def engine_of(given, name: str) -> Engine:
    """Open an engine of that dtype, to be used as a context."""
    return Engine(EngineConfig(given.folder, device=given.device, dtype=name, context=2048))


def speak(given, name: str, texts: list[str], hear) -> dict:
    """Return (seed, text) -> prompt, codes, frames, whether it ended, the longest silence, wrong words.

    All texts of a seed are batched, each with a speaker of its own, so that none is the voice of another.
    """
    told, turns = {}, [Turn(speaker=text, text=text) for text in texts]
    with engine_of(given, name) as engine:
        for seed in range(given.seeds):
            params = SamplingParams(seed=seed, max_frames=MOST_FRAMES, chunk_seconds=0, turn_gap=0, retries=0)
            prompts = Prompts()
            speech = engine.speak_turns(turns, params=params, reuse=prompts, even=False)
            for turn, prompt in zip(speech.turns, prompts.found, strict=True):
                wav = speech.wav[turn.start : turn.stop]
                codes = speech.codes[slice(*turn.frames)]
                cut = len(codes) / FRAME_RATE - len(wav) / SAMPLE_RATE  # silence at the turn's edges
                told[seed, turn.text] = {
                    "prompt": prompt,
                    "codes": codes,
                    "frames": len(codes),
                    "complete": len(codes) < MOST_FRAMES,
                    "silence": max(longest_silence(wav), cut) if len(wav) else cut,
                    "words": word_errors(turn.text, hear(wav)) if hear else (0, 0),
                }
    return told


def free(ours: dict, reference: dict, shifted: bool = False) -> dict:
    """Count failures, and compare lengths with the reference's at the same seed.

    shifted: with the reference's next seed, for its own spread.
    """
    seeds = max(seed for seed, _ in ours) + 1
    ratios = []
    for (seed, text), one in ours.items():
        other = reference[(seed + 1) % seeds if shifted else seed, text]
        ratios.append(one["frames"] / max(1, other["frames"]))
    rates = []
    for seed in range(seeds):
        wrong, count = (sum(one["words"][i] for (s, _), one in ours.items() if s == seed) for i in (0, 1))
        rates += [wrong / count] if count else []
    return {
        "stops_within_10pct": round(sum(abs(ratio - 1) <= 0.1 for ratio in ratios) / len(ratios), 4),
        "run_to_limit": sum(not one["complete"] for one in ours.values()),
        "cut_short": sum(ratio < 0.6 for ratio in ratios),
        "long_silence": sum(one["silence"] > SILENCE for one in ours.values()),
        "wer": round(statistics.mean(rates), 4) if rates else None,
        "wer_sd": round(statistics.stdev(rates), 4) if len(rates) > 1 else None,
    }


@torch.inference_mode()
def led(given, name: str, texts: list[str], reference: dict) -> dict:
    """Return KL divergence and top-1 agreement by codebook, and the end's probability at the true end."""
    ours, theirs = (list(logits_of(given, dtype, texts, reference)) for dtype in (name, REFERENCE))
    divergence, agree, ends = [], [], []
    for (mine, columns), (right, _) in zip(ours, theirs, strict=True):
        log_mine, log_right = (F.log_softmax(logits, -1) for logits in (mine, right))  # [n, K, V]
        real = columns < CODEBOOK_SIZE
        each = (log_right.exp() * (log_right - log_mine)).sum(-1)
        same = (mine.argmax(-1) == right.argmax(-1)).float()
        divergence.append(per_codebook(each, real))
        agree.append(per_codebook(same, real))
        last = int(real[:, 0].sum())
        ends.append([float(log[last, 0, END].exp()) for log in (log_mine, log_right)])
    kl, top1 = (torch.stack(values).mean(0) for values in (divergence, agree))
    mean = [statistics.mean(values) for values in zip(*ends, strict=True)]
    return {
        "kl": round(float(kl.mean()), 6),
        "top1": round(float(top1.mean()), 4),
        "kl_by_codebook": [round(value, 6) for value in kl.tolist()],
        "top1_by_codebook": [round(value, 4) for value in top1.tolist()],
        "end_probability": round(mean[0], 4),
        "end_probability_of_reference": round(mean[1], 4),
    }


def per_codebook(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    """Return means of values [n, K] by codebook, where `where` holds."""
    return (values * where).sum(0) / where.sum(0).clamp_min(1)


def logits_of(given, name: str, texts: list[str], reference: dict):
    """Yield (logits [n, K, V], the columns [n, K] of the reference's speech that follow them) of each text."""
    with engine_of(given, name) as engine:
        assert engine.loaded is not None
        talker, config = engine.loaded.talker, engine.checkpoint.config
        shape = 2, config.layers, config.kv_heads, engine.planner.context, config.head_dim
        cache = torch.zeros(shape, dtype=talker.dtype, device=talker.device)
        for text in texts:
            prompt, columns = reference[0, text]["prompt"], talker.family.delay(reference[0, text]["codes"])
            if prompt.audio and prompt.audio[-1][0] == len(prompt) - 1:
                columns = columns[1:]  # the prompt holds the one that opens speech
            ids = [*prompt.ids, *[0] * (len(columns) - 1)]
            spans = (*prompt.audio, (len(prompt), columns[:-1]))
            hidden = talker.fill(ids, spans, *cache, 0, len(ids))[len(prompt) - 1 :]
            logits = talker.logits(hidden).view(len(columns), config.codebooks, -1)
            yield logits.float().cpu(), columns


if __name__ == "__main__":
    main()
