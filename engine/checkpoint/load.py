"""Inspection of a checkpoint's headers, and loading of its talker onto a device."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..core.config import Adapter
from ..core.errors import HiggsError
from ..core.threads import is_slow
from ..talker.config import ModelConfig
from ..talker.weight import FORMATS, KEPT_BY, SCRATCH, Format, format_of, is_layer_matrix, scratch_bytes, widened_bytes
from .adapters import Adapters, lay_over
from .codec_layout import CodecWeights
from .discover import TOKENIZER
from .find_codec import find_codec, first_problems
from .gguf_file import checkpoint_place, has_file, side_file
from .open_talker import matrices, open_talker, plan_of, talker_problems
from .quantised_file import QuantisedFile
from .talker_layout import TensorPlan
from .tensor_file import TensorFile
from .upload import Job, upload

ON_HOST = "embed_text"  # a few rows are looked up per sentence: not worth device memory


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as described by its headers. No weight has been read yet."""

    folder: Path
    config: ModelConfig
    tokenizer: Path
    talker: TensorFile
    plan: TensorPlan
    codec: CodecWeights
    codec_folder: Path
    adapters: Adapters
    problems: tuple[str, ...]  # each names a file and a tensor; loading fails if there are any
    notes: tuple[str, ...]  # for the user; loading works
    warnings: tuple[str, ...]  # for the result of every speech


def inspect(folder: Path | str, codec_folder: Path | str | None = None, adapters: Sequence[Adapter] = ()) -> Checkpoint:
    """Read the config and the headers of the checkpoint in `folder` and of `adapters`, and find its codec.

    The codec is the one inside the talker's file, else the one in `codec_folder`, else it is searched for.
    Tensors that do not fit are listed in `problems`. Raises HiggsError if there is no Higgs checkpoint, one of its
    files is missing, or its settings are not supported.
    """
    folder = checkpoint_place(Path(folder).expanduser())
    settings, talker = open_talker(folder)
    tokenizer = side_file(folder, TOKENIZER)
    if not has_file(tokenizer):
        raise HiggsError(f"{tokenizer} is missing. Copy it from the model's repository into {folder}.")
    codec = find_codec(folder, talker, Path(codec_folder).expanduser() if codec_folder else None)
    plan = plan_of(settings, talker)
    problems = (*talker_problems(folder, talker, plan), *codec.weights.problems())
    merged = Adapters()
    if adapters and not problems:
        merged, plan = lay_over(adapters, settings.model.family, plan)
    return Checkpoint(
        folder,
        settings.model,
        tokenizer,
        talker,
        plan,
        codec.weights,
        codec.folder,
        merged,
        problems,
        notes=(*settings.notes, *codec.notes),
        warnings=(*codec.notes, *merged.warnings),
    )


def load_talker(
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: torch.dtype,
    weights: str = "",
    narrow: bool = False,
    allocate: Callable[[], contextlib.AbstractContextManager] = contextlib.nullcontext,
    into: dict[str, torch.Tensor] | None = None,
) -> dict[str, torch.Tensor]:
    """Load the talker's tensors under canonical names, fused, in `dtype` on `device`.

    weights: quantisation of the layers' matrices, see `format_for`. They are quantised one by one through SCRATCH,
        which stays allocated, after adapters are merged. Those that the file stores in this format are copied.
    narrow: matrices that the file has in bf16 stay so unless an adapter changes them, see `keeps_bf16`.
    allocate: context for allocations that stay. into: a dict to fill, which the caller can free after an error.

    `embed_text` stays in host memory in the file's dtype, backed by the file if it is stored in one piece. A tied head
    is the same tensor object as `embed_codes`. Raises HiggsError if the checkpoint has problems.
    """
    require_whole(checkpoint)
    weights = format_for(checkpoint, weights)
    tensors, jobs = {} if into is None else into, list[Job]()
    with allocate():
        if size := _scratch_bytes(checkpoint, dtype, weights, narrow):
            tensors[SCRATCH] = torch.empty(size, dtype=torch.uint8, device=device)
    for name, sources in checkpoint.plan.parts.items():
        if name == ON_HOST:
            tensors[name] = _on_host(checkpoint)
            continue
        *rows, width = shape = checkpoint.plan.shape(name)
        format = _format(checkpoint, name, dtype, weights, narrow)
        stored_width = format.row_bytes(width) // format.dtype.itemsize
        with allocate():
            data = tensors[name] = torch.empty(*rows, stored_width, dtype=format.dtype, device=device)
        whole, quantize = data, []
        if format.quantize is not None:
            whole = tensors[SCRATCH][: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)
            quantize = [functools.partial(format.quantize, whole, data)]
        merge = checkpoint.adapters.merges(sources, whole)
        if quantize and not merge and isinstance(checkpoint.talker, QuantisedFile):
            _take(checkpoint.talker, checkpoint.plan.stored(name), data, weights)
        else:
            jobs += _place(checkpoint, name, whole, [*merge, *quantize])
    if jobs:
        upload(jobs, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # temporaries of quantising and merging
    if checkpoint.plan.tied:
        tensors["head_codes"] = tensors["embed_codes"]
    return tensors


def _on_host(checkpoint: Checkpoint) -> torch.Tensor:
    """Return ON_HOST in host memory, backed by the file if it is used unchanged."""
    file, sources = checkpoint.talker, checkpoint.plan.parts[ON_HOST]
    stored = checkpoint.plan.stored(ON_HOST)
    halves = [file.get(key).bfloat16() if file.is_quantised(key) else file.get(key) for key in stored]
    tensor = halves[0] if len(halves) == 1 else torch.cat(halves)
    if checkpoint.adapters.change_any(sources):
        tensor = tensor.clone()
        for merge in checkpoint.adapters.merges(sources, tensor):
            merge()
    return tensor


def _place(checkpoint: Checkpoint, name: str, target: torch.Tensor, then: Sequence[Callable[[], None]]) -> list[Job]:
    """Copy the stored tensors of `name`, stacked on dimension 0, into `target`, then call `then`.

    On a GPU, returns upload jobs for this instead if all tensors are stored in one piece.
    """
    file, stored = checkpoint.talker, checkpoint.plan.stored(name)
    spans = [file.span(key) if target.device.type == "cuda" else None for key in stored]
    parts = target.split([file.shapes[key][0] for key in stored])
    if None not in spans:
        jobs = [
            Job(*span, file.dtypes[key], part) for span, key, part in zip(spans, stored, parts, strict=True) if span
        ]
        return [*jobs[:-1], replace(jobs[-1], then=tuple(then))]
    for key, part in zip(stored, parts, strict=True):
        part.copy_(file.get(key, part.device))
    for work in then:
        work()
    return []


def _take(file: QuantisedFile, stored: list[str], data: torch.Tensor, weights: str) -> None:
    """Stack matrices into `data`. Those that the file stores in this format are copied, the others quantised."""
    quantize = FORMATS[weights].quantize
    assert quantize is not None
    for key, part in zip(stored, data.split([file.shapes[key][0] for key in stored]), strict=True):
        if not file.put(key, weights, part):
            quantize(file.get(key, data.device), part)


def require_whole(checkpoint: Checkpoint) -> None:
    """Raise HiggsError with the first problems if a checkpoint has any."""
    if not checkpoint.problems:
        return
    codec = checkpoint.codec.problems()
    if talker := [problem for problem in checkpoint.problems if problem not in codec]:
        head = f"{checkpoint.folder} does not match its config.json."
        raise HiggsError(f"{head} {first_problems(talker)} Download the published files.")
    raise HiggsError(
        f"The codec in {checkpoint.codec_folder} is not usable. {first_problems(codec)} Download the codec again."
    )


def format_for(checkpoint: Checkpoint, weights: str) -> str:
    """Return the format of talker/weight.py for EngineConfig's `weights`: the file's own if compatible. Empty: none."""
    held = checkpoint.talker.weights
    return held if weights and KEPT_BY.get(held) == weights else weights


def talker_sizes(checkpoint: Checkpoint, dtype: torch.dtype, weights: str = "", narrow: bool = False) -> list[int]:
    """Return the bytes of each tensor that `load_talker` puts on the device."""
    weights = format_for(checkpoint, weights)
    size = _scratch_bytes(checkpoint, dtype, weights, narrow)
    sizes = [size] if size else []
    for name in checkpoint.plan.parts:
        if name != ON_HOST:
            *rows, width = checkpoint.plan.shape(name)
            sizes.append(math.prod(rows) * _format(checkpoint, name, dtype, weights, narrow).row_bytes(width))
    return sizes


def _format(checkpoint: Checkpoint, name: str, dtype: torch.dtype, weights: str, narrow: bool) -> Format:
    """Return the storage format of a talker tensor on the device."""
    if weights and is_layer_matrix(name, checkpoint.plan.shape(name)):
        return FORMATS[weights]
    return FORMATS["bf16"] if narrow and _is_bf16(checkpoint, name) else format_of(dtype)


def _is_bf16(checkpoint: Checkpoint, name: str) -> bool:
    """True for a matrix that the file has in bf16 and no adapter changes."""
    file, plan = checkpoint.talker, checkpoint.plan
    return (
        len(plan.shape(name)) == 2
        and not checkpoint.adapters.change_any(plan.parts[name])
        and not any(file.is_quantised(key) or file.dtypes[key] != torch.bfloat16 for key in plan.stored(name))
    )


def keeps_bf16(checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype, weights: str) -> bool:
    """True if matrices that the file has in bf16 stay so for products in fp32: for a small talker on one CPU thread.

    Products widen them through SCRATCH, block by block. With several threads these would wait for each other at every
    block.
    """
    is_fp32 = device.type == "cpu" and dtype == torch.float32
    return is_fp32 and not is_slow(device, sum(talker_sizes(checkpoint, dtype, weights)))


def _scratch_bytes(checkpoint: Checkpoint, dtype: torch.dtype, weights: str, narrow: bool) -> int:
    """Return the bytes of SCRATCH, or 0 if no matrix is quantised or widened."""
    plan, sizes = checkpoint.plan, [0]
    for name in plan.parts:
        if weights and is_layer_matrix(name, plan.shape(name)):
            sizes.append(scratch_bytes(plan.shape(name), dtype))
        elif narrow and name != ON_HOST and _is_bf16(checkpoint, name):
            rows, width = plan.shape(name)
            sizes.append(widened_bytes((rows, width), dtype))
    return max(sizes)


def require_quantizable(checkpoint: Checkpoint, weights: str) -> None:
    """Raise HiggsError if widths are not whole blocks of the format for `weights`, or if the file has more bits.

    weights: empty if nothing is quantised.
    """
    held, format = checkpoint.talker.weights, FORMATS.get(format_for(checkpoint, weights))
    if held and format and format.bits < FORMATS[held].bits:
        choice = KEPT_BY.get(held, held)
        raise HiggsError(f"{checkpoint.folder} contains {held} weights. Choose dtype auto or {choice}.")
    block = format.block if format else 1
    widths = [checkpoint.plan.shape(name)[1] for name in matrices(checkpoint.plan)]
    if odd := [width for width in widths if width % block]:
        raise HiggsError(
            f"dtype {weights} needs layer widths that are multiples of {block}, but one layer is {odd[0]} wide. "
            "Choose auto, bf16 or fp32."
        )
