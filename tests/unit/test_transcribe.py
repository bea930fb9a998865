"""Transcripts of clips: a tiny random Whisper, made here, transcribes and frees its memory."""

import gc
import pathlib
import weakref

import pytest
import torch
from higgs_tts.engine import HiggsError, find_whispers, transcribe
from higgs_tts.engine.words.transcribe import WHISPERS, download_whisper, size_of
from higgs_tts.tests.whisper_files import write_whisper

transformers = pytest.importorskip("transformers")


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


def test_the_prompt_asks_for_a_transcript_also_where_the_folder_does_not_say_so(whisper, monkeypatch):
    """As it was trained: without the task, a Whisper that transformers saved again repeats itself."""
    prompts, forward = [], transformers.WhisperForConditionalGeneration.forward

    def seen(self, *args, decoder_input_ids=None, **given):
        prompts.append(decoder_input_ids.tolist()[0])
        return forward(self, *args, decoder_input_ids=decoder_input_ids, **given)

    monkeypatch.setattr(transformers.WhisperForConditionalGeneration, "forward", seen)
    transcribe(whisper, clip(2.0), 44100, torch.device("cpu"))
    words = transformers.WhisperTokenizerFast.from_pretrained(whisper).convert_ids_to_tokens
    start, language, *task = words(next(prompt for prompt in prompts if len(prompt) > 1))
    assert (start, task) == ("<|startoftranscript|>", ["<|transcribe|>", "<|notimestamps|>"])
    assert language in ("<|en|>", "<|de|>")


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
