"""Write complete checkpoints with random weights, a few hundred kilobytes each, in every layout. They speak noise.

Names and settings are repeated here on purpose: the reader's tables are tested against them.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from ..checkpoint.codec_layout import unused_shapes
from ..checkpoint.discover import CODEC_SUBFOLDER, CONFIG, TOKENIZER
from ..checkpoint.talker_layout import V3_CODEC
from ..checkpoint.tensor_file import INDEX
from ..core.codes import BOC, CODE_VOCAB, EOC
from ..core.errors import HiggsError
from .tiny_codec import TINY, hf_config, tiny_codec, to_old
from .tiny_config import (
    CODEBOOKS,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    boson_config,
    tiny_tokenizer,
    v2_config,
    v3_config,
)

FAMILIES = ("v3", "v2", "v2-boson")
_QUIET = 0.02
# Blocks add more than they pass through. A tied head would otherwise repeat the last code for ever. With these gains,
# greedy decoding changes nine codes in ten from row to row.
_ATTENTION_GAIN, _MLP_GAIN = 3.0, 8.0
_SHARPNESS = 1.4  # of queries and keys: keeps attention from being a plain average
# The settings beside an older codec; its shapes come from the tensors.
_OLD_CODEC_CONFIG = {
    "n_filters": 32,
    "D": 256,
    "ratios": [8, 5, 4, 2, 3],
    "sample_rate": 24000,
    "bins": 1024,
    "n_q": 8,
    "codebook_dim": 64,
    "semantic_techer": "hubert_base_general",
    "semantic_sample_rate": 16000,
}


@dataclass
class _Random:
    """Weights from one seed, in the dtype of the published files."""

    generator: torch.Generator

    def normal(self, rows: int, columns: int, gain: float = 1.0) -> torch.Tensor:
        """Return a noise matrix that scales its input by `gain`."""
        noise = torch.randn(rows, columns, generator=self.generator)
        return (noise * gain / math.sqrt(columns)).to(torch.bfloat16)

    def norm(self, size: int, mean: float = 1.0) -> torch.Tensor:
        """Return uneven RMSNorm weights, so that a forgotten or swapped norm shows."""
        return (mean + 0.1 * torch.randn(size, generator=self.generator)).to(torch.bfloat16)


def write_tiny(folder: Path | str, family: str, seed: int = 0) -> Path:
    """Write a complete checkpoint of `family` ("v3", "v2" or "v2-boson") into `folder` and return it.

    "v2" and "v2-boson" hold the same weights for one seed.
    """
    if family not in FAMILIES:
        raise HiggsError(f"{family!r} is not a known layout. Choose one of: {', '.join(FAMILIES)}.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    kind = family.partition("-")[0]
    tokenizer = tiny_tokenizer(kind)
    vocab = 8 * math.ceil(tokenizer.get_vocab_size() / 8) + 8  # more rows than tokens, as published
    random = _Random(torch.Generator().manual_seed(seed))
    if kind == "v3":
        config = v3_config(tokenizer, vocab)
        tensors = _v3_tensors(random, vocab) | _bundled_codec(seed)
    else:
        config = v2_config(tokenizer, vocab) if family == "v2" else boson_config(tokenizer, vocab)
        tensors = _v2_tensors(random, vocab)
        tensors = _new_names(tensors) if family == "v2" else tensors
        _write_codec(folder, seed, old=family == "v2-boson")
    _write_json(folder / CONFIG, config)
    _write_tokenizer(folder, tokenizer, kind)
    _save(folder, tensors)
    return folder


def _layer(random: _Random, prefix: str, heads: int, experts: Iterable[str]) -> dict[str, torch.Tensor]:
    queries, keys = heads * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors = {
        f"{prefix}self_attn.q_proj.weight": random.normal(queries, HIDDEN, _SHARPNESS),
        f"{prefix}self_attn.k_proj.weight": random.normal(keys, HIDDEN, _SHARPNESS),
        f"{prefix}self_attn.v_proj.weight": random.normal(keys, HIDDEN),
        f"{prefix}self_attn.o_proj.weight": random.normal(HIDDEN, queries, _ATTENTION_GAIN),
    }
    for expert in experts:
        tensors |= {
            f"{prefix}{expert}input_layernorm.weight": random.norm(HIDDEN),
            f"{prefix}{expert}post_attention_layernorm.weight": random.norm(HIDDEN),
            f"{prefix}{expert}mlp.gate_proj.weight": random.normal(INTERMEDIATE, HIDDEN),
            f"{prefix}{expert}mlp.up_proj.weight": random.normal(INTERMEDIATE, HIDDEN),
            f"{prefix}{expert}mlp.down_proj.weight": random.normal(HIDDEN, INTERMEDIATE, _MLP_GAIN),
        }
    return tensors


def _code_rows(random: _Random) -> torch.Tensor:
    """Return [8 * 1026, hidden]. A sum of eight codes' rows has entries of about 1."""
    return random.normal(CODEBOOKS * CODE_VOCAB, HIDDEN, math.sqrt(HIDDEN / CODEBOOKS))


def _hush_specials(head: torch.Tensor) -> torch.Tensor:
    """Return the head with the rows of the two special codes near zero.

    Greedy decoding then never picks them, so a run can be compared with a reference that does not ban specials.
    """
    rows = head.view(CODEBOOKS, CODE_VOCAB, -1).clone()
    rows[:, [BOC, EOC]] *= _QUIET
    return rows.view(head.shape)


def _v3_tensors(random: _Random, vocab: int) -> dict[str, torch.Tensor]:
    tensors = {
        "tied.embedding.text_embedding.weight": random.normal(vocab, HIDDEN, math.sqrt(HIDDEN)),
        "tied.embedding.modality_embeddings.0.embedding.weight": _hush_specials(_code_rows(random)),
        "body.norm.weight": random.norm(HIDDEN),
    }
    for layer in range(LAYERS):
        prefix = f"body.layers.{layer}."
        tensors |= _layer(random, prefix, HEADS["v3"], ("",))
        tensors[f"{prefix}self_attn.q_norm.weight"] = random.norm(HEAD_DIM, _SHARPNESS)
        tensors[f"{prefix}self_attn.k_norm.weight"] = random.norm(HEAD_DIM, _SHARPNESS)
    return tensors


def _v2_tensors(random: _Random, vocab: int) -> dict[str, torch.Tensor]:
    """Return v2's tensors under the older layout's names."""
    tensors = {
        "embed_tokens.weight": random.normal(vocab, HIDDEN, math.sqrt(HIDDEN)),
        "audio_codebook_embeddings.weight": _code_rows(random),
        "audio_decoder_proj.audio_lm_head.weight": _hush_specials(_code_rows(random)),
        "audio_decoder_proj.text_lm_head.weight": random.normal(vocab, HIDDEN),
        "norm.weight": random.norm(HIDDEN),
    }
    for layer in range(LAYERS):
        tensors |= _layer(random, f"layers.{layer}.", HEADS["v2"], ("", "audio_"))
    return tensors


def _new_names(old: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Rename v2's older names to those of transformers."""
    tensors = {}
    for name, tensor in old.items():
        if name.startswith("audio_decoder_proj."):
            tensors[name.removeprefix("audio_decoder_proj.")] = tensor
        elif name == "audio_codebook_embeddings.weight":
            tensors["model.embed_audio_tokens.embed_audio_tokens.weight"] = tensor
        else:
            tensors[f"model.{name}"] = tensor
    return tensors


def _write_tokenizer(folder: Path, tokenizer: Tokenizer, kind: str) -> None:
    tokenizer.save(str(folder / TOKENIZER))
    end = "<|endoftext|>" if kind == "v3" else "<|eot_id|>"
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    if kind == "v2":
        settings["bos_token"] = "<|begin_of_text|>"
    _write_json(folder / "tokenizer_config.json", settings)


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")


def _save(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Write one file with an index, as in v3's repository."""
    file, names = "model.safetensors", sorted(tensors)
    save_file({name: tensors[name].contiguous() for name in names}, folder / file, metadata={"format": "pt"})
    total = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
    weight_map = dict.fromkeys(names, file)
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


_codec = functools.lru_cache(maxsize=4)(tiny_codec)  # since calibration decodes with it


def _bundled_codec(seed: int) -> dict[str, torch.Tensor]:
    """Return the codec as v3 bundles it: prefixed, in bf16, with a tensor used only in HuBERT's training."""
    spare = "semantic_model.masked_spec_embed"
    tensors = _codec(seed) | {spare: torch.zeros(unused_shapes(TINY)[spare])}
    return {f"{V3_CODEC}{name}": tensor.to(torch.bfloat16) for name, tensor in tensors.items()}


def _write_codec(folder: Path, seed: int, old: bool) -> None:
    """Write v2's codec: a repository of its own, here in a subfolder."""
    tensors = _codec(seed)
    place = folder / CODEC_SUBFOLDER
    place.mkdir(exist_ok=True)
    if old:
        _write_json(place / CONFIG, _OLD_CODEC_CONFIG)
        torch.save(to_old(tensors), place / "model.pth")
        return
    _write_json(place / CONFIG, hf_config(TINY))
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    named = {"audio_tokenizer_class": "HiggsAudioV2TokenizerModel", "audio_tokenizer_name_or_path": CODEC_SUBFOLDER}
    _write_json(
        folder / "processor_config.json", {"processor_class": "HiggsAudioV2Processor", "audio_tokenizer": named}
    )
