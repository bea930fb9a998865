"""Higgs Lip Sync: values per frame, the chosen speaker, and what is refused."""

from __future__ import annotations

import json

import pytest
import torch
from higgs_tts.engine import HiggsError, Word, words_json

WORDS = words_json([Word("Bob", 0.4, 0.8, "Anna"), Word("So", 1.0, 1.4, "Tom")])
AUDIO = {"waveform": torch.zeros(1, 2, 19500), "sample_rate": 10_000}


@pytest.fixture
def run(load_module):
    """run(**inputs) -> the node's outputs"""
    node = load_module("lip_sync").HiggsTTSLipSync
    return lambda words=WORDS, audio=AUDIO, **inputs: node.execute(words=words, audio=audio, **inputs).args


def test_each_frame_has_a_shape_and_an_openness(run):
    cues, shapes, openness = run(fps=10.0)
    assert "".join(shapes) == "XXXXAEEAAABEEEXXXXXX" and len(openness) == 20
    assert openness[3:7] == [0.0, 0.0, 0.4, 0.4] and json.loads(cues)["metadata"]["duration"] == 1.95
    assert len(run()[1]) == 49  # 25 per second


def test_only_the_chosen_speaker_s_mouth_moves(run):
    assert "".join(run(fps=10.0, speaker="tom")[1]) == "XXXXXXXXXXBEEEXXXXXX"
    assert "".join(run(fps=10.0, speaker=" Anna ")[1]) == "XXXXAEEAXXXXXXXXXXXX"
    assert set(run(words_json([]), speaker="Anna")[1]) == {"X"}
    with pytest.raises(
        HiggsError, match=r"^Higgs Lip Sync: 'Cleo' says none of the words\. Enter one of: Anna, Tom\.$"
    ):
        run(speaker="Cleo")
    with pytest.raises(HiggsError, match="Leave speaker empty"):
        run(words_json([Word("Bob", 0.4, 0.8)]), speaker="Cleo")


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"words": "Hello."}, "'Hello.' is not JSON of word times"),
        ({"words": ""}, "is not JSON of word times"),
        ({"audio": None}, "the audio input is empty"),
        ({"audio": {"waveform": torch.zeros(1, 1, 0), "sample_rate": 10}}, "the audio input has no sound"),
        ({"audio": {"waveform": torch.zeros(1, 1, 9), "sample_rate": 0}}, "the audio input has no sound"),
        ({"fps": 0.0}, "fps is 0"),
        ({"fps": float("nan")}, "fps is nan"),
    ],
)
def test_what_is_refused(run, inputs, says):
    with pytest.raises(HiggsError, match=f"^Higgs Lip Sync: .*{says}"):
        run(**inputs)


def test_lists_go_to_the_next_node_value_by_value(schemas):
    outputs = schemas["HiggsTTSLipSync"].outputs
    assert [getattr(output, "is_output_list", False) for output in outputs] == [False, True, True]
