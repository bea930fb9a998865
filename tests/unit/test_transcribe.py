"""Transcripts of clips: a tiny random Whisper, made here, transcribes and frees its memory."""

import gc
import json
import pathlib
import weakref

import pytest
import torch
from higgs_tts.engine import HiggsError, find_whispers, transcribe
from higgs_tts.engine.preview.transcribe import WHISPERS, download_whisper, size_of

transformers = pytest.importorskip("transformers")
SPECIAL = (
    "<|endoftext|> <|startoftranscript|> <|en|> <|de|> <|translate|> <|transcribe|> <|startoflm|> <|startofprev|> "
    "<|nospeech|> <|notimestamps|>"
).split()


def write_whisper(folder, dtype=torch.float32):
    """Write a Whisper with random weights."""
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


@pytest.fixture(scope="module")
def whisper(tmp_path_factory):
    return write_whisper(tmp_path_factory.mktemp("models") / "whisper" / "tiny random")


def clip(seconds, rate=44100):
    return 0.1 * torch.randn(2, round(seconds * rate), generator=torch.Generator().manual_seed(3))


def test_transcribing_leaves_no_model_in_memory(whisper, monkeypatch):
    made, load = [], transformers.WhisperForConditionalGeneration.from_pretrained

    def seen(*args, **given):
        assert given["local_files_only"]
        made.append(load(*args, **given))
        return made[-1]

    monkeypatch.setattr(transformers.WhisperForConditionalGeneration, "from_pretrained", seen)
    text = transcribe(whisper, clip(2.0), 44100, torch.device("cpu"))
    assert text and set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert transcribe(whisper, clip(2.0), 44100, torch.device("cpu")) == text
    assert sum(parameter.nbytes for model in made for parameter in model.parameters()) == 0
    gone = weakref.ref(made.pop())
    made.clear()
    gc.collect()
    assert gone() is None


def test_a_half_precision_whisper_transcribes(tmp_path):
    half = write_whisper(tmp_path / "half", torch.float16)
    assert transcribe(half, clip(2.0), 44100, torch.device("cpu"))


@pytest.mark.parametrize(("seconds", "told"), [(0.5, "too short"), (31.0, "more than 30 s")])
def test_empty_and_overlong_clips_are_refused(whisper, seconds, told):
    with pytest.raises(HiggsError, match=told):
        transcribe(whisper, clip(seconds), 44100, torch.device("cpu"))


def test_whisper_is_found_among_other_folders(whisper, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    (tmp_path / "other" / "model.safetensors").write_bytes(b"")
    assert find_whispers([tmp_path, whisper.parent, tmp_path / "none"]) == {"tiny random": whisper}
    assert size_of(whisper) == (whisper / "model.safetensors").stat().st_size


def test_an_unreadable_folder_hides_no_other(whisper, monkeypatch):
    (whisper.parent / "lost+found").mkdir()
    real = pathlib.Path.is_file

    def is_file(path, **given):
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **given)

    monkeypatch.setattr(pathlib.Path, "is_file", is_file)
    assert find_whispers([whisper.parent]) == {"tiny random": whisper}


def test_a_damaged_whisper_is_named(whisper, tmp_path):
    import shutil

    shutil.copytree(whisper, tmp_path / "broken")
    (tmp_path / "broken" / "tokenizer.json").write_text("{")
    with pytest.raises(HiggsError, match="broken cannot be loaded as Whisper"):
        transcribe(tmp_path / "broken", clip(2.0), 44100, torch.device("cpu"))


def test_an_existing_whisper_is_not_downloaded(whisper, tmp_path, monkeypatch):
    import shutil

    shutil.copytree(whisper, tmp_path / "whisper-small")
    assert download_whisper("whisper-small", tmp_path) == tmp_path / "whisper-small"
    monkeypatch.setattr("higgs_tts.engine.checkpoint.download.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HiggsError, match="openai/whisper-large-v3-turbo cannot be downloaded: HF_HUB_OFFLINE is set"):
        download_whisper("whisper-large-v3-turbo", tmp_path)
    assert all(len(repo.revision) == 40 for repo in WHISPERS.values())
