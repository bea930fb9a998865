"""Write checkpoints of the published shapes with random weights, because no published weights may be fetched here.

Golden runs of the GPU depend on these weights. The benchmarks run this file in a process of its own.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import runpy
import sys

import torch
from safetensors.torch import save_file

if "higgs_tts" not in sys.modules:  # run by hand
    runpy.run_path(str(pathlib.Path(__file__).parent / "faults" / "pack.py"))

from higgs_tts.engine.checkpoint.codec_layout import decoder_shapes, encoder_shapes, unused_shapes
from higgs_tts.engine.checkpoint.discover import CODEC_SUBFOLDER
from higgs_tts.engine.checkpoint.talker_layout import V3_CODEC
from higgs_tts.engine.codec.config import CodecConfig
from higgs_tts.engine.core.codes import BOC, CODE_VOCAB
from higgs_tts.engine.tools.published import published_config, stored_name

PUBLISHED_CODEC = CodecConfig(
    codebook_size=1024,
    codebook_dim=64,
    acoustic_hidden=256,
    encoder_hidden=64,
    decoder_hidden=1024,
    semantic_hidden=768,
    semantic_ffn=3072,
    semantic_layers=12,
    pos_kernel=128,
    pos_groups=16,
    ratios=(8, 5, 4, 2, 3),
    conv_dims=(512,) * 7,
    conv_kernels=(10, 3, 3, 3, 3, 2, 2),
)


def write(
    folder: pathlib.Path, family: str, layers: int | None = None, whole_codec: bool = False, device: str = "auto"
) -> pathlib.Path:
    """Write a checkpoint of published width to `folder`; `layers` makes it shorter than published.

    The codec is the tiny one unless `whole_codec` asks for the published widths. `device` makes the random numbers;
    those of "cpu" are the same on every machine.
    """
    plan, tensors = published_config(folder, family, layers)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    random = torch.Generator(device).manual_seed(0)
    for sources in plan.parts.values():
        for source in sources:
            noise = _noise(source.shape, source.shape[-1] if len(source.shape) > 1 else 1, random)
            if noise.shape[0] == 8 * CODE_VOCAB:
                noise.view(8, CODE_VOCAB, -1)[:, BOC:] *= 0.01  # speech does not end by chance
            tensors[stored_name(family, source.name)] = noise.to(torch.bfloat16).cpu()
    if whole_codec:
        _replace_codec(folder, family, tensors, random)
    save_file(tensors, folder / "model.safetensors")
    return folder


def _replace_codec(folder: pathlib.Path, family: str, tensors: dict, random: torch.Generator):
    """Replace the tiny codec by one of the published widths: inside v3's file, in a folder of its own beside v2's."""
    codec = whole_codec_tensors(random)
    if family == "v3":
        for name in [name for name in tensors if name.startswith(V3_CODEC)]:
            del tensors[name]
        tensors |= {V3_CODEC + name: tensor.to(torch.bfloat16) for name, tensor in codec.items()}
        return
    place = folder / CODEC_SUBFOLDER
    (place / "model.pth").unlink()
    save_file(codec, place / "model.safetensors")


def whole_codec_tensors(random: torch.Generator) -> dict[str, torch.Tensor]:
    """Return random tensors of the published codec, fp32 on the host. It decodes to noise of sane loudness."""
    shapes = {**encoder_shapes(PUBLISHED_CODEC), **decoder_shapes(PUBLISHED_CODEC), **unused_shapes(PUBLISHED_CODEC)}
    tensors = {}
    for name, shape in shapes.items():
        leaf, norm = name.rpartition(".")[2], "layer_norm" in name
        if leaf == "bias":
            tensors[name] = torch.zeros(shape)
        elif leaf in ("alpha", "cluster_size", "inited", "original0") or norm:
            tensors[name] = torch.ones(shape)
        else:  # a residual unit adds little, so that the sums keep their size
            gain = 0.3 if "res_unit" in name or "out_proj" in name else 1.0
            fan_in = math.prod(shape[1:]) if leaf in ("weight", "original1") else 1
            tensors[name] = (_noise(shape, fan_in, random) * gain).cpu()
    return tensors


def _noise(shape, fan_in: int, random: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=random, device=random.device) * fan_in**-0.5


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("family", choices=("v3", "v2"))
    parser.add_argument("layers", type=int, nargs="?", help="layers of the published width; all without it")
    parser.add_argument("--whole-codec", action="store_true", help="a codec of the published widths, not the tiny one")
    args = parser.parse_args()
    print(write(args.folder, args.family, args.layers, args.whole_codec))
