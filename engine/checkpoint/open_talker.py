"""Settings and tensors of the talker in a folder, and reasons why it cannot be loaded. Reads only headers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from ..core.errors import HiggsError
from ..files.gguf_header import is_gguf
from ..files.json_file import read_json
from ..talker import FAMILIES
from ..talker.weight import is_layer_matrix
from .codec_layout import looks_like_codec
from .discover import CONFIG
from .find_codec import FEW
from .gguf_file import open_gguf, side_file
from .hf_config import Settings, family_of, read_settings
from .quantised_file import quantised
from .talker_layout import TensorPlan, beginnings, layout_of, make_plan, shape_problems, unwrapped
from .tensor_file import TensorFile, open_folder

# Tensors that quantisers add to a weight: scales, zero points, tables.
_QUANTISED = re.compile(
    r"(^|[._])(weight_scale(_inv|_2)?|input_scale|scale_weight|scale_input|scaled_fp8|comfy_quant|SCB|absmax|quant_map"
    r"|qweight|qzeros|scales|g_idx)$|quant_state"
)


def open_talker(folder: Path) -> tuple[Settings, TensorFile]:
    """Open the settings and tensors of the talker in a folder or GGUF file. Raises HiggsError if there is none."""
    if not folder.is_dir() and not is_gguf(folder):
        raise HiggsError(
            f"{folder} is not a folder. Choose the folder that contains config.json and model.safetensors."
        )
    config_path = side_file(folder, CONFIG)
    config = read_json(config_path)
    talker, prefixes = (open_gguf(folder), []) if is_gguf(folder) else unwrapped(open_folder(folder))
    if not talker.shapes:
        raise HiggsError(f"{folder} contains no .safetensors file. Download the published model into it.")
    talker = quantised(talker)
    layout = layout_of(talker.shapes)
    if layout is None:
        raise HiggsError(_stranger(folder, config, talker.shapes))
    settings = read_settings(config, config_path, layout)
    if prefixes:
        note = f"Tensor names in {folder} start with {' and '.join(prefixes)}; this prefix is ignored."
        settings = replace(settings, notes=(*settings.notes, note))
    return settings, talker


def _stranger(folder: Path, config: dict, names: Iterable[str]) -> str:
    remedy = "Choose the folder of Higgs TTS 3 or Higgs Audio v2."
    if looks_like_codec(names):
        return f"{folder} contains the audio codec, not the model. {remedy}"
    meant = FAMILIES.get(family_of(config) or "")
    wanted = " or ".join(f"{one.tensor_names} ({one.title})" for one in ([meant] if meant else FAMILIES.values()))
    return (
        f"{folder} does not contain a Higgs model: its tensor names start with {beginnings(names)}; expected: "
        f"{wanted}. {remedy}"
    )


def plan_of(settings: Settings, talker: TensorFile) -> TensorPlan:
    """Match the talker's tensors to its family's tables. A stored head that differs from the embedding is not tied."""
    plan = make_plan(settings.model, talker.shapes, settings.tied)
    if not settings.tied:
        return plan
    apart = make_plan(settings.model, talker.shapes, tied=False)
    pair = {name: apart.parts[name] for name in ("head_codes", "embed_codes")}
    if not all(source.stored for sources in pair.values() for source in sources):
        return plan
    is_copy = not shape_problems(replace(apart, parts=pair), talker.shapes) and _equal(talker, apart)
    return plan if is_copy else apart


def _equal(talker: TensorFile, plan: TensorPlan) -> bool:
    """True if head and code embedding are equal in the coarser of their dtypes. Quantised ones count as copies."""
    keys = [plan.stored(name) for name in ("head_codes", "embed_codes")]
    if any(talker.is_quantised(key) for half in keys for key in half):
        return True
    head, embedding = (torch.cat([talker.get(key) for key in half]) for half in keys)
    dtype = min(head.dtype, embedding.dtype, key=lambda dtype: dtype.itemsize)
    return torch.equal(head.to(dtype), embedding.to(dtype))


def talker_problems(folder: Path, talker: TensorFile, plan: TensorPlan) -> list[str]:
    """Return the reasons why the talker cannot be loaded, one sentence each with file and tensor."""
    if talker.refused:
        name, why = next(iter(talker.refused.items()))
        where = talker.file_of(name) if name in talker.dtypes else str(folder)
        return [f"{where}: tensor {name} belongs to a quantised model, and {why}."]
    strange = [name for name in plan.unexpected if _QUANTISED.search(name)]
    used = [key for name in plan.parts for key in plan.stored(name)]
    strange += [key for key in used if not talker.dtypes[key].is_floating_point and not talker.is_quantised(key)]
    if strange:
        where = talker.file_of(strange[0])
        return [f"{where}: tensor {strange[0]} belongs to a quantised model, which is not supported."]
    problems, missing = [], []
    for name, problem in shape_problems(plan, talker.shapes):
        if name in talker.shapes:
            problems.append(f"{talker.file_of(name)}: tensor {name} {problem}.")
            continue
        missing.append(name if name.startswith("tied.") else plan.prefix + name)
        problems.append(f"the weights in {folder}: tensor {missing[-1]} {problem}.")
    problems += [f"{talker.file_of(name)}: tensor {name} is not part of this model." for name in plan.unexpected]
    if min(len(missing), len(plan.unexpected)) > FEW:
        names = f"it has {plan.unexpected[0]} where {missing[0]} is expected"
        whole = (
            f"{len(missing)} tensors are missing and {len(plan.unexpected)} are unknown, so they may have different "
            "names"
        )
        problems.insert(0, f"{talker.file_of(plan.unexpected[0])}: {whole}: {names}.")
    return problems


def matrices(plan: TensorPlan) -> list[str]:
    return [name for name in plan.parts if is_layer_matrix(name, plan.shape(name))]
