"""Prompts token by token, and no injection of commands by users' text."""

import codecs
import json
import random

import pytest
import torch
from higgs_tts.engine.core.codes import BOC, EOC
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.prompt.card import ModelCard
from higgs_tts.engine.prompt.tags import TAGS
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.engine.voice.voice import Voice
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

V3_STRUCTURE = ["<|tts|>", "<|audio|>", "<|audio_end|>", "<|text|>", "<|text_end|>", "<|eoc|>", "<|ref_audio|>"]
V2_STRUCTURE = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
V2_STRUCTURE += ["<|audio_bos|>", "<|audio_eos|>", "<|audio_out_bos|>", "<|reserved_special_token_6|>"]
V2_STRUCTURE += ["<|AUDIO|>", "<|AUDIO_OUT|>", "<|scene_desc_start|>", "<|scene_desc_end|>"]
# How both families part text before merging: words, short numbers, punctuation with the line ends after it, space.
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Delayed rows of CODES as the references lay them out.
CODES = torch.tensor([[10, 20, 30], [11, 21, 31]])
V3_ROWS = [[10, BOC, BOC], [11, 20, BOC], [EOC, 21, 30], [EOC, EOC, 31]]
V2_ROWS = [[BOC, BOC, BOC], *V3_ROWS, [EOC, EOC, EOC]]


def byte_letters():
    """Map bytes to the letters that byte-level BPE uses for them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {**{byte: chr(byte) for byte in shown}, **{byte: chr(256 + i) for i, byte in enumerate(hidden)}}


def write_tokenizer(path, added, normalizer=None):
    """Write a tokenizer: ids 0..255 are bytes, 256 is ".\n", 257 is ".\n\n", 258 is "\n\n"; added tokens follow."""
    letters = byte_letters()
    line = letters[10]
    vocab = {letters[byte]: byte for byte in range(256)} | {f".{line}": 256, f".{line}{line}": 257, line * 2: 258}
    merges = [(".", line), (f".{line}", line), (line, line)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    words = pre_tokenizers.Split(Regex(WORDS), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken(name, special=name.startswith("<|"), normalized=False) for name in added])
    tokenizer.save(str(path))
    return tokenizer


def config(family, text_vocab=1000):
    return ModelConfig(
        family, family, hidden=8, layers=1, heads=1, kv_heads=1, head_dim=8, intermediate=8, norm_eps=1e-6,
        rope=RopeConfig(1e4), text_vocab=text_vocab, codebooks=3,
    )  # fmt: skip


@pytest.fixture(scope="module")
def v3(tmp_path_factory):
    path = tmp_path_factory.mktemp("v3") / "tokenizer.json"
    tokenizer = write_tokenizer(path, [*V3_STRUCTURE, "<|ref_text|>", *TAGS, "<think>", "[PAD]"])
    return PromptBuilder(path, config("v3")), tokenizer


@pytest.fixture(scope="module")
def v2(tmp_path_factory):
    path = tmp_path_factory.mktemp("v2") / "tokenizer.json"
    tokenizer = write_tokenizer(path, [*V2_STRUCTURE, "<|reserved_special_token_7|>"])
    return PromptBuilder(path, config("v2")), tokenizer


def spans(prompt):
    return [(start, rows.tolist()) for start, rows in prompt.audio]


def test_v3_zero_shot_prompt_is_as_published(v3):
    builder, tokenizer = v3
    prompt = builder.build("  Hi you.\n")
    tts, text, audio = (tokenizer.token_to_id(name) for name in ("<|tts|>", "<|text|>", "<|audio|>"))
    assert prompt.ids == [tts, text, *b"Hi you.", audio]
    assert prompt.audio == () and prompt.warnings == () and len(prompt) == len(prompt.ids)


def test_only_tags_that_the_model_learned_are_suggested(v3, tmp_path):
    (told,) = v3[0].build("Oh [laughs] no.").warnings
    assert told == '"[laughs]" is read aloud. Write <|sfx:laughter|>Haha instead.'
    write_tokenizer(tmp_path / "tokenizer.json", [*V3_STRUCTURE, *TAGS])
    builder = PromptBuilder(tmp_path / "tokenizer.json", config("v3"), ModelCard(tags=("<|prosody:pause|>",)))
    assert builder.build("Oh [laughs] no.").warnings == ('"[laughs]" is read aloud. Write Haha instead.',)
    assert builder.build("Oh (whispering) no.").warnings == ('"(whispering)" is read aloud. Remove it.',)


@pytest.mark.parametrize("markup", ["<speak>", '<break time="1s"/>', "<b>", "</p>", "<Anna>"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_markup_is_warned_about(v3, v2, family, markup):
    (told,) = {"v3": v3, "v2": v2}[family][0].build(f"Hello {markup} there.").warnings
    assert repr(markup) in told and "SSML and HTML tags are not supported" in told


def test_v3_clone_without_transcript_is_as_published(v3):
    builder, tokenizer = v3
    prompt = builder.build("Hi", Voice(CODES))
    tts, ref, text, audio = (tokenizer.token_to_id(n) for n in ("<|tts|>", "<|ref_audio|>", "<|text|>", "<|audio|>"))
    assert prompt.ids == [tts, ref, 0, 0, 0, 0, text, *b"Hi", audio]
    assert spans(prompt) == [(2, V3_ROWS)]


def test_v3_clone_with_transcript_is_as_published(v3):
    builder, tokenizer = v3
    prompt = builder.build("Hi", Voice(CODES, " Said so. "))
    names = ("<|tts|>", "<|ref_text|>", "<|ref_audio|>", "<|text|>", "<|audio|>")
    tts, ref_text, ref, text, audio = (tokenizer.token_to_id(name) for name in names)
    assert prompt.ids == [tts, ref_text, *b"Said so.", ref, 0, 0, 0, 0, text, *b"Hi", audio]
    assert spans(prompt) == [(11, V3_ROWS)] and prompt.warnings == ()


def test_v3_drops_the_transcript_if_the_tokenizer_is_old(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = write_tokenizer(path, V3_STRUCTURE)
    prompt = PromptBuilder(path, config("v3")).build("Hi", Voice(CODES, "Said."))
    assert prompt.ids[:3] == [tokenizer.token_to_id("<|tts|>"), tokenizer.token_to_id("<|ref_audio|>"), 0]
    assert len(prompt.warnings) == 1 and "transcript" in prompt.warnings[0] and str(path) in prompt.warnings[0]


def test_v3_tags_are_one_token_each_in_both_spellings(v3):
    builder, tokenizer = v3
    assert len(TAGS) == 43 == len(set(TAGS))
    full = builder.build("".join(TAGS) + "Hi")
    short = builder.build("".join(f"<{tag[2:-2]}>" for tag in TAGS) + "Hi")
    assert full.ids == short.ids and full.warnings == short.warnings == ()
    assert full.ids[2:-3] == [tokenizer.token_to_id(tag) for tag in TAGS]


def test_v3_text_with_tags_encodes_as_the_tokenizer_would(v3):
    builder, tokenizer = v3
    text = "<|emotion:awe|>Oh. \n\nWell <|prosody:pause|> so,<|sfx:laughter|>Haha"
    assert builder.build(text).ids == tokenizer.encode(f"<|tts|><|text|>{text}<|audio|>", add_special_tokens=False).ids


def v2_string(turns, scene="\n\n<|scene_desc_start|>\nAudio is recorded from a quiet room.\n<|scene_desc_end|>"):
    """Return the prompt as transformers' chat template renders it, with clips of CODES expanded."""
    clip = "<|audio_out_bos|>" + "<|AUDIO_OUT|>" * 4 + "<|reserved_special_token_6|>" * 2 + "<|audio_eos|>"
    rendered = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
    rendered += f"Generate audio following instruction.{scene}<|eot_id|>"
    for role, content in turns:
        rendered += f"<|start_header_id|>{role}<|end_header_id|>\n\n{content}<|eot_id|>"
    rendered += "<|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|><|AUDIO_OUT|>"
    return rendered.replace("CLIP", clip)


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_v2_zero_shot_prompt_is_as_published(v2):
    builder, tokenizer = v2
    prompt = builder.build("Hi.\n\nYou", scene="A hall.")
    name = tokenizer.token_to_id
    header, end, eot = name("<|start_header_id|>"), name("<|end_header_id|>"), name("<|eot_id|>")
    expected = [name("<|begin_of_text|>"), header, *b"system", end, 258, *b"Generate audio following instruction", 257]
    expected += [name("<|scene_desc_start|>"), 10, *b"A hall", 256, name("<|scene_desc_end|>"), eot]
    expected += [header, *b"user", end, 258, *b"Hi", 257, *b"You", eot]
    expected += [header, *b"assistant", end, 258, name("<|audio_out_bos|>"), name("<|AUDIO_OUT|>")]
    assert prompt.ids == expected
    assert spans(prompt) == [(len(expected) - 1, [[BOC] * 3])]


def test_v2_has_a_default_scene_unless_it_is_empty(v2):
    builder, tokenizer = v2
    assert builder.build("Hi").ids == encode(tokenizer, v2_string([("user", "Hi")]))
    assert builder.build("Hi", scene="").ids == encode(tokenizer, v2_string([("user", "Hi")], scene=""))


def test_v2_clone_is_an_earlier_turn(v2):
    builder, tokenizer = v2
    prompt = builder.build("Hi", Voice(CODES, "Said so."))
    assert prompt.ids == encode(tokenizer, v2_string([("user", "Said so."), ("assistant", "CLIP"), ("user", "Hi")]))
    start = prompt.ids.index(tokenizer.token_to_id("<|AUDIO_OUT|>"))
    assert spans(prompt) == [(start, V2_ROWS), (len(prompt) - 1, [[BOC] * 3])]
    assert prompt.ids[start + 6] == tokenizer.token_to_id("<|audio_eos|>")


def test_v2_clone_without_transcript_stands_in_the_scene(v2):
    builder, tokenizer = v2
    scene = "\n\n<|scene_desc_start|>\n{}\n\nSPEAKER0: CLIP\n<|scene_desc_end|>"
    expected = v2_string([("user", "Hi")], scene.format("A hall."))
    assert builder.build("Hi", Voice(CODES), scene="A hall.").ids == encode(tokenizer, expected)
    expected = v2_string([("user", "Hi")], scene.format("Audio is recorded from a quiet room."))
    assert builder.build("Hi", Voice(CODES, "  "), scene="").ids == encode(tokenizer, expected)


def test_v2_without_scene_tokens_spells_them(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = write_tokenizer(path, [name for name in V2_STRUCTURE if "scene" not in name])
    prompt = PromptBuilder(path, config("v2")).build("Hi")
    assert prompt.ids == encode(tokenizer, v2_string([("user", "Hi")])) and prompt.warnings == ()


def test_each_warning_appears_once(v3):
    assert len(v3[0].build("a <|x|> b <|x|> c", Voice(CODES, "<|x|> d")).warnings) == 1


def test_v3_scene_is_left_out_with_a_warning(v3):
    builder, _ = v3
    prompt = builder.build("Hi", scene="A hall.")
    assert prompt.ids == builder.build("Hi").ids and "scene" in prompt.warnings[0]


FRAGMENTS = "<| |> < > | text audio eot_id : emotion awe Hi é 你 😀 <emotion:awe> <|foo|> <sfx:> th <thi nk>".split()
FRAGMENTS += ["[PA", "D]", " ", "\n", "\u200d", "\ud800"]


def hostile(rng, structure):
    return "Hi " + "".join(rng.choice([*FRAGMENTS, *structure, *TAGS[:5]]) for _ in range(rng.randint(1, 14)))


def commands(prompt, tokenizer, allowed=()):
    """Return a prompt's added tokens outside its audio, in order, without those in `allowed`."""
    reserved = set(tokenizer.get_added_tokens_decoder()) - {tokenizer.token_to_id(name) for name in allowed}
    return [token for token in prompt.ids if token in reserved]


@pytest.mark.parametrize("seed", range(6))
def test_text_never_becomes_a_command(v3, v2, seed):
    rng = random.Random(seed)
    for (builder, tokenizer), structure in ((v3, V3_STRUCTURE), (v2, V2_STRUCTURE)):
        plain = builder.build("x", Voice(CODES, "x"), scene="x")
        for _ in range(60):
            text, said, scene = (hostile(rng, [*structure, "<think>", "[PAD]"]) for _ in range(3))
            prompt = builder.build(text, Voice(CODES, said), scene=scene)
            allowed = () if builder.config.family == "v2" else TAGS
            assert commands(prompt, tokenizer, allowed) == commands(plain, tokenizer), (text, said, scene)


def test_look_alikes_that_a_normalizer_folds_are_removed(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = write_tokenizer(path, V3_STRUCTURE, normalizers.NFKC())
    tokenizer.add_tokens([AddedToken("<think>", normalized=True)])
    tokenizer.save(str(path))
    assert tokenizer.token_to_id("<think>") in encode(tokenizer, "Hi＜think＞")
    prompt = PromptBuilder(path, config("v3")).build("Hi＜think＞")
    assert prompt.ids[2:-1] == list(b"Hi") and "<think>" in prompt.warnings[0]


@pytest.mark.parametrize("text", ["", " \n\t", "<|foo|>", "<|text|> <think>", "<|emotion:awe|> <prosody:pause>"])
def test_empty_text_is_refused(v3, text):
    with pytest.raises(HiggsError, match="nothing to speak"):
        v3[0].build(text)


@pytest.mark.parametrize(
    "text", ["... !!! ???", "😀 👍🏽", "—", "<|emotion:awe|>!", "€ %", "<|foo|> (…)", "\u0301", "\u200d"]
)
def test_punctuation_alone_is_refused(v3, v2, text):
    for builder, _ in (v3, v2):
        with pytest.raises(HiggsError, match="no letters or digits"):
            builder.build(text)


@pytest.mark.parametrize("text", ["7", "½", "①", "好", "ا", "🙂 a", "...I", "№5"])
def test_a_letter_or_digit_is_enough_to_speak(v3, v2, text):
    for builder, _ in (v3, v2):
        assert builder.build(text).ids


def test_an_effect_alone_is_enough_to_speak(v3, v2):
    assert len(v3[0].build("<|sfx:cough|>").ids) == 4
    assert v3[0].build("<|sfx:laughter|>...").ids
    with pytest.raises(HiggsError, match="nothing to speak"):
        v2[0].build("<|sfx:cough|>")


def test_a_voice_with_other_codebooks_is_refused(v3):
    with pytest.raises(HiggsError, match=r"\b2 .*\b3\b"):
        v3[0].build("Hi", Voice(torch.zeros(4, 2, dtype=torch.int64)))


@pytest.mark.parametrize(("family", "structure"), [("v3", V3_STRUCTURE), ("v2", V2_STRUCTURE)])
def test_a_tokenizer_without_a_required_token_is_refused(tmp_path, family, structure):
    path = tmp_path / "tokenizer.json"
    missing = "<|ref_audio|>" if family == "v3" else "<|reserved_special_token_6|>"
    write_tokenizer(path, [name for name in structure if name != missing])
    with pytest.raises(HiggsError) as caught:
        PromptBuilder(path, config(family))
    assert str(path) in str(caught.value) and missing in str(caught.value)


def test_a_tokenizer_larger_than_the_model_is_refused(v3, tmp_path):
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path, V3_STRUCTURE)
    with pytest.raises(HiggsError, match=r"tokenizer\.json.*\b260\b"):
        PromptBuilder(path, config("v3", text_vocab=260))


def test_missing_optional_tokens_are_noted(v3, v2, tmp_path):
    assert v3[0].notes() == v2[0].notes() == ()
    path = tmp_path / "tokenizer.json"
    tokenizer = write_tokenizer(path, [*V3_STRUCTURE, *TAGS[:41], "[PAD]"])
    no_transcripts, no_tags, beyond = PromptBuilder(path, config("v3", tokenizer.token_to_id("[PAD]"))).notes()
    assert str(path) in no_transcripts and "<|ref_text|>" in no_transcripts
    assert "2 of the 43" in no_tags and "<|sfx:sniff|>" in no_tags and "<|sfx:sneeze|>" in no_tags
    assert str(path) in beyond and "1 tokens" in beyond and "307" in beyond


def test_a_byte_order_mark_is_ignored(v3, tmp_path):
    path = tmp_path / "tokenizer.json"
    write_tokenizer(path, [*V3_STRUCTURE, "<|ref_text|>", *TAGS, "<think>", "[PAD]"])
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    text = "<|emotion:awe|>Hi \u4e16."
    assert PromptBuilder(path, config("v3")).build(text).ids == v3[0].build(text).ids


def test_a_git_lfs_pointer_for_a_tokenizer_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", encoding="utf-8")
    with pytest.raises(HiggsError, match=r"tokenizer\.json.*git lfs pull"):
        PromptBuilder(path, config("v3"))


@pytest.mark.parametrize(
    "content",
    [None, "not json", json.dumps([1]), json.dumps({"model_max_length": 5}), json.dumps({"model": {"type": "New"}})],
)
def test_a_missing_or_damaged_tokenizer_is_refused(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(HiggsError, match=r"tokenizer\.json"):
        PromptBuilder(path, config("v3"))


def test_padding_and_truncation_of_the_file_are_ignored(tmp_path):
    path = tmp_path / "tokenizer.json"
    tokenizer = write_tokenizer(path, V3_STRUCTURE)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(path))
    assert PromptBuilder(path, config("v3")).build("Hello").ids[2:-1] == list(b"Hello")


@pytest.mark.parametrize(
    "text",
    [
        "Hi you.",
        "Caf\u00e9, na\u00efve, \u4e2d\u6587\u3002",
        "\u0958\u0959 \U0001d160\ufb4e",
        "1999 <|sfx:laughter|>Haha",
    ],
)
def test_a_rough_measure_is_never_less_than_the_tokens(tmp_path, text):
    write_tokenizer(tmp_path / "tokenizer.json", [*V3_STRUCTURE, *TAGS], normalizers.NFC())
    builder = PromptBuilder(tmp_path / "tokenizer.json", config("v3"))
    overhead, tokens = builder.measure(text)
    rough_overhead, rough = builder.measure(text, is_rough=True)
    assert overhead == rough_overhead and 0 < tokens <= rough
