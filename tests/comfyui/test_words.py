"""When words are heard, and what follows from it, in a real ComfyUI."""

from __future__ import annotations

import json
import math

FPS = 24


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
