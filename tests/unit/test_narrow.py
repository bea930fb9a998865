"""The narrow domain and the guide of a small talker's attention."""

import numpy as np
import torch
from higgs_tts.engine.tiny_config import tiny_tokenizer
from higgs_tts.training import guided
from higgs_tts.training.sequences import Words
from higgs_tts.training.talker import CODEBOOKS, Talker

TEXT = "It is 7:45 now."
SPANS = [(0.1, 0.3), (0.3, 0.5), (0.6, 1.2), (1.2, 1.5)]


def one_example():
    tokenizer = tiny_tokenizer("v3")
    codes = np.random.default_rng(0).integers(0, 1024, (40, CODEBOOKS))
    return tokenizer, guided.guided(Words(tokenizer), tokenizer, TEXT, codes, SPANS)


def test_every_token_belongs_to_its_word():
    tokenizer, one = one_example()
    found = ["", "", "", ""]
    for position, (start, end) in enumerate(tokenizer.encode(TEXT).offsets, 2):
        found[one.word[position]] += TEXT[start:end]
    assert [text.strip() for text in found] == TEXT.split()
    assert (one.word == -2).sum() == len(one.word) - len(tokenizer.encode(TEXT).ids)


def test_a_frame_is_guided_to_the_word_it_says():
    tokenizer, one = one_example()
    first = 2 + len(tokenizer.encode(TEXT).ids)
    assert (one.spoken[:first] == -1).all()
    at = {seconds: one.spoken[first + round(seconds / 0.04)] for seconds in (0.0, 0.2, 0.4, 0.8, 1.4)}
    assert list(at.values()) == [0, 0, 1, 2, 3]
    assert one.spoken[-1] == 3  # the silence at the end, and the rows that end the codebooks
    assert (np.diff(one.spoken[first:]) >= 0).all()


@torch.inference_mode(False)
def test_the_guide_and_the_losses_reach_the_weights():
    torch.manual_seed(0)
    _, one = one_example()
    model = Talker(guided.Shape(text_vocab=400, hidden=64, layers=3, heads=2, kv_heads=1, head_dim=32, intermediate=64))
    found, guide = guided.losses(model, *guided.collate([one, one]))
    assert found.shape == (CODEBOOKS + 1,) and 6 < found[-1] < 8
    guide.backward(retain_graph=True)
    assert model.blocks[1].q.weight.grad.abs().sum() > 0
    found[-1].backward()
    assert model.codes.weight.grad.abs().sum() > 0


def test_noise_spares_the_specials():
    _, one = one_example()
    rows = guided.collate([one], 0.5, np.random.default_rng(1))[1][0].numpy()
    before = one.example.rows
    assert (rows != before).any()
    assert (rows[before >= 1024] == before[before >= 1024]).all()
