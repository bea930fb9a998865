"""When words are heard, and what follows from it, in a real ComfyUI."""

from __future__ import annotations

import csv
import json
import math

import numpy as np
import pytest
from higgs_tts.engine import read_cues

FPS = 24


@pytest.fixture
def run(fresh):
    """run(prompt, node) -> (outcome, whether the node ran)"""

    def run(prompt, node):
        outcome = fresh.run(prompt)
        assert not outcome.error, outcome.error
        return outcome, node in {data["node"] for data in outcome.data("executing")}

    return run


def check_heard(rows, wave, rate):
    """Check that words follow each other within the sound, and that each is heard."""
    times = [time for row in rows for time in (row["start"], row["end"])]
    assert times == sorted(times) and times[-1] <= len(wave) / rate + 0.001
    for row in rows:
        assert np.abs(wave[int(row["start"] * rate) : int(row["end"] * rate)]).max() > 0.01, row


def test_lines_tell_the_words_of_what_was_spoken_in_this_run(run, fresh, template):
    given = {"folder": "words", "subtitles": True}
    prompt = template("lines", HiggsTTSLines=given)
    table = list(csv.DictReader(prompt["4"]["inputs"]["lines"].splitlines()))
    assert run(prompt, "4")[1] and not run(prompt, "4")[1]
    prompt["6"] = {"class_type": "PreviewAny", "inputs": {"source": ["4", 2]}}
    outcome, again = run(prompt, "4")
    assert again and json.loads(outcome.text_of("6")) == {"words": []}, "no line changed, so none is spoken"
    prompt["4"]["inputs"]["srt_words"] = 3
    outcome, _ = run(prompt, "4")
    rows = json.loads(outcome.text_of("6"))["words"]
    assert [(row["speaker"], row["word"]) for row in rows] == [
        (line["speaker"], word) for line in table for word in line["text"].split()
    ]
    check_heard(rows, *outcome.audio())
    for line in table:
        srt = (fresh.base / "output" / "words" / f"{line['id']}.srt").read_text(encoding="utf-8")
        cues = read_cues(srt).cues
        assert " ".join(cue.text for cue in cues) == line["text"]
        assert max(len(cue.text.split()) for cue in cues) <= 3
    assert cues[0].start < 1 < next(row["start"] for row in rows if row["word"] == "Come"), "a file's times are its own"
    assert not run(prompt, "4")[1]
    prompt["4"]["inputs"]["lines"] = prompt["4"]["inputs"]["lines"].replace("Come back soon.", "See you.")
    assert [row["word"] for row in json.loads(run(prompt, "4")[0].text_of("6"))["words"]] == ["See", "you."]


def test_subtitles_tell_the_words_at_the_times_of_their_cues(run, template):
    prompt = template("subtitles")
    cues = read_cues(prompt["5"]["inputs"]["srt"]).cues
    assert run(prompt, "5")[1] and not run(prompt, "5")[1]
    prompt["8"] = {"class_type": "PreviewAny", "inputs": {"source": ["5", 4]}}
    outcome, again = run(prompt, "5")
    rows = json.loads(outcome.text_of("8"))["words"]
    assert again and not run(prompt, "5")[1]
    turns = [turn for cue in cues for turn in cue.turns]
    assert [(row["speaker"], row["word"]) for row in rows] == [
        (turn.speaker, word) for turn in turns for word in turn.text.split()
    ]
    check_heard(rows, *outcome.audio())
    left = iter(rows)
    for cue, turn in zip(cues, turns, strict=True):
        own = [next(left) for _ in turn.text.split()]
        assert cue.start <= own[0]["start"] < cue.start + 1, cue
    prompt["5"]["inputs"]["srt_words"] = 4
    prompt["7"]["inputs"]["source"] = ["5", 2]
    lines = read_cues(run(prompt, "5")[0].text_of("7")).cues
    assert " ".join(line.text for line in lines) == " ".join(turn.text for turn in turns)
    assert max(len(line.text.split()) for line in lines) == 4
    for line in lines:
        word = line.text.split()[0]
        assert any(row["word"] == word and abs(row["start"] - line.start) < 0.002 for row in rows), line


def test_each_frame_has_a_mouth_shape_that_the_next_nodes_get(fresh, template):
    prompt = template("speak", HiggsTTSSpeak={"text": "Mum, come home. [pause 1] We have time."})
    given = {"words": ["2", 3], "audio": ["2", 0], "fps": FPS}
    prompt["5"] = {"class_type": "HiggsTTSLipSync", "inputs": given}
    for number, output in ("6", 0), ("7", 1), ("8", 2):
        prompt[number] = {"class_type": "PreviewAny", "inputs": {"source": ["5", output]}}
    outcome = fresh.run(prompt)
    cues, shapes = json.loads(outcome.text_of("6"))["mouthCues"], outcome.texts_of("7")
    wave, rate = outcome.audio()
    assert len(shapes) == math.ceil(len(wave) / rate * FPS) and cues[-1]["end"] == round(len(wave) / rate, 3)
    for frame, shape in enumerate(shapes):
        middle = min((frame + 0.5) / FPS, cues[-1]["end"])
        assert shape in {cue["value"] for cue in cues if cue["start"] - 0.002 <= middle <= cue["end"] + 0.002}
    openness = dict(zip(shapes, map(float, outcome.texts_of("8")), strict=True))
    assert openness["X"] == openness["A"] == 0 < openness["C"] and "X" * (FPS // 2) in "".join(shapes)
    given["speaker"] = "Anna"
    assert "Higgs Lip Sync: 'Anna' says none of the words. Leave speaker empty" in fresh.run(prompt).error
