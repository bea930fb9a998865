"""Transcription of clips with Whisper through transformers. Frees device memory after each call."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

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
_FILES = ("*.json", "*.txt", "model.safetensors")
_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors", "pytorch_model.bin", "pytorch_model-*-of-*.bin")
_TOKENIZERS = ("tokenizer.json", "vocab.json")
_MARKS = ("<|startoftranscript|>", "<|translate|>", "<|transcribe|>", "<|notimestamps|>")
_ENGLISH_START = 50257  # the first mark's id in models for English alone, which know neither languages nor tasks
# `tokenizers` raises Exception itself.
_FAILED = (OSError, ValueError, RuntimeError, TypeError, LookupError, AttributeError, ImportError, SafetensorError)
_UNSET = (None, 20)  # tokens at most, where a folder does not say
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
    return sum(path.stat().st_size for path in _weights(folder))


def identity_of(folder: Path) -> str:
    """Return a cheap identity of a Whisper: its folder's name and the size of its weights."""
    return f"{folder.resolve().name} {size_of(folder)}"


def transcribe(folder: Path, wav: Wave, sample_rate: int, device: torch.device) -> str:
    """Transcribe a clip [C, S] or [S] of 1 to 30 seconds, in the language Whisper detects.

    Raises HiggsError if the clip is unsuitable, or the folder holds no complete Whisper.
    """
    check_clip(wav, sample_rate)
    with transcriber(folder, device) as hear:
        return hear([wav], sample_rate)[0]


@contextlib.contextmanager
def transcriber(folder: Path, device: torch.device) -> Iterator[Callable[[Sequence[Wave], int], list[str]]]:
    """Yield a function (clips [C, S] or [S], Hz) -> their transcripts. Whisper is on the device until the end.

    Raises HiggsError if the folder holds no complete Whisper.
    """
    extractor, tokenizer, model = load_whisper(folder, device)
    given = {"task": "transcribe"} if model.generation_config.is_multilingual else {}

    @torch.inference_mode()
    def hear(wavs: Sequence[Wave], sample_rate: int) -> list[str]:
        samples = [resample(prepare_clip(wav, sample_rate), SAMPLE_RATE, HEARS).numpy() for wav in wavs]
        read = extractor(samples, sampling_rate=HEARS, return_tensors="pt", return_attention_mask=True)
        features, mask = read.input_features.to(device, model.dtype), read.attention_mask.to(device)
        ids = model.generate(features, attention_mask=mask, **given)  # transformers warns of batches without a mask
        return [" ".join(text.split()) for text in tokenizer.batch_decode(ids, skip_special_tokens=True)]

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
    require_whisper(folder)
    kinds = ("WhisperFeatureExtractor", "WhisperTokenizerFast", "WhisperForConditionalGeneration")
    extractors, tokenizers, models = (import_optional("transformers", kind) for kind in kinds)
    # By default, transformers 4 converts weights to fp32, and transformers 5 keeps their dtype.
    dtype = torch.float32 if device.type == "cpu" else "auto"
    given = {"torch_dtype": dtype, "output_loading_info": True, "ignore_mismatched_sizes": True}
    if not any((folder / name).is_file() for name in _TOKENIZERS):
        raise _unusable(folder, f"it has no {_TOKENIZERS[0]}: copy that of the model it was made from")
    try:
        with _no_bars():
            tokenizer = tokenizers.from_pretrained(folder, local_files_only=True)
            model, report = models.from_pretrained(folder, local_files_only=True, **given)
    except BaseException as error:
        if type(error) is Exception or isinstance(error, _FAILED):
            lines = filter(None, map(str.strip, str(error).splitlines()))
            raise _unusable(folder, next(lines, type(error).__name__)) from error
        raise
    if wrong := sorted({*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}):
        raise _unusable(folder, f"its weights lack {wrong[0]}, or have it in another size")
    _complete(folder, tokenizer, model)
    return extractors(feature_size=model.config.num_mel_bins), tokenizer, model.eval()


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Hide transformers' bars, which would come between lines of progress."""
    settings = importlib.import_module("transformers.utils.logging")
    was_shown = settings.is_progress_bar_enabled()
    settings.disable_progress_bar()
    try:
        yield
    finally:
        if was_shown:
            settings.enable_progress_bar()


def _complete(folder: Path, tokenizer: Any, model: Any) -> None:
    """Set what `generate` needs. The folder of a fine-tune may lack it, or have that of another Whisper."""
    settings = model.generation_config
    start, *tasks, untimed = tokenizer.convert_tokens_to_ids(list(_MARKS))
    if start != settings.decoder_start_token_id:
        raise _unusable(folder, "its tokenizer is not this model's: copy tokenizer.json of the model it was made from")
    settings.no_timestamps_token_id = untimed
    settings.is_multilingual = getattr(settings, "is_multilingual", start != _ENGLISH_START)
    if settings.is_multilingual:
        languages = range(start + 1, tasks[0])
        settings.lang_to_id = dict(zip(tokenizer.convert_ids_to_tokens(list(languages)), languages, strict=True))
        settings.task_to_id = dict(zip(("translate", "transcribe"), tasks, strict=True))
    settings.forced_decoder_ids = None  # of the published models; transformers 4 refuses them beside a task
    settings.return_timestamps = settings.return_dict_in_generate = False
    if settings.max_length in _UNSET:
        settings.max_length = model.config.max_target_positions


def _unusable(folder: Path, reason: str) -> HiggsError:
    return HiggsError(f"{folder} cannot be loaded as Whisper ({reason}). Download it again.")


def require_whisper(folder: Path) -> None:
    """Raise HiggsError if a folder holds no Whisper."""
    if not _is_whisper(folder):
        raise HiggsError(
            f"{folder} holds no Whisper. Choose a folder in transformers' format, with config.json and {_WEIGHTS[0]}."
        )


def _is_whisper(folder: Path) -> bool:
    try:
        return bool(_weights(folder)) and read_json(folder / CONFIG).get("model_type") == "whisper"
    except (HiggsError, OSError):  # not a model's folder, or unreadable
        return False


def _weights(folder: Path) -> list[Path]:
    """Return the files that transformers reads the weights from."""
    return next(filter(None, ([*folder.glob(pattern)] for pattern in _WEIGHTS)), [])
