"""The results of benchmarks/low_bit_quality.py: no faults for the reference itself, and every fault of speech."""

import argparse
import importlib
import pathlib
import sys

import pytest
import torch

BENCHMARKS = pathlib.Path(__file__).resolve().parents[2] / "benchmarks"
TEXT = "Your computer can speak now."


@pytest.fixture
def quality(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("low_bit_quality")
    for name in ("low_bit_quality", "common"):
        sys.modules.pop(name)


def took(frames, complete=True, silence=0.0, words=(0, 10)):
    return {"frames": frames, "complete": complete, "silence": silence, "words": words}


def test_failures_are_counted(quality):
    reference = {(seed, text): took(100) for seed in (0, 1) for text in "abcde"}
    ours = reference | {
        (0, "a"): took(109),
        (0, "b"): took(111),
        (1, "c"): took(50, words=(3, 10)),
        (1, "d"): took(750, complete=False),
        (1, "e"): took(95, silence=2.5),
    }
    told = quality.free(ours, reference)
    assert told["stops_within_10pct"] == 0.7
    assert (told["run_to_limit"], told["cut_short"], told["long_silence"]) == (1, 1, 1)
    assert (told["wer"], told["wer_sd"]) == (0.03, 0.0424)
    assert quality.free(reference, reference, shifted=True)["stops_within_10pct"] == 1.0


def test_formats_differ_from_the_reference_and_it_not_from_itself(quality):
    given = argparse.Namespace(folder=str(quality.EMBEDDED), device="cpu", seeds=1)
    reference = quality.speak(given, quality.REFERENCE, [TEXT], None)
    assert reference[0, TEXT]["complete"]
    same, coarse = (quality.led(given, name, [TEXT], reference) for name in (quality.REFERENCE, "int4"))
    assert same["kl"] == 0 and same["top1"] == 1
    assert same["end_probability"] == same["end_probability_of_reference"] > 0.5
    assert 0.01 < coarse["kl"] < 1 and 0.3 < coarse["top1"] < 1
    assert coarse["end_probability_of_reference"] == same["end_probability"]


def test_sentences_spoken_together_sound_as_alone(quality):
    given = argparse.Namespace(folder=str(quality.EMBEDDED), device="cpu", seeds=2)
    texts = [TEXT, "Good morning.", "It rains."]
    together = quality.speak(given, "fp32", texts, None)
    assert list(together) == [(seed, text) for seed in (0, 1) for text in texts]
    assert all(5 < one["frames"] == len(one["codes"]) < 100 and one["complete"] for one in together.values())
    assert not torch.equal(together[0, TEXT]["codes"], together[1, TEXT]["codes"])
    alone = quality.speak(given, "fp32", texts[1:2], None)
    for seed in (0, 1):
        assert torch.equal(alone[seed, texts[1]]["codes"], together[seed, texts[1]]["codes"])
        assert alone[seed, texts[1]]["silence"] == together[seed, texts[1]]["silence"]


def test_a_sentence_without_an_end_runs_to_the_limit(quality, monkeypatch):
    monkeypatch.setattr(quality, "MOST_FRAMES", 12)
    given = argparse.Namespace(folder=str(quality.EMBEDDED), device="cpu", seeds=1)
    told = quality.speak(given, "fp32", [TEXT, "No."], None)
    assert (told[0, TEXT]["frames"], told[0, TEXT]["complete"]) == (12, False)


def test_means_include_only_real_codes(quality):
    values, real = torch.tensor([[1.0, 5.0], [3.0, 7.0]]), torch.tensor([[True, False], [True, True]])
    assert quality.per_codebook(values, real).tolist() == [2.0, 7.0]
