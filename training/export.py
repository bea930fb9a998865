"""Write talker and codec into one folder of the published v3 layout, in files small enough for a repository.

python -m training.export --talker DIR --codec DIR --out engine/embedded
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from safetensors import safe_open

from engine.checkpoint.load import inspect, require_whole
from engine.checkpoint.talker_layout import V3_CODEC
from engine.checkpoint.tensor_file import INDEX, open_folder
from engine.prompt.card import CARD
from engine.prompt.tags import PAUSE_SECONDS, TAGS, delivery_slot
from engine.tools.tiny_config import v3_config

from .talker import EPS, GUIDED_LAYERS, Shape
from .tokenizer import byte_tokenizer
from .weights import load_talker, published, save_shards

CONTEXT = 8192
LEARNED = [tag for tag in TAGS if delivery_slot(tag) == "speed" or tag in PAUSE_SECONDS]  # tags that the data teaches
TOLD = {  # card of what the data teaches
    "languages": ["en"],
    "tags": LEARNED,
    "one_voice": True,
    "word_heads": [[layer, 0, 0] for layer in GUIDED_LAYERS],
    "chunk_seconds": 12,  # benchmarks/results/check.json
    "spell_out": "en",
}
SUMS = ".embed_avg"  # a codebook's running sums: 1 MB for all eight
HERE = Path(__file__).parent


def config(shape: Shape, tokenizer) -> dict:
    """Return config.json in the published spelling."""
    made = v3_config(tokenizer, shape.text_vocab)
    made["audio_encoder_config"]["out_dim"] = shape.hidden
    made["text_config"] |= {
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": EPS,
        "max_position_embeddings": CONTEXT,
    }
    return made


def codec_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """Return the codec's tensors under their names inside a v3 file. `folder`: a codec's, or a whole checkpoint's.

    An older folder may lack the codebooks' running sums: they are its entries times their counts.
    """
    held = open_folder(folder)
    inside = held.under(V3_CODEC)
    held = inside if inside.shapes else held
    tensors = {name: held.get(name).clone() for name in held.shapes if not name.endswith(SUMS)}
    for book in [name.removesuffix(".embed") for name in tensors if name.endswith(".codebook.embed")]:
        name = book + SUMS
        entries, counts = tensors[f"{book}.embed"], tensors[f"{book}.cluster_size"]
        made = entries.float() * counts.float()[:, None]
        tensors[name] = held.get(name).clone() if name in held.shapes else made.to(entries.dtype)
    return {f"{V3_CODEC}{name}": tensor for name, tensor in tensors.items()}


def export(talker: Path, codec: Path, out: Path, sharpness: float) -> dict:
    """Write the folder, read it back, and return the talker's note. Raises HiggsError if it would not load.

    sharpness: factor on the logits, applied in the last norm, so that a temperature of 1 works well.
    """
    shape, state, note = load_talker(talker)
    state["norm.weight"] = state["norm.weight"] * sharpness
    tensors = published(state) | codec_tensors(codec)
    tensors = dict(sorted(tensors.items()))
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.safetensors"):
        old.unlink()
    paths = save_shards(out, "model", tensors, {})
    weight_map = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            weight_map |= dict.fromkeys(file.keys(), path.name)
    total = sum(tensor.nbytes for tensor in tensors.values())
    tokenizer = byte_tokenizer()
    tokenizer.save(str(out / "tokenizer.json"))
    end = "<|endoftext|>"
    _write(out / INDEX, {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))})
    _write(out / "config.json", config(shape, tokenizer))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": end, "pad_token": end}
    _write(out / "tokenizer_config.json", settings)
    _write(out / CARD, TOLD | {"sharpness": sharpness})
    require_whole(inspect(out))
    count = sum(math.prod(tensor.shape) for tensor in tensors.values())
    print(f"export: {count:,} parameters, {total / 1e6:.1f} MB in {len(paths)} files, talker {note}")
    return note


def _write(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8", newline="\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--talker", type=Path, required=True, help="folder that train_talker wrote")
    parser.add_argument("--codec", type=Path, required=True, help="folder that train_codec wrote, or a checkpoint's")
    parser.add_argument("--out", type=Path, default=HERE.parent / "engine" / "embedded")
    parser.add_argument("--sharpness", type=float, default=1.0)
    given = parser.parse_args()
    export(given.talker, given.codec, given.out, given.sharpness)


if __name__ == "__main__":
    main()
