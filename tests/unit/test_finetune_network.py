"""The network in training: equal to prefill, to transformers with autograd, and to torch's AdamW."""

from dataclasses import replace

import pytest
import torch
import transformers
from higgs_tts.engine import EMBEDDED, EngineConfig
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.core.codes import BOC, EOC
from higgs_tts.engine.finetune.network import Network
from higgs_tts.engine.finetune.rows import IGNORED, Utterance, make_row, together
from higgs_tts.engine.finetune.trained import planned_bytes
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.talker import FAMILIES, build_talker
from higgs_tts.engine.talker.whole import embed, logits, whole
from torch.nn.functional import cross_entropy

CPU = torch.device("cpu")
RANK, ALPHA = 4, 8.0
MODULES = "q_proj k_proj v_proj o_proj gate_proj up_proj down_proj".split()


@pytest.fixture(autouse=True)
def _inference():
    """Training needs tensors that autograd may save, unlike the other tests here."""
    with torch.inference_mode(False):
        yield


class Room:
    """A checkpoint, its prompts, two clips of random codes, and its network."""

    def __init__(self, folder, dtype="fp32"):
        self.config = EngineConfig(str(folder), device="cpu", dtype=dtype)
        self.checkpoint = inspect(folder)
        self.family = FAMILIES[self.checkpoint.config.family]
        self.builder = PromptBuilder(self.checkpoint.tokenizer, self.checkpoint.config)
        g = torch.Generator().manual_seed(1)
        self.clips = [
            Utterance(name, text, torch.randint(0, 1024, (frames, 8), generator=g))
            for name, text, frames in (("one", "hello the world", 9), ("two", "the world", 14))
        ]

    def rows(self):
        one, two = self.clips
        return [self.row(one, two), self.row(two, None)]

    def row(self, clip, reference):
        return make_row(self.builder, self.family, clip, reference)

    def network(self, **given):
        vocabulary = range(self.checkpoint.config.text_vocab)
        network = Network(self.checkpoint, self.config, CPU, torch.float32, vocabulary, RANK, ALPHA, **given)
        network.start(0)
        return network


@pytest.fixture
def room(written):
    return lambda family="v3", **given: Room(EMBEDDED if family == "embedded" else written[family], **given)


def shaken(network, scale=0.2):
    """Give the adapter random numbers, for a fresh one changes nothing."""
    numbers = torch.randn(network.numbers.shape, generator=torch.Generator().manual_seed(3)) * scale
    network.restore(numbers, torch.zeros_like(numbers), torch.zeros_like(numbers))
    return network


@pytest.mark.parametrize("family", ["v3", "v2", "embedded"])
def test_the_whole_pass_equals_prefill(room, family):
    made = room(family)
    tensors = load_talker(made.checkpoint, CPU, torch.float32)
    talker = build_talker(made.checkpoint.config, tensors, 512)
    prompt = made.builder.build("hello the world")
    config = made.checkpoint.config
    cache = torch.zeros(2, config.layers, config.kv_heads, 512, config.head_dim)
    expected = talker.logits(talker.fill(prompt.ids, prompt.audio, *cache, 0, len(prompt)))
    row = made.row(made.clips[0], None)
    text = tensors["embed_text"].float()
    x = embed(talker, text, row.tokens[None], row.codes[None], row.is_code[None])
    ours = logits(talker, whole(talker, x, row.is_code[None], {}, False), talker.norm, talker.head_codes)
    assert torch.equal(row.tokens[: len(prompt)], torch.tensor(prompt.ids))
    torch.testing.assert_close(ours[: len(prompt)].flatten(1), expected, rtol=1e-4, atol=1e-4)


def test_rows_teach_the_columns_that_speech_decodes(room):
    for family, seeds in (("v3", 0), ("v2", 1)):
        made = room(family)
        clip = made.clips[0]
        row, prompt = made.row(*made.clips), made.builder.build(clip.text)
        columns = made.family.delay(clip.codes)[seeds:]
        taught = row.targets[-len(columns) :]
        assert torch.equal(taught == IGNORED, columns == BOC) and torch.equal(
            taught[taught >= 0], columns[columns != BOC]
        )
        assert int((taught == EOC).sum()) == (28 if family == "v3" else 36)
        assert (row.targets[: -len(columns)] == IGNORED).all()
        assert torch.equal(row.codes[-len(columns) + 1 :], columns[:-1]) and row.is_code[-len(columns) + 1 :].all()
        assert len(row.tokens) > len(prompt) + len(columns)  # the reference comes first
    assert made.row(Utterance("long", "hello", torch.zeros(4000, 8, dtype=torch.int64)), None) is None


class LowRankLinear(torch.nn.Module):
    """PEFT's Linear, written out."""

    def __init__(self, base, a, b):
        super().__init__()
        self.base, self.a, self.b = base, torch.nn.Parameter(a), torch.nn.Parameter(b)

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t() * (ALPHA / RANK)


def adapted(model, tensors, prefix):
    """Put an adapter's tensors into transformers' modules, and return the modules by name."""
    made = {}
    for name, module in list(model.named_modules()):
        key = f"base_model.model.{prefix}{name}"
        if f"{key}.lora_A.weight" in tensors:
            parent, _, last = name.rpartition(".")
            made[key] = LowRankLinear(module, tensors[f"{key}.lora_A.weight"], tensors[f"{key}.lora_B.weight"])
            setattr(model.get_submodule(parent), last, made[key])
    return made


def their_losses(room, model, tensors, row, takes_embeds):
    embeds = tensors["embed_text"].float()[row.tokens]
    spoken = tensors["embed_codes"].float()[row.codes + torch.arange(8) * 1026].sum(1)
    x = torch.where(row.is_code[:, None], spoken, embeds)[None]
    hidden = takes_embeds(model, x, row)
    scores = (hidden @ tensors["head_codes"].float().t()).view(-1, 1026)
    return cross_entropy(scores, row.targets.flatten(), ignore_index=IGNORED, reduction="sum")


def qwen(checkpoint):
    from higgs_tts.tests.unit.test_talker import V3Reference

    tensors = {name: tensor.float() for name, tensor in load_talker(checkpoint, CPU, torch.float32).items()}
    return V3Reference(checkpoint.config, tensors).model, tensors


def llama(checkpoint):
    from higgs_tts.tests.unit.test_talker import v2_reference

    tensors = {name: tensor.float() for name, tensor in load_talker(checkpoint, CPU, torch.float32).items()}
    return v2_reference(checkpoint.config, tensors).model, tensors


def by_embeds(model, x, row):
    return model(inputs_embeds=x).last_hidden_state[0]


def by_ids(model, x, row):
    """Return v2's last hidden states. It chooses the experts by the ids."""
    ids, count = row.tokens.masked_fill(row.is_code, model.config.audio_token_id), int(row.is_code.sum())
    given = {"audio_input_ids": row.codes[row.is_code][None], "audio_input_ids_mask": torch.ones(1, count).bool()}
    return model(input_ids=ids[None], **given).last_hidden_state[0]


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_the_codes_that_end_a_codebook_have_a_loss_of_their_own(room, family):
    made = room(family)
    network, rows = shaken(made.network()), made.rows()
    losses = network.losses(together(rows))
    ends = [replace(row, targets=row.targets.where(row.targets == EOC, IGNORED)) for row in rows]
    assert losses.ends == pytest.approx(network.losses(together(ends)).codes, rel=1e-5)
    assert losses.ends != pytest.approx(losses.codes, rel=1e-3)


@pytest.mark.parametrize(("family", "reference", "takes"), [("v3", qwen, by_embeds), ("v2", llama, by_ids)])
@pytest.mark.parametrize("codes_in_full", [False, True])
def test_loss_and_gradients_equal_autograd_through_transformers(room, family, reference, takes, codes_in_full):
    if family == "v3" and not hasattr(transformers, "Qwen3Model"):
        pytest.skip("this transformers has no Qwen3Model")
    if family == "v2" and not hasattr(transformers, "HiggsAudioV2ForConditionalGeneration"):
        pytest.skip("this transformers has no HiggsAudioV2ForConditionalGeneration")
    made = room(family)
    network = shaken(made.network(codes_in_full=codes_in_full))
    rows, (model, tensors) = made.rows(), reference(made.checkpoint)
    model.requires_grad_(False)
    trained = network.adapter(network.numbers)
    tables = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in trained.items() if "lora" not in name}
    if tables:
        tensors |= zip(("embed_codes", "head_codes"), tables.values(), strict=True)
    if tables and family == "v2":
        model.embed_audio_tokens.embed_audio_tokens.weight = tensors["embed_codes"]
    modules = adapted(model, trained, "body." if family == "v3" else "model.")
    assert len(modules) == (len(trained) - len(tables)) // 2 == len(MODULES) * 2 + (6 if family == "v2" else 0)
    expected = sum(their_losses(made, model, tensors, row, takes) for row in rows) / network.targets(rows)
    expected.backward()
    groups = together(rows)
    assert network.losses(groups).codes == pytest.approx(expected.item(), rel=1e-5)
    network.accumulate(groups)
    ours = network.adapter(network.grad)
    for name, module in modules.items():
        for half, parameter in (("lora_A", module.a), ("lora_B", module.b)):
            error = (ours[f"{name}.{half}.weight"] - parameter.grad).norm()
            assert error <= 1e-4 * parameter.grad.norm(), f"{name} {half}"
    for name, table in tables.items():
        assert (ours[name] - table.grad).norm() <= 1e-4 * table.grad.norm(), name
    assert len(tables) == 2 * codes_in_full


def test_steps_are_those_of_torch_s_adamw(room):
    made = room()
    network = made.network()
    before = network.numbers.clone()
    parameter = torch.nn.Parameter(before.clone())
    theirs = torch.optim.AdamW([parameter], lr=1e-3, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)
    groups = together(made.rows())
    for step in range(1, 5):
        network.accumulate(groups)
        parameter.grad = network.grad.clone()
        torch.nn.utils.clip_grad_norm_([parameter], 1.0)
        network.grad.zero_()
        network.learn(groups, 1e-3, step)
        theirs.step()
        torch.testing.assert_close(network.numbers, parameter.data, rtol=1e-5, atol=1e-7)
    assert not torch.equal(network.numbers, before) and not network.grad.any()


def test_learning_lowers_the_loss_and_repeats_to_the_bit(room):
    made = room()
    runs = []
    for _ in range(2):
        with made.network() as network:
            groups = together(made.rows())
            losses = [network.learn(groups, 5e-3, step).codes for step in range(1, 16)]
            runs.append((losses, network.numbers.clone()))
    assert runs[0][0] == runs[1][0] and torch.equal(runs[0][1], runs[1][1])
    assert runs[0][0][-1] < 0.8 * runs[0][0][0]


def test_layers_computed_again_give_the_same_gradient(room):
    made = room("v2")
    row = made.rows()[0]
    gradients = []
    for recompute in (False, True):
        network = shaken(made.network())
        text = network.talker.embed_text.float()
        x = embed(network.talker, text, row.tokens[None], row.codes[None], row.is_code[None])
        hidden = whole(network.talker, x, row.is_code[None], network.changes, recompute)
        hidden.square().sum().backward()
        gradients.append(network.grad.clone())
    assert torch.equal(*gradients) and gradients[0].any()


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_a_quantised_base_is_dequantised_as_it_is_used(room, dtype):
    made = room("embedded", dtype=dtype)
    exact, network = shaken(room("embedded").network(), 0.02), shaken(made.network(), 0.02)
    groups = together(made.rows())
    for one in (exact, network):
        one.accumulate(groups)
    assert network.talker.layers[0].qkv.format == dtype
    likeness = torch.nn.functional.cosine_similarity(exact.grad, network.grad, dim=0)
    assert {"int8": 0.99, "int4": 0.8}[dtype] < likeness < 1


def test_sharpness_is_taken_back_in_the_loss(room):
    made = room()
    groups = together(made.rows())
    losses = [made.network(sharpness=sharpness).losses(groups).codes for sharpness in (1.0, 3.0)]
    assert losses[1] < losses[0]  # random logits, flatter


def test_closing_leaves_nothing(room, left_behind):
    made = room()
    network = made.network()
    network.learn(together(made.rows()), 1e-3, 1)
    assert network.pool.live_bytes() > 0
    network.close()
    network.close()
    assert network.pool.live_bytes() == 0 and network.numbers.numel() == 0


def test_planned_bytes_cover_weights_and_moments(room):
    made = room("embedded")
    planned = []
    for codes_in_full in (False, True):
        network = made.network(codes_in_full=codes_in_full)
        planned.append(planned_bytes(made.checkpoint, made.config, CPU, torch.float32, RANK, codes_in_full))
        held = network.pool.live_bytes()
        assert held < planned[-1] < held + (1 << 30)
    assert planned[1] - planned[0] >= 4 * 4 * 2 * 8208 * 512  # numbers, gradient, two moments, of two tables


@pytest.mark.parametrize("family", ["v3", "v2", "embedded"])
def test_codes_in_full_begin_with_the_model_s_own(room, family):
    """A loss at no strength is the untouched model's, also after steps that change both tables, apart."""
    made = room(family)
    groups = together(made.rows())
    plain = made.network().losses(groups).codes
    with made.network(codes_in_full=True) as network:
        assert network.losses(groups).codes == pytest.approx(plain, rel=1e-6)
        losses = [network.learn(groups, 1e-3, step).codes for step in range(1, 6)]
        *_, embedding, head = network.adapter(network.numbers).values()
        assert losses[-1] < losses[0] and embedding.shape == head.shape and not torch.equal(embedding, head)
        assert network.losses(groups, 0.0).codes == pytest.approx(plain, rel=1e-5)
        assert network.losses(groups, 0.5).codes not in (plain, losses[-1])
