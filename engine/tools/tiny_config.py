"""config.json and tokenizers of the tiny checkpoints, in every layout's spelling."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from ..core.codes import BOC, CODE_VOCAB, CODEBOOK_SIZE, EOC
from ..prompt.tags import TAGS

CODEBOOKS = 8
LAYERS = 2
# Small, and all different, so that mix-ups show. v3's heads x head_dim differs from its hidden size.
HIDDEN, KV_HEADS, HEAD_DIM, INTERMEDIATE = 64, 2, 16, 160
HEADS = {"v3": 8, "v2": 4}

SPECIALS = {
    "v3": (
        "<|endoftext|>",
        "<|im_start|>",
        "<|im_end|>",
        "<|tts|>",
        "<|audio|>",
        "<|audio_end|>",
        "<|text|>",
        "<|text_end|>",
        "<|eoc|>",
        "<|ref_audio|>",
        "<|ref_text|>",
        *TAGS,
    ),
    "v2": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|audio_bos|>",
        "<|audio_eos|>",
        "<|audio_out_bos|>",
        "<|reserved_special_token_6|>",
        "<|AUDIO|>",
        "<|AUDIO_OUT|>",
        "<|scene_desc_start|>",
        "<|scene_desc_end|>",
        "<|generation_instruction_start|>",
        "<|generation_instruction_end|>",
        "<|recipient|>",
    ),
}
# A few words longer than a byte, so that splitting text elsewhere gives other ids. "Ġ" is a space.
_MERGES = ["h e", "l l", "o r", "Ġ t", "Ġt he", "i n", "Ġ w", "e r", "he ll", "hell o", "Ġw or", "Ġ a"]


def tiny_tokenizer(kind: str) -> Tokenizer:
    """Return a byte-level BPE tokenizer: its few words, then the special tokens of `kind` ("v3" or "v2")."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(first, second) for first, _, second in (merge.partition(" ") for merge in _MERGES)]
    words += ["".join(merge) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab={word: i for i, word in enumerate(words)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS[kind]])
    if kind == "v2":  # Llama 3's tokenizer adds its start token itself
        begin = "<|begin_of_text|>"
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    return tokenizer


def _shape_settings(kind: str, vocab: int) -> dict:
    return {
        "vocab_size": vocab,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS[kind],
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "attention_bias": False,
        "rms_norm_eps": 1e-6 if kind == "v3" else 1e-5,
    }


def v3_config(tokenizer: Tokenizer, vocab: int) -> dict:
    """Return v3's config.json. `vocab`: rows of the text embedding."""
    end = tokenizer.token_to_id("<|endoftext|>")
    return {
        "architectures": ["HiggsMultimodalQwen3ForConditionalGeneration"],
        "model_type": "higgs_multimodal_qwen3",
        "audio_token_id": -100,
        "mel_per_sample": 8,
        "eos_token_id": end,
        "dtype": "bfloat16",
        "audio_encoder_config": {
            "model_type": "higgs_audio_encoder",
            "encoder_type": "discrete",
            "num_codebooks": CODEBOOKS,
            "vocab_size": CODE_VOCAB,
            "out_dim": HIDDEN,
            "tie_word_embeddings": True,
            "use_delay_pattern": True,
        },
        "text_config": {
            "model_type": "qwen3",
            **_shape_settings("v3", vocab),
            "max_position_embeddings": 32768,
            # Written twice: transformers before 5 reads the first and, without it, uses 10000. Newer ones write the
            # second.
            "rope_theta": 1_000_000,
            "rope_parameters": {"rope_theta": 1_000_000, "rope_type": "default"},
            "tie_word_embeddings": True,
            "eos_token_id": end,
            "dtype": "bfloat16",
        },
    }


def v2_config(tokenizer: Tokenizer, vocab: int) -> dict:
    """Return v2's config.json in transformers' spelling."""
    token = tokenizer.token_to_id
    return {
        "architectures": ["HiggsAudioV2ForConditionalGeneration"],
        "model_type": "higgs_audio_v2",
        "dtype": "bfloat16",
        **_shape_settings("v2", vocab),
        "mlp_bias": False,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 32.0,
            "low_freq_factor": 0.125,
            "high_freq_factor": 0.5,
            "original_max_position_embeddings": 1024,
        },
        "num_codebooks": CODEBOOKS,
        "codebook_size": CODE_VOCAB,
        "audio_token_id": token("<|AUDIO_OUT|>"),
        "audio_bos_token_id": token("<|audio_out_bos|>"),
        "audio_delay_token_id": token("<|reserved_special_token_6|>"),
        "audio_stream_bos_id": BOC,
        "audio_stream_eos_id": EOC,
        "bos_token_id": 1,
        "eos_token_id": token("<|eot_id|>"),
        "pad_token_id": token("<|end_of_text|>"),
    }


def boson_config(tokenizer: Tokenizer, vocab: int) -> dict:
    """Return v2's config.json in its older spelling."""
    token = tokenizer.token_to_id
    return {
        "architectures": ["HiggsAudioModel"],
        "model_type": "higgs_audio",
        "torch_dtype": "bfloat16",
        "audio_adapter_type": "dual_ffn_fast_forward",
        "audio_dual_ffn_layers": list(range(LAYERS)),
        "audio_num_codebooks": CODEBOOKS,
        "audio_codebook_size": CODEBOOK_SIZE,  # this spelling leaves the specials out
        "audio_embed_avg": False,
        "audio_stream_bos_id": BOC,
        "audio_stream_eos_id": EOC,
        "audio_in_token": "<|AUDIO|>",
        "audio_out_token": "<|AUDIO_OUT|>",
        "audio_in_token_idx": token("<|AUDIO|>"),
        "audio_out_token_idx": token("<|AUDIO_OUT|>"),
        "audio_out_bos_token_id": token("<|audio_out_bos|>"),
        "audio_eos_token_id": token("<|audio_eos|>"),
        "encode_audio_in_tokens": True,
        "encode_whisper_embed": False,
        "skip_audio_tower": True,
        "use_audio_out_embed_projector": False,
        "use_audio_out_self_attention": False,
        "use_delay_pattern": True,
        "pad_token_id": token("<|end_of_text|>"),
        "text_config": {
            "model_type": "llama",
            **_shape_settings("v2", vocab),
            "mlp_bias": False,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "tie_word_embeddings": False,
        },
    }
