"""The training's text and sequences, checked against the engine that reads what they teach."""

import pytest
import torch
from higgs_tts.engine.core.codes import apply_v3
from higgs_tts.engine.prompt.builder import PromptBuilder
from higgs_tts.engine.talker import build_talker
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.engine.voice.voice import Voice
from higgs_tts.training import corpus, sequences, weights, written
from higgs_tts.training.clips import Clips
from higgs_tts.training.sampler import Sampler
from higgs_tts.training.sequences import Said
from higgs_tts.training.talker import CODE_VOCAB, CODEBOOKS, Attention, Shape, Talker, loss_of
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
def tokenizer_path(written):
    return written["v3"] / "tokenizer.json"


@pytest.fixture(scope="module")
def words(tokenizer_path):
    return sequences.Words(Tokenizer.from_file(str(tokenizer_path)))


def codes(frames: int, seed: int) -> torch.Tensor:
    return torch.randint(1024, (frames, CODEBOOKS), generator=torch.Generator().manual_seed(seed))


def test_the_splits_have_no_sentence_in_common():
    letters = [{corpus.letters_of(text) for text in corpus.sentences(split, 3000, seed=1)} for split in corpus.SPLITS]
    assert min(map(len, letters)) > 1500
    assert not letters[0] & letters[1]


def test_fixed_sentences_are_held_out():
    fixed = (corpus.templates.TEXT / "held_out.txt").read_text(encoding="utf-8").splitlines()
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
def test_a_training_sequence_begins_with_the_engine_s_prompt(tokenizer_path, words, said):
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


def test_training_targets_are_the_next_row(words):
    speech = codes(30, 2)
    one = sequences.example(words, Said(TEXT, speech.numpy()))
    rows = apply_v3(speech)
    first = len(one.ids) - len(rows)  # the position of <|audio|>
    assert (one.targets[:first] == -1).all()
    expected = rows.masked_fill(rows == sequences.BOC, -1)
    assert torch.equal(torch.from_numpy(one.targets[first:]).long(), expected)
    assert torch.equal(torch.from_numpy(one.rows[first + 1 :]).long(), rows[:-1])


def test_the_trained_network_equals_the_engine_s(words):
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
        last = engine.logits(engine.fill(one.ids.tolist(), spans, keys, keys.clone(), 0, length)[-1:])
        place = int((batch.learned == start + length - 1).nonzero())
        torch.testing.assert_close(last.view(CODEBOOKS, CODE_VOCAB), logits[place], atol=2e-4, rtol=1e-3)
        start += length


def _canonical(state: dict, shape: Shape) -> dict:
    tensors = {"embed_text": state["text.weight"], "embed_codes": state["codes.weight"], "norm": state["norm.weight"]}
    tensors["head_codes"] = tensors["embed_codes"]
    for i in range(shape.layers):
        block = f"blocks.{i}."
        part = {name.split(".")[2]: tensor for name, tensor in state.items() if name.startswith(block)}
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


def test_data_files_stay_small_and_can_be_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(weights, "MOST_BYTES", 600_000)
    talker = Talker(SHAPE)
    paths = weights.save_talker(tmp_path, SHAPE, talker.state_dict(), {"steps": 3})
    assert len(paths) > 2
    shape, state, note = weights.load_talker(tmp_path)
    assert (shape, note) == (SHAPE, {"steps": 3})
    for name, tensor in talker.state_dict().items():
        assert torch.equal(state[name], tensor.bfloat16().float()), name


CLONED = Said("He can<|prosody:pause|>go home.", codes(30, 1).numpy(), (100, 300, 700, 900))
SAYING = Said("Is it 7:45?", codes(20, 2).numpy(), (50, 200, 400))


def told(one: sequences.Example, rows: int, row: int) -> int:
    """Return the word that an example says in row `row` of its last `rows` rows."""
    return int(one.spoken[len(one.ids) - rows + row])


def test_a_tag_and_white_space_belong_to_no_word(words):
    ids, word, count = words("<|prosody:speed_slow|> Is  it<|prosody:pause|>7:45?")
    assert count == 3 and len(ids) == len(word)
    assert word.tolist() == [-2, -2, 0, 0, -2, -2, 1, 1, -2, *[2] * 5]


def test_rows_carry_their_word_and_words_their_letters(words):
    one = sequences.example(words, SAYING)
    rows = len(SAYING.codes) + CODEBOOKS - 1
    # frame 3 ends at 160 ms, frame 4 at 200, frame 8 at 360, frame 9 at 400
    assert [told(one, rows, row) for row in (0, 3, 4, 8, 9, rows - 1)] == [0, 0, 1, 1, 2, 2]
    assert (one.spoken[: len(one.ids) - rows] == -1).all()
    letters = [chr(one.ids[place]) for place in (one.word == 2).nonzero()[0]]
    assert len(letters) == len("7:45?") and not one.is_code[one.word >= 0].any()


@pytest.mark.parametrize("text", [CLONED.text, ""])
def test_a_transcript_s_words_count_before_the_text_s(words, text):
    one = sequences.example(words, SAYING, Said(text, CLONED.codes, CLONED.starts))
    before = 4 if text else 0
    assert set(one.word.tolist()) == {-2, *range(before + 3)}
    rows = len(SAYING.codes) + CODEBOOKS - 1
    assert [told(one, rows, row) for row in (0, 4, 9)] == [before, before + 1, before + 2]
    first = int(one.is_code.argmax())  # row 0 of the reference, told by the position before it
    heard = one.spoken[first - 1 : first - 1 + len(CLONED.codes)]
    assert heard[[0, 7, 17, 22]].tolist() == ([0, 1, 2, 3] if text else [-1] * 4)
    for place in (one.spoken >= 0).nonzero()[0]:  # what is looked for lies before
        assert (one.word[:place] == one.spoken[place]).any()


def test_words_without_times_are_not_guessed(words):
    for starts in ((), (50, 200)):
        assert (sequences.example(words, Said(SAYING.text, SAYING.codes, starts)).spoken == -1).all()


def test_joined_clips_continue_the_word_count(words):
    clips = Clips.join([codes(20, 1), codes(30, 2)], ["One two.", "Three, four!"], ["slt"] * 2, [(100, 400), (80, 500)])
    sampler = Sampler(Clips.all([clips, clips]), words, "slt", seed=0)
    for _ in range(50):
        said = sampler.said(sampler.chosen(sampler.groups["slt", ""], 200, (0, 0, 1, 0, 0)), "")
        _, _, count = words(said.text)
        assert len(said.starts) == count == 6
        lengths = [20 if text == "One" else 30 for text in said.text.split()[::2]]
        begins = [0, 40 * lengths[0], 40 * (lengths[0] + lengths[1])]
        firsts = [100 if length == 20 else 80 for length in lengths]
        assert list(said.starts[::2]) == [a + b for a, b in zip(begins, firsts, strict=True)]


def test_clips_are_read_again_with_their_words(tmp_path):
    clips = Clips.join([codes(5, 1), codes(7, 2)], ["So.", "Here it is."], ["slt", "rms"], [(), (80, 200, 300)])
    clips.save(tmp_path / "clips.safetensors")
    again = Clips.load(tmp_path / "clips.safetensors")
    both = Clips.all([again, clips])
    assert both.texts == clips.texts * 2 and both.speakers == clips.speakers * 2
    assert torch.equal(both.codes[both.starts[3] :], codes(7, 2).short())
    assert both.word_starts.tolist() == [0, 0, 3, 3, 6]
    assert both.words.tolist() == [80, 200, 300] * 2


def test_the_guide_loss_is_small_if_the_head_looks_at_the_word(words):
    """Scores written by hand: the first head attends to one word alone, the right one or another."""
    batch = sequences.pack([sequences.example(words, SAYING, CLONED), sequences.example(words, SAYING)], 256, 8)
    start = torch.arange(256) - batch.place
    same = start[:, None] == start

    def guide(wanted: torch.Tensor) -> float:
        attend = Attention(batch)
        # query i and key j agree where the word of j is the wanted one, inside a sequence
        agree = (same & (wanted[:, None] == batch.word) & (wanted[:, None] >= 0)).float()
        q = agree[:, None] * 400  # [256, 1, 256] against unit keys
        attend.guided(q, torch.eye(256)[:, None], torch.eye(256)[:, None])
        return float(attend.guides[0])

    assert guide(batch.spoken.long()) < 1e-3
    assert guide(batch.spoken.long() - 1) > 1
    assert guide(torch.full((256,), -1)) > 1


@torch.inference_mode(False)
def test_training_learns_the_guided_attention(words):
    torch.manual_seed(0)
    talker = Talker(Shape(text_vocab=400, hidden=64, layers=3, heads=2, kv_heads=1, head_dim=32, intermediate=64))
    batch = sequences.pack([sequences.example(words, SAYING, CLONED), sequences.example(words, SAYING)], 256, 8)
    optimizer = torch.optim.AdamW(talker.parameters(), 3e-3)
    found = []
    for _ in range(60):
        logits, guide = talker(batch)
        loss = loss_of(logits, batch.targets, torch.ones(CODEBOOKS))[-1] + 0.2 * guide
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(guide.item())
    assert found[-1] < 0.3 * found[0]


def test_a_reference_is_of_other_clips_than_those_said(words):
    said = [torch.full((20, CODEBOOKS), number) for number in range(40)]
    sampler = Sampler(Clips.join(said, [f"Number {i}." for i in range(40)], ["rms"] * 40), words, "slt", seed=0)
    for _ in range(60):
        one = sampler.draw()
        begin = int((one.ids == words.token("<|text|>")).argmax())
        heard, learned = (
            {int(code) for code in rows[kept].flatten() if code < 40}
            for rows, kept in ((one.rows[:begin], one.is_code[:begin]), (one.rows[begin:], one.is_code[begin:]))
        )
        assert heard and learned and not heard & learned


def test_a_slip_changes_what_is_read_and_not_what_is_learned(words):
    sampler = Sampler(Clips.join([codes(300, 1)], ["Long enough."], ["slt"]), words, "slt", seed=0)
    one, plain = (sequences.example(words, Said("Long enough.", codes(300, 1).numpy())) for _ in range(2))
    sampler.slip(one, 300)
    changed = (one.rows != plain.rows).any(1)
    assert 4 <= changed.sum() < 70 and one.is_code[changed].all()
    assert (one.targets == plain.targets).all() and (one.ids == plain.ids).all()


def test_paragraphs_are_as_long_as_a_chunk_and_keep_their_words():
    found = [line for line in corpus.lines("train", 400, seed=9) if len(line.text) > 200]
    assert len(found) > 40 and max(len(line.text) for line in found) < 900
    for line in found:
        assert len(" ".join(line.parts).split()) == len(corpus.TAG.sub(" ", line.text).split())
        assert len(line.pauses) == len(line.parts) - 1
    sentences = [one for line in found for one in corpus.re.split(r"(?<=[.?!]) ", line.text)]
    assert len(set(sentences)) < len(sentences), "some sentences come again"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("It weighs 3.75 kg.", "It weighs three_point_seven_five_kilograms ."),
        ("At 06:32, he left.", "At six_thirty-two, he left."),
        ("World War II", "World War two"),
        ("The door was open.Nobody was home.", "The door was open._Nobody was home."),
        ("\u2022 Open the box.", "_ Open the box."),
        ("The FBI came.", "The eff_bee_eye came."),
    ],
)
def test_what_is_said_stays_with_the_written_words(text, said):
    assert written.by_word(text) == said
    assert len(said.split()) == len(text.split())
