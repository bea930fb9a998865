"""A folder to a checkpoint that is known to fit, and its talker onto one device. Builds no network."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..errors import HiggsError
from ..json_file import read_json
from ..talker import FAMILIES
from ..talker.config import ModelConfig
from ..talker.weight import FORMATS, SCRATCH, Format, format_of, is_layer_matrix, scratch_bytes
from .codec_layout import CodecWeights, looks_like_codec
from .discover import CONFIG, TOKENIZER
from .find_codec import FEW, find_codec, first_problems
from .hf_config import Settings, family_of, read_settings
from .quantised_file import QuantisedFile, quantised
from .talker_layout import Plan, beginnings, layout_of, make_plan, shape_problems, unwrapped
from .tensor_file import TensorFile, open_folder
from .upload import Job, upload

# What quantisers add beside a weight: scales, zero points, tables.
_QUANTISED = re.compile(
    r"(^|[._])(weight_scale(_inv|_2)?|input_scale|scale_weight|scale_input|scaled_fp8|comfy_quant|SCB|absmax|quant_map"
    r"|qweight|qzeros|scales|g_idx)$|quant_state"
)
_HOST = "embed_text"  # looked up once a sentence, a few rows of it: not worth device memory


@dataclass(frozen=True)
class Checkpoint:
    """Everything the headers tell: no weight has been read yet."""

    folder: Path
    config: ModelConfig
    tokenizer: Path
    talker: TensorFile
    plan: Plan
    codec: CodecWeights
    codec_folder: Path
    problems: tuple[str, ...]  # each names a file and a tensor; loading refuses when there are any
    notes: tuple[str, ...]  # worth telling, no hindrance


def inspect(folder: Path | str, codec_folder: Path | str | None = None) -> Checkpoint:
    """Read the config and the headers of the checkpoint in `folder`, and find its codec.

    The codec is the one inside the talker's file, else the one in `codec_folder`, else it is searched for.
    Raises HiggsError when there is no Higgs checkpoint, a file of it is missing, or its settings are not supported;
    tensors that do not fit are listed in `problems`.
    """
    folder = Path(folder).expanduser()
    settings, talker = open_talker(folder)
    tokenizer = folder / TOKENIZER
    if not tokenizer.is_file():
        raise HiggsError(f"{tokenizer} is missing. Copy it from the model's repository into {folder}.")
    codec = find_codec(folder, talker, Path(codec_folder).expanduser() if codec_folder else None)
    plan = make_plan(settings.model, talker.shapes, settings.tied)
    problems = (*talker_problems(folder, talker, plan), *codec.weights.problems())
    notes = (*settings.notes, *codec.notes)
    return Checkpoint(folder, settings.model, tokenizer, talker, plan, codec.weights, codec.folder, problems, notes)


def open_talker(folder: Path) -> tuple[Settings, TensorFile]:
    """The settings and the tensors of the talker in `folder`. Raises HiggsError where there is none."""
    if not folder.is_dir():
        raise HiggsError(f"{folder} is not a folder. Give the folder that contains config.json and model.safetensors.")
    config = read_json(folder / CONFIG)
    stored = open_folder(folder)
    if not stored.shapes:
        gguf = "GGUF files are not supported. " if any(folder.glob("*.gguf")) else ""
        raise HiggsError(f"{folder} contains no .safetensors file. {gguf}Download the published model into it.")
    talker, prefixes = unwrapped(stored)
    talker = quantised(talker)
    layout = layout_of(talker.shapes)
    if layout is None:
        raise HiggsError(_stranger(folder, config, talker.shapes))
    settings = read_settings(config, folder / CONFIG, layout)
    if prefixes:
        note = f"The names of the tensors in {folder} begin with {' and '.join(prefixes)}, which is ignored."
        settings = replace(settings, notes=(*settings.notes, note))
    return settings, talker


def _stranger(folder: Path, config: dict, names: Iterable[str]) -> str:
    """What to say of tensors that are not a talker's."""
    remedy = "Give the folder of Higgs TTS 3 or Higgs Audio v2."
    if looks_like_codec(names):
        return f"{folder} contains the audio codec, not the model itself. {remedy}"
    meant = FAMILIES.get(family_of(config) or "")
    wanted = " or ".join(f"{one.tensor_names} ({one.title})" for one in ([meant] if meant else FAMILIES.values()))
    return (
        f"{folder} does not contain a Higgs model: the names of its tensors begin with {beginnings(names)}; "
        f"expected: {wanted}. {remedy}"
    )


def talker_problems(folder: Path, talker: TensorFile, plan: Plan) -> list[str]:
    """What keeps the talker from being loaded, a sentence each, naming file and tensor."""
    strange = [name for name in plan.unexpected if _QUANTISED.search(name)]
    known = set()
    if talker.weights:
        known = {key for name in _matrices(plan) for source in plan.parts[name] for key in source.stored}
    strange += [name for name in plan.stored() if not talker.dtypes[name].is_floating_point and name not in known]
    if strange:
        where = talker.file_of(strange[0])
        return [f"{where}: tensor {strange[0]} belongs to a quantised model, which is not supported."]
    problems, missing = [], []
    for name, what in shape_problems(plan, talker.shapes):
        if name in talker.shapes:
            problems.append(f"{talker.file_of(name)}: tensor {name} {what}.")
            continue
        missing.append(name if name.startswith("tied.") else plan.prefix + name)
        problems.append(f"the weights in {folder}: tensor {missing[-1]} {what}.")
    problems += [f"{talker.file_of(name)}: tensor {name} is not part of this model." for name in plan.unexpected]
    if min(len(missing), len(plan.unexpected)) > FEW:
        names = f"it has {plan.unexpected[0]}, and {missing[0]} is expected"
        whole = (
            f"{len(missing)} tensors are missing and {len(plan.unexpected)} are unknown; they may be named differently"
        )
        problems.insert(0, f"{talker.file_of(plan.unexpected[0])}: {whole}: {names}.")
    return problems


def load_talker(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    weights: str = "",
    allocate: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
) -> dict[str, torch.Tensor]:
    """The talker's tensors under their canonical names, fused, in `dtype` on `device`, and nothing else there.

    weights: a format of talker/weight.py that the layers' matrices are quantised to on their way, one after another
    through SCRATCH, which stays; a file that holds them so is taken as it is. allocate: a context for what stays.
    `embed_text` stays in host memory in the file's dtype, backed by the file where it is stored in one piece. A tied
    head is the same tensor object as `embed_codes`.
    Raises HiggsError when the checkpoint has problems.
    """
    require_whole(checkpoint)
    tensors: dict[str, torch.Tensor] = {}
    jobs: list[Job] = []
    with allocate():
        if size := _scratch_bytes(checkpoint, dtype, weights):
            tensors[SCRATCH] = torch.empty(size, dtype=torch.uint8, device=device)
    for name, sources in checkpoint.plan.parts.items():
        stored = [key for source in sources for key in source.stored]
        if name == _HOST:
            halves = [checkpoint.talker.get(key) for key in stored]
            tensors[name] = halves[0] if len(halves) == 1 else torch.cat(halves)
            continue
        *rows, width = shape = checkpoint.plan.shape(name)
        format = _format(name, shape, dtype, weights)
        with allocate():
            data = tensors[name] = torch.empty(
                *rows, format.row_bytes(width) // format.dtype.itemsize, dtype=format.dtype, device=device
            )
        if format.quantize is None:
            jobs += _place(checkpoint.talker, stored, data)
        elif isinstance(checkpoint.talker, QuantisedFile):
            _take(checkpoint.talker, stored, data, format)
        else:
            whole = tensors[SCRATCH][: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            jobs += _quantize(checkpoint.talker, stored, whole, data, format)
    if jobs:
        upload(jobs, device)
    if SCRATCH in tensors and device.type == "cuda":
        torch.cuda.empty_cache()  # what quantising computed with
    if checkpoint.plan.tied:
        tensors["head_codes"] = tensors["embed_codes"]
    return tensors


def _place(file: TensorFile, stored: list[str], target: torch.Tensor) -> list[Job]:
    """Copies stored tensors one below the other into `target` now, or says how they are to be uploaded to a GPU."""
    spans = [file.span(key) if target.device.type == "cuda" else None for key in stored]
    parts = target.split([file.shapes[key][0] for key in stored])
    if None not in spans:
        return [
            Job(*span, file.dtypes[key], part) for span, key, part in zip(spans, stored, parts, strict=True) if span
        ]
    for key, part in zip(stored, parts, strict=True):
        part.copy_(file.get(key))
    return []


def _quantize(
    file: TensorFile, stored: list[str], whole: torch.Tensor, data: torch.Tensor, format: Format
) -> list[Job]:
    """As `_place`, into `whole`, and from there into `data`."""
    assert format.quantize is not None
    quantize = functools.partial(format.quantize, whole, data)
    placed = _place(file, stored, whole)
    if not placed:
        quantize()
        return []
    return [*placed[:-1], replace(placed[-1], then=quantize)]


def _take(file: QuantisedFile, stored: list[str], data: torch.Tensor, format: Format) -> None:
    """Matrices one below the other into `data`, as the file has quantised them; those that it has not are now."""
    assert format.quantize is not None
    for key, part in zip(stored, data.split([file.shapes[key][0] for key in stored]), strict=True):
        if file.is_quantised(key):
            file.put(key, part)
        else:
            format.quantize(file.get(key, data.device), part)


def require_whole(checkpoint: Checkpoint) -> None:
    """Raises HiggsError that names the first problems of a checkpoint that has any."""
    if not checkpoint.problems:
        return
    codec = checkpoint.codec.problems()
    if talker := [problem for problem in checkpoint.problems if problem not in codec]:
        head = f"{checkpoint.folder} does not fit the model that its config.json describes."
        raise HiggsError(f"{head} {first_problems(talker)} Download the published files.")
    raise HiggsError(
        f"The codec in {checkpoint.codec_folder} is not usable. {first_problems(codec)} Download the codec again."
    )


def talker_sizes(checkpoint: Checkpoint, dtype: torch.dtype, weights: str = "") -> list[int]:
    """Bytes of each tensor that `load_talker` puts on the device."""
    size = _scratch_bytes(checkpoint, dtype, weights)
    sizes = [size] if size else []
    for name in checkpoint.plan.parts:
        if name != _HOST:
            *rows, width = shape = checkpoint.plan.shape(name)
            sizes.append(math.prod(rows) * _format(name, shape, dtype, weights).row_bytes(width))
    return sizes


def _format(name: str, shape: tuple[int, ...], dtype: torch.dtype, weights: str) -> Format:
    """What a tensor of the talker is stored as on the device."""
    return FORMATS[weights] if weights and is_layer_matrix(name, shape) else format_of(dtype)


def _scratch_bytes(checkpoint: Checkpoint, dtype: torch.dtype, weights: str) -> int:
    """Of SCRATCH; 0 where nothing is quantised."""
    plan = checkpoint.plan
    return max(scratch_bytes(plan.shape(name), dtype) for name in _matrices(plan)) if weights else 0


def _matrices(plan: Plan) -> list[str]:
    """What may be quantised."""
    return [name for name in plan.parts if is_layer_matrix(name, plan.shape(name))]


def require_quantizable(checkpoint: Checkpoint, weights: str) -> None:
    """Raises HiggsError for widths that are not whole blocks of the format `weights`, and for a file of another format.

    Empty: nothing is quantised.
    """
    if checkpoint.talker.weights not in ("", weights):
        held = checkpoint.talker.weights
        raise HiggsError(f"{checkpoint.folder} holds {held} weights. Choose dtype auto or {held} for it.")
    block = FORMATS[weights].block if weights else 1
    widths = [checkpoint.plan.shape(name)[1] for name in _matrices(checkpoint.plan)]
    odd = [width for width in widths if width % block]
    if odd:
        raise HiggsError(
            f"dtype {weights} needs widths that are multiples of {block}, and this model has one of {odd[0]}. "
            "Choose auto, bf16 or fp32."
        )
