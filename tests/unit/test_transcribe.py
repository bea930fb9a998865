"""Transcripts of clips: a tiny random Whisper, made here, transcribes and frees its memory."""

import gc
import json
import os
import pathlib
import shutil
import weakref

import pytest
import torch
from higgs_tts.engine import HiggsError, find_whispers, transcribe
from higgs_tts.engine.words.transcribe import WHISPERS, download_whisper, size_of, transcriber
from higgs_tts.engine.words.whisper import WhisperAligner
from higgs_tts.tests.whisper_files import write_whisper
from safetensors.torch import load_file, save_file

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
        model, report = load(*args, **given)
        made.append(model)
        return model, report

    monkeypatch.setattr(transformers.WhisperForConditionalGeneration, "from_pretrained", seen)
    text = transcribe(whisper, clip(2.0), 44100, torch.device("cpu"))
    assert text and set(text) <= set("abcdefghijklmnopqrstuvwxyz ")
    assert transcribe(whisper, clip(2.0), 44100, torch.device("cpu")) == text
    assert sum(parameter.nbytes for model in made for parameter in model.parameters()) == 0
    gone = weakref.ref(made.pop())
    made.clear()
    gc.collect()
    assert gone() is None


def test_several_clips_are_heard_as_if_alone(tmp_path):
    folder = write_whisper(tmp_path / "keen")
    weights = load_file(folder / "model.safetensors")
    keen = {
        name: 30 * tensor if "conv" in name or "encoder_attn" in name else tensor for name, tensor in weights.items()
    }
    save_file(keen, folder / "model.safetensors", {"format": "pt"})
    time = torch.arange(3 * 44100) / 44100
    clips = [clip(2.0), 0.5 * torch.sin(1256 * time), torch.sin(18850 * time) * (time % 0.5 > 0.2)]
    with transcriber(folder, torch.device("cpu")) as hear:
        alone = [hear([one], 44100)[0] for one in clips]
        assert len(set(alone)) == 3 and hear(clips, 44100) == alone


def test_loading_draws_no_bars_and_leaves_the_setting_to_others(whisper, capfd):
    transcribe(whisper, clip(2.0), 44100, torch.device("cpu"))
    assert "Loading" not in capfd.readouterr().err
    assert transformers.utils.logging.is_progress_bar_enabled()


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
    (tmp_path / "other" / "config.json").write_text("{}", encoding="utf-8")
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


def rewrite(path, **values):
    """Change values of a JSON file. None removes one."""
    content = {**json.loads(path.read_text(encoding="utf-8")), **values}
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}), encoding="utf-8")


def renamed_weights(folder, name):
    """Give every weight another name."""
    tensors = load_file(folder / "model.safetensors")
    save_file({name(key): tensor for key, tensor in tensors.items()}, folder / "model.safetensors", {"format": "pt"})


def shard(folder):
    tensors = load_file(folder / "model.safetensors")
    files = {key: f"model-0000{1 + at % 2}-of-00002.safetensors" for at, key in enumerate(tensors)}
    for name in set(files.values()):
        save_file({key: tensors[key] for key in tensors if files[key] == name}, folder / name, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": files}), encoding="utf-8"
    )
    (folder / "model.safetensors").unlink()


def pickle(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def as_transformers_5(folder):
    extractor = json.loads((folder / "preprocessor_config.json").read_text(encoding="utf-8"))
    (folder / "processor_config.json").write_text(json.dumps({"feature_extractor": extractor}), encoding="utf-8")
    (folder / "preprocessor_config.json").unlink()


def generation(**values):
    return lambda folder: rewrite(folder / "generation_config.json", **values)


FOLDERS = {
    "sharded": shard,
    "pickled": pickle,
    "by transformers 5": as_transformers_5,
    "no preprocessor": lambda folder: (folder / "preprocessor_config.json").unlink(),
    "another preprocessor": lambda folder: rewrite(folder / "preprocessor_config.json", feature_size=128),
    "no tokenizer config": lambda folder: (folder / "tokenizer_config.json").unlink(),
    "outdated": generation(is_multilingual=None, lang_to_id=None, task_to_id=None, no_timestamps_token_id=None),
    "ids of another Whisper": generation(task_to_id={"transcribe": 30}, no_timestamps_token_id=34),
    "published prompt": generation(forced_decoder_ids=[[1, None], [2, 31]]),
    "timestamps": generation(return_timestamps=True, return_dict_in_generate=True),
    "heads of its teacher": generation(alignment_heads=[[3, 1]]),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_a_fine_tune_transcribes_like_its_model(whisper, tmp_path, name, caplog):
    folder = shutil.copytree(whisper, tmp_path / "tuned")
    FOLDERS[name](folder)
    cpu, wav = torch.device("cpu"), clip(2.0)
    assert find_whispers([tmp_path]) == {"tuned": folder} and size_of(folder) > 100_000
    assert transcribe(folder, wav, 44100, cpu) == transcribe(whisper, wav, 44100, cpu)
    (own, starts), expected = (WhisperAligner(one, cpu).transcribe("abc de", wav[0]) for one in (folder, whisper))
    assert (own, starts) == expected


def test_a_whisper_without_a_generation_config_writes_to_the_end(whisper, tmp_path):
    """By transformers' default, 20 tokens."""
    folder = shutil.copytree(whisper, tmp_path / "tuned")
    (folder / "generation_config.json").unlink()
    assert len(transcribe(folder, clip(2.0), 44100, torch.device("cpu"))) > 40


DAMAGED = {
    "tokenizer": (lambda folder: (folder / "tokenizer.json").write_text("{", encoding="utf-8"), ""),
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "it has no tokenizer.json: copy that of"),
    "newer tokenizer": (lambda folder: rewrite(folder / "tokenizer.json", model={"type": "Later"}), ""),
    "another tokenizer": (
        lambda folder: rewrite(folder / "config.json", decoder_start_token_id=3),
        "is not this model's",
    ),
    "cut weights": (lambda folder: os.truncate(folder / "model.safetensors", 9000), ""),
    "encoder alone": (
        lambda folder: renamed_weights(folder, lambda key: key.replace("decoder", "other")),
        "lack model.de",
    ),
    "compiled": (
        lambda folder: renamed_weights(folder, lambda key: f"_orig_mod.{key}"),
        "its weights lack model.decoder",
    ),
    "lost shard": (lambda folder: (shard(folder), (folder / "model-00002-of-00002.safetensors").unlink()), "00002"),
    "another size": (lambda folder: rewrite(folder / "config.json", vocab_size=40), "another size"),
    "quantised": (
        lambda folder: rewrite(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4}),
        "",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_whisper_that_cannot_work_is_named(whisper, tmp_path, name):
    damage, reason = DAMAGED[name]
    damage(shutil.copytree(whisper, tmp_path / "broken"))
    if name == "another tokenizer":
        (tmp_path / "broken" / "generation_config.json").unlink()
    with pytest.raises(HiggsError, match=rf"broken cannot be loaded as Whisper \(.*{reason}.*\)\. Download it again"):
        transcribe(tmp_path / "broken", clip(2.0), 44100, torch.device("cpu"))


def test_an_existing_whisper_is_not_downloaded(whisper, tmp_path, monkeypatch):
    shutil.copytree(whisper, tmp_path / "whisper-small")
    assert download_whisper("whisper-small", tmp_path) == tmp_path / "whisper-small"
    monkeypatch.setattr("higgs_tts.engine.checkpoint.download.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HiggsError, match="openai/whisper-large-v3-turbo cannot be downloaded: HF_HUB_OFFLINE is set"):
        download_whisper("whisper-large-v3-turbo", tmp_path)
    assert all(len(repo.revision) == 40 for repo in WHISPERS.values())
