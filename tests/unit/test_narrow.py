"""The narrow domain: its sentences, and the tokenizer that knows its words whole."""

import pytest
from higgs_tts.training import narrow
from higgs_tts.training.sequences import Words


@pytest.fixture(scope="module")
def tokenizer():
    return narrow.word_tokenizer()


def test_the_splits_share_no_sentence():
    train, heldout = (set(narrow.sentences(split, 600, seed=1)) for split in ("train", "heldout"))
    assert len(train) == 600 and len(heldout) > 300
    assert not train & heldout


def test_every_word_of_the_domain_is_a_token(tokenizer):
    words = [word for word in narrow.vocabulary() if word.islower() and "'" not in word]
    assert len(words) > 100
    for word in words:
        assert len(tokenizer.encode(f" {word}").ids) == 1, word


def test_a_token_that_begins_with_a_space_belongs_to_the_word_behind_it(tokenizer):
    text = "Anna is here at 7:45."
    ids, word, count = Words(tokenizer)(text)
    assert count == len(text.split())
    found = [""] * count
    for number, (start, end) in zip(word, tokenizer.encode(text).offsets, strict=True):
        if number >= 0:
            found[number] += text[start:end]
    assert [spoken.strip() for spoken in found] == text.split()
    assert len(ids) == len(tokenizer.encode(text).ids)
