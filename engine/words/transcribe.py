"""Transcription of clips with Whisper through transformers. Frees device memory after each call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ..audio.resample import resample
from ..checkpoint.catalog import Repo
from ..checkpoint.discover import CONFIG
from ..checkpoint.download import download_repo
from ..core.config import SAMPLE_RATE
from ..core.errors import HiggsError
from ..core.optional import import_optional
from ..device.memory import drop
from ..files.json_file import read_json
from ..voice.clip import Wave, check_clip, prepare_clip

HEARS = 16_000  # Hz
_WEIGHTS = "model.safetensors"
_FILES = ("*.json", "*.txt", _WEIGHTS)
WHISPERS = {
    "whisper-small": Repo("openai/whisper-small", "973afd24965f72e36ca33b3055d56a652f456b4d", _FILES, size=970_000_000),
    "whisper-large-v3-turbo": Repo(
        "openai/whisper-large-v3-turbo", "41f01f3fe87f28c78e2fbf8b568835947dd65ed9", _FILES, size=1_620_000_000
    ),
}


def find_whispers(roots: Iterable[Path]) -> dict[str, Path]:
    """Return name -> folder of the Whisper models, in transformers' layout, directly below these folders."""
    folders: dict[str, Path] = {}
    for folder in (path for root in roots if root.is_dir() for path in sorted(root.iterdir())):
        if _is_whisper(folder):
            folders.setdefault(folder.name, folder)
    return folders


def download_whisper(name: str, root: Path, on_progress: Callable[[float, str], None] | None = None) -> Path:
    """Download `WHISPERS[name]` to its own folder under `root` if missing, and return the folder.

    Raises HiggsError if the download fails.
    """
    if (folder := find_whispers([root]).get(name)) is None:
        folder = root / name
        download_repo(WHISPERS[name], folder, on_progress)
    return folder


def size_of(folder: Path) -> int:
    """Return an upper bound for the bytes of its weights on a GPU. On a CPU they are fp32."""
    return (folder / _WEIGHTS).stat().st_size


def transcribe(folder: Path, wav: Wave, sample_rate: int, device: torch.device) -> str:
    """Transcribe a clip [C, S] or [S] of 1 to 30 seconds, in the language Whisper detects.

    Raises HiggsError if the clip is unsuitable, or the folder holds no complete Whisper.
    """
    check_clip(wav, sample_rate)
    with transcriber(folder, device) as hear:
        return hear(wav, sample_rate)


@contextlib.contextmanager
def transcriber(folder: Path, device: torch.device) -> Iterator[Callable[[Wave, int], str]]:
    """Yield a function (clip [C, S] or [S], Hz) -> transcript. Whisper is on the device until the end.

    Raises HiggsError if the folder holds no complete Whisper.
    """
    extractor, tokenizer, model = load_whisper(folder, device)
    # Saved again by transformers, a Whisper has lost its published prompt. English-only ones know no tasks.
    given = {"task": "transcribe"} if getattr(model.generation_config, "lang_to_id", None) else {}

    @torch.inference_mode()
    def hear(wav: Wave, sample_rate: int) -> str:
        samples = resample(prepare_clip(wav, sample_rate), SAMPLE_RATE, HEARS)
        features = extractor(samples.numpy(), sampling_rate=HEARS, return_tensors="pt").input_features
        ids = model.generate(features.to(device, model.dtype), **given)
        return " ".join(tokenizer.batch_decode(ids, skip_special_tokens=True)[0].split())

    try:
        with torch.inference_mode():
            model.to(device)
        yield hear
    finally:
        drop((*model.parameters(), *model.buffers()))
        if device.type == "cuda":
            torch.cuda.empty_cache()


def load_whisper(folder: Path, device: torch.device) -> tuple[Any, Any, Any]:
    """Return transformers' feature extractor, tokenizer and model, on the host in the dtype for a device.

    Raises HiggsError if transformers is missing, or the folder holds no complete Whisper.
    """
    kinds = ("WhisperFeatureExtractor", "WhisperTokenizerFast", "WhisperForConditionalGeneration")
    classes = [import_optional("transformers", kind) for kind in kinds]
    # By default, transformers 4 converts weights to fp32, and transformers 5 keeps their dtype.
    dtype = torch.float32 if device.type == "cpu" else "auto"
    try:
        extractor, tokenizer = (kind.from_pretrained(folder, local_files_only=True) for kind in classes[:2])
        return extractor, tokenizer, classes[2].from_pretrained(folder, local_files_only=True, torch_dtype=dtype).eval()
    except (OSError, ValueError, RuntimeError) as error:
        raise HiggsError(
            f"{folder} cannot be loaded as Whisper ({str(error).partition(chr(10))[0]}). Download it again."
        ) from error


def require_whisper(folder: Path) -> None:
    """Raise HiggsError if a folder holds no Whisper."""
    if not _is_whisper(folder):
        raise HiggsError(
            f"{folder} holds no Whisper. Choose a folder in transformers' format, with config.json and {_WEIGHTS}."
        )


def _is_whisper(folder: Path) -> bool:
    try:
        return (folder / _WEIGHTS).is_file() and read_json(folder / CONFIG).get("model_type") == "whisper"
    except (HiggsError, OSError):  # not a model's folder, or unreadable
        return False
