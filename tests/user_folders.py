"""A random user's files in ComfyUI's folders: LoRAs, clips, and damaged files."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import soundfile
import torch

from ..engine import BUILT_IN_CLIPS, Voice
from .peft_files import write_adapter
from .whisper_files import write_whisper

CHANGING = "changing.flac"  # a clip of the library that is replaced


def add_user_files(base: Path, checkpoint: Path) -> None:
    """Add LoRAs for a checkpoint, a Whisper, clips and damaged files to a ComfyUI's folders."""
    models, given = base / "models", base / "input"
    write_whisper(models / "whisper" / "small")
    with torch.inference_mode(False):
        for name, kind in (("anna", "plain"), ("team/slow", "dora")):
            write_adapter(checkpoint, models / "loras" / name, kind)
    _film(given)
    shutil.copy(BUILT_IN_CLIPS / "oliver.flac", given / "mine.flac")
    _damaged(models, given, checkpoint)


def replace_clip(base: Path, voice: str) -> None:
    """Replace a clip of the library by one of the pack's."""
    shutil.copy(BUILT_IN_CLIPS / f"{voice}.flac", base / "models" / "voices" / CHANGING)


def _film(folder: Path) -> None:
    """Write a film's sound, two seconds of each of two speakers, and its subtitles."""
    clips = [soundfile.read(BUILT_IN_CLIPS / f"{name}.flac", dtype="float32") for name in ("amber", "oliver")]
    rate = clips[0][1]
    soundfile.write(folder / "film.wav", np.concatenate([wave[: 2 * rate] for wave, _ in clips]), rate)
    cues = "1\n00:00:00,000 --> 00:00:02,000\nAnna: Two fish.\n\n2\n00:00:02,000 --> 00:00:04,000\nTom: Is it late?\n"
    (folder / "film.srt").write_text(cues, encoding="utf-8")


def _damaged(models: Path, given: Path, checkpoint: Path) -> None:
    """Write files that no node can use."""
    voices, noise = models / "voices", random.Random(45).randbytes(4000)
    shutil.copytree(checkpoint, models / "higgs_tts" / "damaged")
    for file in (models / "higgs_tts" / "damaged").rglob("*.safetensors"):
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    (models / "higgs_tts" / "half").mkdir()
    (models / "higgs_tts" / "half" / "config.json").write_text('{"model_type": "higgs_multimodal_qwen3"}')
    Voice(torch.zeros(50, 8, dtype=torch.int64), "Two.", "other", "1+1").save(voices / "other.safetensors")
    whole = (voices / "other.safetensors").read_bytes()
    (voices / "damaged.safetensors").write_bytes(whole[: len(whole) // 2])
    (voices / "text.wav").write_text("This is not a sound.", encoding="utf-8")
    (models / "loras" / "noise.safetensors").write_bytes(noise)
    (given / "broken.epub").write_bytes(b"PK\x03\x04" + noise)
    (given / "empty.txt").write_text("\n", encoding="utf-8")
    (given / "noise.srt").write_bytes(noise)
