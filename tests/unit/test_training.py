"""The training's text and sequences, held against the engine that will read what they teach."""

import pytest
import torch
from higgs_tts.engine.config import ModelConfig, RopeConfig
from higgs_tts.engine.delay import apply_v3
from higgs_tts.engine.prompt import PromptBuilder
from higgs_tts.engine.talker import build_talker
from higgs_tts.engine.tiny import write_tiny
from higgs_tts.engine.voice import Voice
from higgs_tts.training import corpus, sequences, weights
from higgs_tts.training.clips import Clips
from higgs_tts.training.sampler import Sampler
from higgs_tts.training.sequences import Said
from higgs_tts.training.talker import CODE_VOCAB, CODEBOOKS, Shape, Talker
from tokenizers import Tokenizer

TEXT = "<|prosody:speed_slow|>It is 7:45. <|prosody:pause|> Isn't it?"
SHAPE = Shape(text_vocab=400, hidden=64, layers=2, heads=4, kv_heads=2, head_dim=16, intermediate=96)


def config_of(shape: Shape) -> ModelConfig:
    return ModelConfig(
        family="v3",
        layout="v3",
        hidden=shape.hidden,
        layers=shape.layers,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        intermediate=shape.intermediate,
        norm_eps=1e-6,
        rope=RopeConfig(1e6),
        text_vocab=shape.text_vocab,
    )


@pytest.fixture(scope="module")
def tokenizer_path(tmp_path_factory):
    return write_tiny(tmp_path_factory.mktemp("tiny"), "v3") / "tokenizer.json"


@pytest.fixture(scope="module")
def words(tokenizer_path):
    return sequences.Words(Tokenizer.from_file(str(tokenizer_path)))


def codes(frames: int, seed: int) -> torch.Tensor:
    return torch.randint(1024, (frames, CODEBOOKS), generator=torch.Generator().manual_seed(seed))


def test_the_splits_share_no_sentence():
    letters = [{corpus._letters(text) for text in corpus.sentences(split, 3000, seed=1)} for split in corpus.SPLITS]
    assert min(map(len, letters)) > 1500
    assert not letters[0] & letters[1]


def test_fixed_sentences_are_held_out():
    fixed = (corpus.templates.TEXT / "held_out.txt").read_text().splitlines()
    assert len(fixed) >= 40
    assert {corpus.split_of(text.upper()) for text in fixed} == {"heldout"}


def test_sentences_are_the_same_every_time():
    assert corpus.sentences("heldout", 50, seed=3) == corpus.sentences("heldout", 50, seed=3)
    assert corpus.sentences("heldout", 50, seed=3) != corpus.sentences("heldout", 50, seed=4)


def test_the_test_has_tags_digits_and_questions():
    texts = corpus.sentences("heldout", 200)
    assert len(set(texts)) == 200
    assert all(4 <= len(corpus.TAG.sub(" ", text).split()) <= 25 for text in texts)
    for kind in ("<|prosody:pause|>", "<|prosody:speed_", "?", "7"):
        assert any(kind in text for text in texts), kind


@pytest.mark.parametrize("said", [None, "", "What the clip says."])
def test_a_sequence_begins_as_the_engine_s_prompt(tokenizer_path, words, said):
    reference = None if said is None else codes(20, 1)
    given = None if reference is None else Said(said, reference.numpy())
    one = sequences.example(words, Said(TEXT, codes(30, 2).numpy()), given)
    voice = None if reference is None else Voice(reference, said or None)
    prompt = PromptBuilder(tokenizer_path, config_of(SHAPE)).build(TEXT, voice)
    length = len(prompt)
    assert one.ids[:length].tolist() == prompt.ids
    assert one.is_code[:length].sum() == sum(len(rows) for _, rows in prompt.audio)
    for start, rows in prompt.audio:
        assert torch.equal(torch.from_numpy(one.rows[start : start + len(rows)]).long(), rows)
    assert one.is_code[length:].all()


def test_what_is_learned_is_the_next_row(words):
    speech = codes(30, 2)
    one = sequences.example(words, Said(TEXT, speech.numpy()))
    rows = apply_v3(speech)
    first = len(one.ids) - len(rows)  # the position of <|audio|>
    assert (one.targets[:first] == -1).all()
    expected = rows.masked_fill(rows == sequences.BOC, -1)
    assert torch.equal(torch.from_numpy(one.targets[first:]).long(), expected)
    assert torch.equal(torch.from_numpy(one.rows[first + 1 :]).long(), rows[:-1])


def test_the_trained_network_is_the_engine_s(words):
    torch.manual_seed(0)
    talker = Talker(SHAPE)
    for block in talker.blocks:
        torch.nn.init.normal_(block.o.weight, std=0.1)
        torch.nn.init.normal_(block.down.weight, std=0.1)
    reference = Said("So.", codes(15, 3).numpy())
    examples = [sequences.example(words, Said(TEXT, codes(n, n).numpy()), reference) for n in (20, 30)]
    with torch.no_grad():
        batch = sequences.pack(examples, 300, 8)
        logits, _ = talker(batch)
    config = config_of(SHAPE)
    tensors = _canonical(talker.state_dict(), SHAPE)
    engine = build_talker(config, tensors, 256)
    start = 0
    for one in examples:
        length = len(one.ids)
        keys = torch.zeros(SHAPE.layers, SHAPE.kv_heads, length, SHAPE.head_dim)
        spans, rows = [], torch.from_numpy(one.rows).long()
        spans = [(i, rows[i : i + 1]) for i in range(length) if one.is_code[i]]
        last = engine.prefill(one.ids.tolist(), spans, keys, keys.clone())
        place = int((batch.learned == start + length - 1).nonzero())
        torch.testing.assert_close(last.view(CODEBOOKS, CODE_VOCAB), logits[place], atol=2e-4, rtol=1e-3)
        start += length


def _canonical(state: dict, shape: Shape) -> dict:
    tensors = {"embed_text": state["text.weight"], "embed_codes": state["codes.weight"], "norm": state["norm.weight"]}
    tensors["head_codes"] = tensors["embed_codes"]
    for i in range(shape.layers):
        part = {name: state[f"blocks.{i}.{name}.weight"] for name in weights._LAYER}
        joined = {"qkv": torch.cat([part["q"], part["k"], part["v"]]), "gate_up": torch.cat([part["gate"], part["up"]])}
        kept = {name: part[name] for name in ("attn_norm", "mlp_norm", "q_norm", "k_norm", "o", "down")}
        tensors |= {f"layers.{i}.{name}": tensor for name, tensor in (joined | kept).items()}
    return tensors


def test_the_sampler_gives_only_the_home_speaker_without_a_reference(words):
    texts = [f"Number {i}." for i in range(40)] + ["<|prosody:speed_fast|>Quick."]
    speakers = ["slt"] * 20 + ["rms"] * 20 + ["rms"]
    said = [codes(20, i) for i in range(len(texts))]
    sampler = Sampler(Clips.join(said, texts, speakers), words, "slt", seed=0)
    home = {tuple(clip[0].tolist()) for clip in said[:20]}
    plain = 0
    for _ in range(200):
        one = sampler.draw()
        with_reference = words.token("<|ref_audio|>") in one.ids[~one.is_code]
        position = len(one.ids) - 1 if not with_reference else None
        if position is not None:
            plain += 1
            start = int(one.is_code.argmax())
            diagonal = tuple(int(one.rows[start + book, book]) for book in range(CODEBOOKS))
            assert diagonal in home
    assert plain > 20


def test_files_stay_small_and_come_back(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MOST_BYTES", 600_000)
    talker = Talker(SHAPE)
    paths = weights.save_talker(tmp_path, SHAPE, talker.state_dict(), {"steps": 3})
    assert len(paths) > 2
    shape, state, note = weights.load_talker(tmp_path)
    assert (shape, note) == (SHAPE, {"steps": 3})
    for name, tensor in talker.state_dict().items():
        assert torch.equal(state[name], tensor.bfloat16().float()), name
