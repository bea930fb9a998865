"""The talker in fp32 on the CPU against transformers with the same weights."""

import pytest
import torch
import transformers
from higgs_tts.engine.core.codes import BOC, EOC
from higgs_tts.engine.core.config import SamplingParams

HAS_V2 = hasattr(transformers, "HiggsAudioV2ForConditionalGeneration")
HAS_V3 = hasattr(transformers, "Qwen3Model")
needs_v3 = pytest.mark.skipif(not HAS_V3, reason="this transformers has no Qwen3Model")
needs_v2 = pytest.mark.skipif(not HAS_V2, reason="this transformers has no HiggsAudioV2ForConditionalGeneration")


def close(ours, theirs):
    return (ours - theirs).norm() / theirs.norm() < 1e-4


def split_layer(config, tensors, index):
    """Split a layer's canonical fused tensors into transformers' names."""
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    get = {k.split(".", 2)[2]: v for k, v in tensors.items() if k.startswith(f"layers.{index}.")}
    query, key, value = get["qkv"].split([q, kv, kv])
    names = {
        "self_attn.q_proj": query,
        "self_attn.k_proj": key,
        "self_attn.v_proj": value,
        "self_attn.o_proj": get["o"],
    }
    experts = {"": ""} if config.family == "v3" else {"": "", "audio_": "audio_"}
    for ours, theirs in experts.items():
        gate, up = get[f"{ours}gate_up"].chunk(2)
        names |= {
            f"{theirs}input_layernorm": get[f"{ours}attn_norm"],
            f"{theirs}post_attention_layernorm": get[f"{ours}mlp_norm"],
            f"{theirs}mlp.gate_proj": gate,
            f"{theirs}mlp.up_proj": up,
            f"{theirs}mlp.down_proj": get[f"{ours}down"],
        }
    if config.family == "v3":
        names |= {"self_attn.q_norm": get["q_norm"], "self_attn.k_norm": get["k_norm"]}
    return {f"layers.{index}.{name}.weight": tensor for name, tensor in names.items()}


def dims(config):
    return {
        "vocab_size": config.text_vocab,
        "hidden_size": config.hidden,
        "intermediate_size": config.intermediate,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": 2048,
    }


class V3Reference:
    """Qwen3 with the fused code embedding around it, decoding greedily with SGLang's machine."""

    def __init__(self, config, tensors):
        from transformers import Qwen3Config, Qwen3Model

        theta = {"rope_theta": config.rope.theta}
        if int(transformers.__version__.split(".")[0]) >= 5:
            theta = {"rope_parameters": {"rope_type": "default", **theta}}
        self.model = Qwen3Model(Qwen3Config(**dims(config), **theta)).eval()
        state = {"embed_tokens.weight": tensors["embed_text"], "norm.weight": tensors["norm"]}
        for index in range(config.layers):
            state |= split_layer(config, tensors, index)
        self.model.load_state_dict(state)
        self.tensors, self.offsets = tensors, torch.arange(8) * config.code_vocab

    def embed(self, rows):
        return self.tensors["embed_codes"][rows + self.offsets].sum(-2)

    def prefill(self, prompt):
        embeds = self.tensors["embed_text"][torch.tensor(prompt.ids)]
        for start, rows in prompt.audio:
            embeds[start : start + len(rows)] = self.embed(rows)
        return self._forward(embeds, None)

    def feed(self, row):
        return self._forward(self.embed(row)[None], self.cache)

    def _forward(self, embeds, cache):
        out = self.model(inputs_embeds=embeds[None], past_key_values=cache, use_cache=True)
        self.cache = out.past_key_values
        return (out.last_hidden_state[0, -1] @ self.tensors["head_codes"].t()).view(8, -1)


def v2_reference(config, tensors):
    from transformers import HiggsAudioV2Config, HiggsAudioV2ForConditionalGeneration

    hf = HiggsAudioV2Config(
        **dims(config),
        codebook_size=1026,
        audio_token_id=config.text_vocab - 1,
        audio_bos_token_id=config.text_vocab - 2,
        audio_delay_token_id=config.text_vocab - 3,
        eos_token_id=config.text_vocab - 4,
        pad_token_id=config.text_vocab - 4,
    )
    model = HiggsAudioV2ForConditionalGeneration(hf).eval()
    state = {
        "model.embed_tokens.weight": tensors["embed_text"],
        "model.norm.weight": tensors["norm"],
        "model.embed_audio_tokens.embed_audio_tokens.weight": tensors["embed_codes"],
        "audio_lm_head.weight": tensors["head_codes"],
    }
    for index in range(config.layers):
        state |= {f"model.{k}": v for k, v in split_layer(config, tensors, index).items()}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and not [name for name in missing if "offsets" not in name]
    return model


def v2_prompt(small, config):
    """Return a prompt whose last token before the seed row is transformers' begin of audio."""
    prompt = small.prompt(config, seed=4, frames=12)
    prompt.ids[-2] = config.text_vocab - 2
    return prompt


def v2_inputs(model, prompt):
    """Convert our prompt to transformers' inputs. The seed row is left to its generate."""
    ids, mask_id = torch.tensor(prompt.ids[:-1]), model.config.audio_token_id
    start, rows = prompt.audio[0]
    ids[start : start + len(rows)] = mask_id
    mask = torch.ones(1, len(rows), dtype=torch.bool)
    return {"input_ids": ids[None], "audio_input_ids": rows[None], "audio_input_ids_mask": mask}


@needs_v3
def test_v3_logits_equal_qwen3_through_prefill_and_decode(bench, small):
    room = bench("v3")
    prompt = small.prompt(room.config, seed=4, frames=12)
    reference = V3Reference(room.config, room.tensors)
    room.start(SamplingParams(temperature=0), [prompt])
    assert close(room.state.logits[0], reference.prefill(prompt))
    for _ in range(32):
        room.step()
        assert close(room.state.logits[0], reference.feed(room.state.delay.output[0]))


@needs_v3
def test_v3_greedy_codes_equal_the_reference_machine(bench, small):
    room = bench("v3")
    prompt = small.prompt(room.config, seed=4, frames=12)
    reference = V3Reference(room.config, room.tensors)
    room.start(SamplingParams(temperature=0), [prompt])
    ours = room.run(200)[0]
    logits = reference.prefill(prompt)
    for step in range(200):
        row = logits.argmax(-1)
        row[step + 1 :] = BOC
        assert torch.equal(ours[step], row), f"row {step}"
        logits = reference.feed(row)
    assert len(ours[8:, 0].unique()) > 20 and (ours[8:] < BOC).all()


@needs_v2
def test_v2_logits_equal_transformers_through_prefill_and_decode(bench, small):
    room = bench("v2")
    prompt = v2_prompt(small, room.config)
    model = v2_reference(room.config, room.tensors)
    inputs = v2_inputs(model, prompt)
    seed_row = torch.full((1, 1, 8), BOC)
    room.start(SamplingParams(temperature=0), [prompt])
    out = model(**inputs, use_cache=True)
    out = model(audio_input_ids=seed_row, past_key_values=out.past_key_values, use_cache=True)
    assert close(room.state.logits[0].flatten(), out.logits[0, -1])
    for _ in range(32):
        room.step()
        row = room.state.delay.output[None]
        out = model(audio_input_ids=row, past_key_values=out.past_key_values, use_cache=True)
        assert close(room.state.logits[0].flatten(), out.logits[0, -1])


@needs_v2
def test_v2_greedy_codes_equal_transformers_generate(bench, small):
    room = bench("v2")
    prompt = v2_prompt(small, room.config)
    model = v2_reference(room.config, room.tensors)
    room.start(SamplingParams(temperature=0), [prompt])
    ours = room.run(200)[0]
    model.generation_config.ras_win_len = None
    generated = model.generate(**v2_inputs(model, prompt), do_sample=False, max_new_tokens=201)
    theirs = getattr(generated, "audio_sequences", generated)[0][-200:]
    assert torch.equal(ours, theirs)
    assert len(ours[8:, 0].unique()) > 20 and (ours[8:] < BOC).all()


def plain_ras(history, row, window, repeats):
    """Return the codebooks that transformers' rule draws again."""
    recent = history[-window:]
    same = (recent == row) & (recent != BOC) & (recent != EOC)
    return same.sum(0) >= repeats


def test_v2_resamples_repeats_by_transformers_rule(bench, small):
    """With one loud code per codebook, the first two frames keep it, and from the third on it is drawn again."""
    room = bench("v2")
    params = SamplingParams(seed=2, top_k=1, ras_window=4, ras_repeats=2)
    room.start(params, [small.prompt(room.config, frames=3)])
    state = room.state
    history = state.sampler.history[0].clone()
    loud = torch.arange(8) + 5
    redrawn = 0
    for _ in range(30):
        state.logits.zero_()
        state.logits[0, torch.arange(8), loud] = 3.0
        written = int(state.delay.num_generated[0])
        state.delay.suppress(state.sampler.suppress_specials, state.sampler.suppressed, ends_early=True)
        state.sampler.sample(state.logits, state.delay)
        expected = plain_ras(history, loud, 4, 2)
        changed = state.delay.output[0] != loud
        assert not (changed & ~expected).any()
        redrawn += int((changed & expected).sum())
        state.delay.end_on_any_codebook()
        state.sampler.remember(state.delay.output)
        state.delay.emit()
        history = torch.cat([history, state.delay.output])
        assert int(state.delay.num_generated[0]) == written + 1
        assert torch.equal(state.sampler.history[0], history[-7:])
    assert redrawn > 50
