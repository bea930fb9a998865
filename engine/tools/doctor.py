"""Diagnose a checkpoint folder (read-only), reporting everything that loading would refuse."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

import torch

from ..checkpoint.adapter_files import SETTINGS as ADAPTER_SETTINGS
from ..checkpoint.adapter_files import adapters_below, listed
from ..checkpoint.discover import CONFIG, TOKENIZER, find_checkpoints, missing_parts
from ..checkpoint.dtypes import auto_dtype, compute_dtype
from ..checkpoint.find_codec import codec_remedy, find_codec, open_codec
from ..checkpoint.gguf_file import checkpoint_place, has_file, side_file
from ..checkpoint.hf_config import Settings
from ..checkpoint.load import Checkpoint, inspect, require_quantizable
from ..checkpoint.open_talker import open_talker, plan_of, talker_problems
from ..checkpoint.talker_layout import V3_CODEC, layout_of
from ..checkpoint.tensor_file import TensorFile, open_folder
from ..core.config import DTYPES, VERSION, EngineConfig
from ..core.errors import HiggsError
from ..core.optional import versions
from ..decode.kernels.single import decode_ops
from ..engines.loaded_model import planned_bytes
from ..files.gguf_header import is_gguf
from ..files.json_file import FETCH, read_json
from ..prompt.builder import PromptBuilder
from ..prompt.card import read_card
from ..prompt.tokenizer import REMEDY
from ..talker.config import ModelConfig
from .packed_report import describe_packed

_SHOWN = 12  # problems of one kind listed in full
_FILES = 40  # files listed
_DEPTH = 2  # levels of subfolders searched
_T = TypeVar("_T")


@dataclass
class Report:
    """The findings. Empty strings and None are unknown."""

    folder: str
    family: str = ""
    layout: str = ""
    dimensions: dict[str, object] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)  # dtype -> number of the talker's tensors
    files: dict[str, int] = field(default_factory=dict)  # path in the folder -> bytes
    packed: str = ""  # what loading does with quantised layers
    codec: str = ""  # where it is
    codec_layout: str = ""
    tokenizer: str = ""
    tokens: int | None = None
    speaks: str = ""  # languages and tags, if the card limits them
    kernels: str = ""  # decoder on this machine
    memory: dict[str, int] = field(default_factory=dict)  # dtype -> bytes of an open model on a GPU
    auto: str = ""  # the dtype chosen by "auto" on this machine
    gpu_free: int | None = None  # bytes of free GPU memory
    versions: dict[str, str] = field(default_factory=dict)  # of the pack and libraries; empty: not installed
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    advice: str = ""

    def as_dict(self) -> dict:
        return asdict(self)

    def as_text(self) -> str:
        head = [
            ("folder", self.folder),
            ("model", f"Higgs {self.family}, {self.layout} layout" if self.family else "not recognised"),
            ("shape", ", ".join(f"{name} {value}" for name, value in self.dimensions.items())),
            ("stored as", ", ".join(f"{name} ({count} tensors)" for name, count in self.dtypes.items())),
            ("quantised", self.packed),
            ("codec", f"{self.codec} ({self.codec_layout})" if self.codec else "not found"),
            ("tokenizer", f"{self.tokenizer} ({self.tokens} tokens)" if self.tokens else self.tokenizer or "not found"),
            ("speaks", self.speaks),
            ("kernels", self.kernels),
            ("GPU memory", ", ".join(f"{dtype} {size / 1e6:,.0f} MB" for dtype, size in self.memory.items())),
            ("free now", "" if self.gpu_free is None else f"{self.gpu_free / 1e6:,.0f} MB of the GPU's memory"),
            ("auto takes", self.auto),
            ("versions", ", ".join(f"{name} {version or '-'}" for name, version in self.versions.items())),
        ]
        lines = [f"{name + ':':<12}{value}" for name, value in head if value]
        files = [f"{'file:':<12}{name}  {size:,} bytes" for name, size in self.files.items()]
        lines += files[:_FILES]
        lines += [f"{'files:':<12}... and {len(files) - _FILES:,} more"] if len(files) > _FILES else []
        lines += [f"{'note:':<12}{note}" for note in self.notes]
        lines += [f"{'problem:':<12}{problem}" for problem in self.problems]
        return "\n".join([*lines, f"{'advice:':<12}{self.advice}"])


def examine(folder: Path | str) -> Report:
    """Examine everything in `folder` that the engine would read. Never raises for its contents."""
    folder = Path(folder).expanduser()
    report = Report(str(folder), versions={"higgs-tts": VERSION, **versions()})
    if not folder.is_dir() and not is_gguf(folder):
        report.problems.append(f"{folder} is not a folder.")
        report.advice = "Choose the folder that contains config.json and the .safetensors files."
        return report
    report.files, deeper = _files(folder)
    if deeper:
        more = f" and {len(deeper) - _SHOWN:,} more" if len(deeper) > _SHOWN else ""
        report.notes.append(f"Not checked, because more than {_DEPTH} levels deep: {', '.join(deeper[:_SHOWN])}{more}.")
    place = _try(report, lambda: checkpoint_place(folder)) or folder
    lacks = _try(report, lambda: missing_parts(place)) or []
    report.problems += lacks
    opened = None if f"{CONFIG} is missing." in lacks else _try(report, lambda: open_talker(place))
    if opened:
        _describe_talker(report, place, *opened)
        _describe_codec(report, place, opened[1])
    tokenizer = _try(report, lambda: side_file(place, TOKENIZER))
    if tokenizer and has_file(tokenizer):
        _describe_tokenizer(report, tokenizer, opened[0].model if opened else None)
    card = read_card(place)
    report.speaks = card.describe()
    report.notes += card.notes
    report.problems = list(dict.fromkeys(report.problems))
    report.advice = _advice(report, lacks)
    if not report.problems:
        checkpoint = inspect(place)
        report.memory, report.auto = _memory(checkpoint)
        report.packed = describe_packed(checkpoint, report.auto)
        report.gpu_free = torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None
    return report


def _files(folder: Path) -> tuple[dict[str, int], list[str]]:
    """Return (bytes of each file, deeper folders) of a folder down to _DEPTH levels, or of a single file.

    Hidden files and folders are skipped.
    """
    if folder.is_file():
        return {folder.name: folder.stat().st_size}, []
    files, deeper = {}, []
    for path in sorted(path for level in range(_DEPTH + 1) for path in folder.glob("/".join("*" * (level + 1)))):
        name = path.relative_to(folder).as_posix()
        if name.startswith(".") or "/." in name:
            continue
        if path.is_file():
            files[name] = path.stat().st_size
        elif path.is_dir() and name.count("/") == _DEPTH:
            deeper.append(name)
    return files, deeper


def _memory(checkpoint: Checkpoint) -> tuple[dict[str, int], str]:
    """Return an open model's GPU bytes by dtype, with the default context and without graphs, and the "auto" dtype."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    taken = {}
    for name in DTYPES[1:]:
        config = EngineConfig(str(checkpoint.folder), dtype=name)
        context = min(config.context, checkpoint.config.max_context)
        with contextlib.suppress(HiggsError):  # widths that cannot be quantised
            require_quantizable(checkpoint, config.weights)
            dtype = compute_dtype(name, torch.device("cuda"))
            taken[name] = planned_bytes(checkpoint, config, context, device, dtype)
    return taken, auto_dtype(checkpoint, device)


def _describe_talker(report: Report, folder: Path, settings: Settings, talker: TensorFile) -> None:
    model = settings.model
    report.family, report.layout = model.family, model.layout
    report.notes += settings.notes
    rope = model.rope
    report.dimensions = {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": f"{model.heads}/{model.kv_heads} x {model.head_dim}",
        "intermediate": model.intermediate,
        "text vocabulary": model.text_vocab,
        "codebooks": f"{model.codebooks} x {model.code_vocab}",
        "rope": f"theta {rope.theta:g}" + (f", Llama 3 scaling x{rope.factor:g}" if rope.factor != 1 else ""),
        "context": model.max_context,
    }
    own = [name for name in talker.shapes if not name.startswith(V3_CODEC)]
    for name in own:
        stored = talker.stored_as(name)
        report.dtypes[stored] = report.dtypes.get(stored, 0) + 1
    here = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    report.kernels = decode_ops(model, torch.device(here[0]), here[1])
    plan = plan_of(settings, talker)
    if settings.tied and not plan.tied:
        report.notes.append("The head differs from the code embedding that config.json ties it to; both are used.")
    report.problems += _few(talker_problems(folder, talker, plan))


def _describe_codec(report: Report, folder: Path, talker: TensorFile) -> None:
    codec = _try(report, lambda: find_codec(folder, talker, None))
    if codec:
        report.codec, report.codec_layout = str(codec.folder), codec.layout
        report.notes += codec.notes
        report.problems += _few(codec.weights.problems())


def _describe_tokenizer(report: Report, path: Path, model: ModelConfig | None) -> None:
    report.tokenizer = str(path)
    data = _try(report, lambda: read_json(path))
    if data is None:
        return
    try:
        report.tokens = len(data["model"]["vocab"]) + len(data.get("added_tokens") or ())
    except (KeyError, TypeError):
        report.problems.append(f"{path} is not a tokenizer. {REMEDY}")
        return
    # The same check as in loading. It needs the model's family and number of tokens.
    builder = _try(report, lambda: PromptBuilder(path, model)) if model else None
    if builder:
        report.notes += builder.notes()


def _advice(report: Report, lacks: list[str]) -> str:
    if not report.problems:
        return "Nothing to do: this folder can be loaded."
    folder = Path(report.folder)
    if not report.family:
        # If the folder looks complete by its file names, then its contents are at fault.
        complete = [match.path for match in find_checkpoints([folder], _DEPTH) if match.complete]
        if folders := [path for path in complete if path != folder]:
            return f"Choose a checkpoint folder: {', '.join(map(str, folders))}."
        if (folder / ADAPTER_SETTINGS).is_file():
            return "This is a LoRA. Choose the folder of the model it was trained on; load the LoRA with say --lora."
        if loras := adapters_below(folder):
            return f"This folder contains LoRAs. Load one of them with say --lora: {listed(loras)}."
        if _is_codec(folder):
            return "This is a codec. Choose the folder of the model it belongs to."
    if any(FETCH in problem for problem in report.problems):
        return f"Run '{FETCH}' in this folder, or download the files named above."
    if lacks == [f"{TOKENIZER} is missing."]:  # fine-tunes often lack it; a download would overwrite their weights
        return f"Copy {TOKENIZER} from the model that this one was made from into {folder}, then run this check again."
    if lacks:
        return "Download the model into this folder again; an interrupted download resumes where it stopped."
    if report.family and not report.codec:
        return f"{codec_remedy(folder)}."
    # Only the user knows whether a file can be had again: never advise to delete one.
    return (
        "Download the files named above again, into another folder, or use a published checkpoint. If you trained or "
        "converted them yourself, keep them and export them again."
    )


def _is_codec(folder: Path) -> bool:
    """True if `folder` holds a codec and no talker that includes it."""
    try:
        codec = open_codec(folder)
        return codec is not None and codec.layout != "bundled" and layout_of(open_folder(folder).shapes) is None
    except HiggsError:
        return False


def _try(report: Report, read: Callable[[], _T]) -> _T | None:
    """Return `read()`, or None after adding its error to the problems."""
    try:
        return read()
    except HiggsError as error:
        report.problems.append(str(error))
        return None


def _few(problems: list[str]) -> list[str]:
    rest = len(problems) - _SHOWN
    return [*problems[:_SHOWN], f"... and {rest} more tensors like these."] if rest > 0 else problems
