"""Natural training voices: figures and phonemes, the network that speaks, and processing of its sound."""

import numpy as np
import pytest
import torch
from higgs_tts.training import corpus, read, readings
from higgs_tts.training.kokoro import Decoder, Kokoro, SnakeBlock
from higgs_tts.training.natural_voices import DEFAULT, SOURCES, TRAINED, UNSEEN, VOICES, Voices, shares
from higgs_tts.training.shards import SAMPLE_RATE, STEP
from higgs_tts.training.speak import joined
from higgs_tts.training.speaker import EDGES, Sound


@pytest.fixture(scope="module")
def phonemes():
    module = pytest.importorskip("higgs_tts.training.phonemes")
    try:
        module.spoken("So.")
    except OSError:
        pytest.skip("libespeak-ng1 is not installed")
    return module


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("7:45,", "seven forty five,"),
        ("9:05", "nine oh five"),
        ("7:00", "seven o'clock"),
        ("$3.99", "three dollars ninety nine cents"),
        ("$1", "one dollar"),
        ("21st", "twenty first"),
        ("1850.", "eighteen fifty."),
        ("2,500", "two thousand five hundred"),
        ("86%", "eighty six percent"),
        ("3.5", "three point five"),
        ("555-0123", "five five five zero one two three"),
        ("house", "house"),
    ],
)
def test_figures_are_read_as_words(written, said):
    assert readings.readable(written) == said


def test_each_word_begins_where_its_phonemes_do(phonemes):
    reading = phonemes.read("The bird in the hand is worth $3.99, Mr. Hill.")
    ends = (*reading.words[1:], len(reading.phonemes))
    parts = [reading.phonemes[a:b].strip() for a, b in zip(reading.words, ends, strict=True)]
    assert len(parts) == 10
    assert parts[2:4] == ["ɪn", "ðə"]  # espeak-ng writes them as one
    assert parts[7].count(" ") > 3 and parts[7].endswith(",")  # three dollars ninety nine cents
    assert parts[8] == "mˈɪstəɹ"  # whose stop ends nothing


def test_every_word_of_a_line_has_a_position(phonemes):
    for line in corpus.lines("train", 300, seed=2):
        for part, reading in zip(line.parts, read.spoken(line).parts, strict=True):
            assert len(reading.words) == len(part.split())
            assert list(reading.words) == sorted(reading.words)


def test_lines_can_be_read_again_from_their_file(phonemes, tmp_path):
    lines = [read.spoken(line) for line in corpus.lines("heldout", 20, seed=1)]
    read.save(lines, tmp_path / "lines.xz")
    assert read.load(tmp_path / "lines.xz") == lines


def test_voices_are_mixtures_with_a_licence(tmp_path):
    np.savez(tmp_path / "voices.npz", **{name: np.full((510, 256), i, np.float32) for i, name in enumerate(SOURCES)})
    found = Voices.of(("heart", "n3"), tmp_path)
    place = {name: i for i, name in enumerate(SOURCES)}
    kore, lewis = place["kore"], place["lewis"]
    assert found.table[0].unique().tolist() == [place["heart"]]
    torch.testing.assert_close(found.table[1, 0, :128], torch.full((128,), 0.6 * kore + 0.4 * lewis))
    assert found.table[1, 0, 128:].unique().tolist() == [kore]
    assert DEFAULT in TRAINED and not set(UNSEEN) & set(TRAINED)
    mixed = " ".join(f"{voice.sound} {voice.phrasing}" for voice in VOICES.values() if voice.weight)
    assert not any(name in mixed for name in UNSEEN), "nobody of these is heard in training, in no mixture either"
    assert all("Apache-2.0" in voice.licence for voice in VOICES.values())
    assert abs(sum(shares(TRAINED)) - 1) < 1e-9
    assert shares(("heart", "kumo"), 0.3) == pytest.approx([0.3, 0.7]) and shares(("heart",)) == [1.0]
    assert Voices.of(TRAINED[-1:], tmp_path).pitch[0] > 0 and len(TRAINED) == len(set(TRAINED)) >= 200


def test_a_pause_has_its_stated_length():
    first, second = (np.full(24_000, value, np.int16) for value in (1, 2))
    heard = [np.full(100, value, np.uint8) for value in (3, 4)]
    sound = joined([Sound(first, (0.1,), heard[0]), Sound(second, (0.1, 0.5), heard[1])], (1.1,))
    assert len(sound.symbols) * STEP == len(sound.samples)
    assert sound.symbols.tolist() == [3] * 100 + [0] * (len(sound.symbols) - 200) + [4] * 100
    silence = np.flatnonzero(sound.samples == 2)[0] - 24_000
    assert silence + sum(EDGES) * SAMPLE_RATE == pytest.approx(1.1 * SAMPLE_RATE)
    assert sound.words == pytest.approx(
        (0.1, (24_000 + silence) / SAMPLE_RATE + 0.1, (24_000 + silence) / SAMPLE_RATE + 0.5)
    )


@torch.inference_mode(False)
def test_a_sentence_sounds_the_same_in_a_batch():
    torch.manual_seed(0)
    network = Kokoro().eval()
    ids, voice = torch.randint(1, 170, (2, 6)), torch.randn(2, 256)
    told, prosody, frames = network.read(ids, voice, torch.ones(2))
    for part, alone in zip((told, prosody, frames), network.read(ids[1:], voice[1:], torch.ones(1)), strict=True):
        torch.testing.assert_close(part[1:], alone)
    told, prosody = torch.randn(2, 4, 512), torch.randn(2, 4, 640)
    wav = network.say(told, prosody, voice, torch.ones(2))
    assert wav.shape == (2, 4 * 600)
    torch.testing.assert_close(wav[1:], network.say(told[1:], prosody[1:], voice[1:]), atol=2e-3, rtol=1e-2)


def test_half_precision_leaves_styles_and_statistics_unchanged():
    decoder = Decoder()
    decoder.to_half()
    assert decoder.asr_res[0].weight.dtype == torch.float16
    block = decoder.generator.resblocks[0]
    assert isinstance(block, SnakeBlock) and block.adain1[0].fc.weight.dtype == torch.float32
    assert decoder.generator.window.dtype == torch.float32
