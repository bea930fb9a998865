"""A Whisper with random weights, as transformers saves it."""

from __future__ import annotations

import json
from pathlib import Path

import torch

SPECIAL = (
    "<|endoftext|> <|startoftranscript|> <|en|> <|de|> <|translate|> <|transcribe|> <|startoflm|> <|startofprev|> "
    "<|nospeech|> <|notimestamps|>"
).split()


def write_whisper(folder: Path, dtype: torch.dtype = torch.float32) -> Path:
    """Write a Whisper with random weights."""
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [chr(code) for code in range(97, 123)]
    ids = {word: at for at, word in enumerate([*letters, *SPECIAL])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    told = {f"{kind}_token": SPECIAL[0] for kind in ("bos", "eos", "unk", "pad")}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "WhisperTokenizer", **told}))
    end, start = ids[SPECIAL[0]], ids[SPECIAL[1]]
    sizes = dict.fromkeys(("d_model", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    sizes |= dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    marks = {"pad_token_id": end, "bos_token_id": end, "eos_token_id": end, "decoder_start_token_id": start}
    config = transformers.WhisperConfig(
        vocab_size=len(ids), suppress_tokens=None, begin_suppress_tokens=None, **sizes, **marks
    )
    torch.manual_seed(0)
    with torch.inference_mode(False):
        model = transformers.WhisperForConditionalGeneration(config)
    model.generation_config = transformers.GenerationConfig(
        is_multilingual=True,
        lang_to_id={"<|en|>": ids["<|en|>"], "<|de|>": ids["<|de|>"]},
        task_to_id={"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        max_length=40,
        **marks,
    )
    model.to(dtype).save_pretrained(folder)
    transformers.WhisperFeatureExtractor().save_pretrained(folder)
    return folder
