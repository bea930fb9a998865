"""Make the clips of engine/voice/built_in from speakers and texts. Needs libespeak-ng1, like `read`.

python -m training.built_in --model kokoro-v1.0.int8.onnx --kokoro DIR --out engine/voice/built_in
"""

from __future__ import annotations

import argparse
from pathlib import Path

import soundfile

from .corpus import Line
from .natural_voices import Voices
from .read import spoken
from .shards import SAMPLE_RATE
from .speak import speak
from .speaker import Speaker

BUILT_IN = {
    "amber": (
        "bella",
        "The garden is quiet after the rain. I will make some tea, and read by the window until it gets dark.",
    ),
    "clara": (
        "emma",
        "You can see the harbour from the kitchen. In the morning, the boats come in before anybody is awake.",
    ),
    "henry": (
        "lewis",
        "He kept the old map in a drawer by the door. Nobody had asked to see it for twenty years.",
    ),
    "jack": (
        "michael",
        "We drove all night with the radio on. By the time the sun came up, we could smell the sea.",
    ),
    "marcus": (
        "fenrir",
        "Listen carefully, because I will only say this once. The key is under the third stone on the left.",
    ),
    "nora": (
        "sarah",
        "I found your letter in a book this morning. It made me laugh so much that I missed my stop.",
    ),
    "oliver": (
        "george",
        "My train leaves at noon, so there is no need to hurry. Let us walk along the river and look at the boats.",
    ),
    "ruth": (
        "kore",
        "On clear evenings we could see the whole valley from the hill. My brother used to count the lights.",
    ),
    "sky": (
        "sky",
        "Wait for me at the corner, I'm almost there! You won't believe what happened at work today.",
    ),
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Kokoro's int8 ONNX file")
    parser.add_argument("--kokoro", type=Path, required=True, help="folder of voices.npz and vocab.json")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    names = tuple(name for name, _ in BUILT_IN.values())
    speaker = Speaker(given.model, given.kokoro / "vocab.json", Voices.of(names, given.kokoro), "cpu")
    for clip, (name, text) in BUILT_IN.items():
        ((_, sound),) = speak(speaker, [(spoken(Line(text, (text,))), name)])
        soundfile.write(given.out / f"{clip}.flac", sound.samples, SAMPLE_RATE)
        (given.out / f"{clip}.txt").write_text(text + "\n", encoding="utf-8", newline="\n")
        print(f"{clip}: {len(sound.samples) / SAMPLE_RATE:.1f} s", flush=True)


if __name__ == "__main__":
    main()
