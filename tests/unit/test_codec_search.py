"""Finding and recognising a talker's codec."""

import json
import pathlib
import re
import shutil

import pytest
import torch
from higgs_tts.engine.checkpoint.catalog import CODEC_V2
from higgs_tts.engine.checkpoint.discover import constants
from higgs_tts.engine.checkpoint.load import inspect, require_whole
from higgs_tts.engine.core.errors import HiggsError
from higgs_tts.engine.tools.doctor import examine


@pytest.fixture
def hub(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture
def talker(written, tmp_path, hub):
    """v2's talker in a folder of its own, without a codec."""
    folder = shutil.copytree(written["v2"], tmp_path / "models" / "talker")
    shutil.rmtree(folder / "audio_tokenizer")
    (folder / "processor_config.json").unlink()
    return folder


def put(written, to, family="v2"):
    return shutil.copytree(written[family] / "audio_tokenizer", to)


def found(talker, codec=None):
    checkpoint = inspect(talker, codec)
    assert not checkpoint.problems
    assert checkpoint.codec.config.codebook_size == 1024
    return checkpoint.codec_folder


def test_v3_uses_its_own_codec_whatever_else_exists(written, hub):
    assert found(written["v3"]) == written["v3"]
    assert found(written["v3"], written["v2"]) == written["v3"]


@pytest.mark.parametrize("family", ["v2", "v2-boson"])
@pytest.mark.parametrize("place", ["audio_tokenizer", "codec", "../higgs-audio-v2-tokenizer", "../Codec of Higgs"])
def test_a_codec_is_found_beside_or_below_the_talker(written, talker, family, place):
    where = put(written, (talker / place).resolve(), family)
    assert found(talker) == where


def test_older_weights_may_lie_in_the_talkers_own_folder(written, talker):
    shutil.copy(written["v2-boson"] / "audio_tokenizer" / "model.pth", talker)
    assert found(talker) == talker


def test_an_unreadable_folder_hides_no_other(written, talker, monkeypatch):
    """Such as lost+found if the talker's folder is a disk of its own."""
    (talker / "lost+found").mkdir()
    where, real = put(written, talker / "the codec"), pathlib.Path.is_file

    def is_file(path, **given):
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **given)

    monkeypatch.setattr(pathlib.Path, "is_file", is_file)
    assert found(talker) == where


@pytest.mark.parametrize("name", ["someone/odd-name", "odd-name", "../odd-name"])
def test_the_name_in_processor_config_leads_to_a_sibling(written, talker, name):
    where = put(written, talker.parent / "odd-name")
    entry = {"audio_tokenizer_class": "HiggsAudioV2TokenizerModel", "audio_tokenizer_name_or_path": name}
    (talker / "processor_config.json").write_text(json.dumps({"audio_tokenizer": entry}))
    assert found(talker).resolve() == where


def test_the_cache_is_searched_last_and_the_pinned_revision_first(written, talker, hub):
    snapshots = hub / "models--bosonai--higgs-audio-v2-tokenizer" / "snapshots"
    newer = put(written, snapshots / ("f" * 40))
    assert found(talker) == newer
    pinned = put(written, snapshots / CODEC_V2.revision, "v2-boson")
    assert found(talker) == pinned
    named = put(written, hub / "models--someone--codec" / "snapshots" / "abc")
    (talker / "processor_config.json").write_text(json.dumps({"audio_tokenizer": "someone/codec"}))
    assert found(talker) == named
    assert found(talker, pinned) == pinned


def test_a_given_folder_is_the_only_one_searched(written, talker, tmp_path):
    put(written, talker / "audio_tokenizer")
    elsewhere = put(written, tmp_path / "elsewhere")
    assert found(talker, elsewhere) == elsewhere
    (tmp_path / "empty").mkdir()
    for nothing in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(HiggsError, match=nothing.name):
            inspect(talker, nothing)
    assert found(talker, written["v3"]) == written["v3"]  # the one inside a v3 file serves too
    assert found(talker, written["v2"]) == written["v2"] / "audio_tokenizer"


def test_a_copy_of_the_talker_is_not_taken_for_the_codec(written, talker):
    where = put(written, talker / "audio_tokenizer", "v2-boson")
    shutil.copy(talker / "model.safetensors", where)
    assert found(talker) == where
    (where / "model.pth").unlink()
    with pytest.raises(HiggsError, match="audio codec"):
        inspect(talker)


def test_a_missing_codec_names_the_searched_places_and_the_remedy(written, talker):
    where = put(written, talker / "audio_tokenizer")
    whole = (where / "model.safetensors").read_bytes()
    (where / "model.safetensors").write_bytes(whole[:-1])
    with pytest.raises(HiggsError) as error:
        inspect(talker)
    for part in (f"{where}, {talker}", "cut short", CODEC_V2.id):
        assert part in str(error.value)


def test_a_codec_that_lacks_a_tensor_is_a_problem_of_the_checkpoint(written, talker):
    where = put(written, talker / "audio_tokenizer", "v2-boson")
    state = torch.load(where / "model.pth")
    del state["fc_post2.weight"]
    torch.save(state, where / "model.pth")
    problems = inspect(talker).problems
    assert len(problems) == 1 and "fc_post2.weight" in problems[0] and str(where / "model.pth") in problems[0]
    with pytest.raises(HiggsError) as error:
        require_whole(inspect(talker))
    assert str(where) in str(error.value) and "fc_post2" in str(error.value)


def spoil(place):
    """Remove a tensor from an older codec's file: it is recognised as a codec, but does not fit."""
    state = torch.load(place / "model.pth")
    del state["fc_post2.weight"]
    torch.save(state, place / "model.pth")
    return place


def test_a_damaged_sibling_is_skipped_for_the_next(written, talker):
    spoil(put(written, talker.parent / "a-tokenizer", "v2-boson"))
    good = put(written, talker.parent / "b-tokenizer")
    assert found(talker) == good
    assert inspect(talker).notes == ()  # nobody said that the other one belongs to this talker


def test_a_damaged_own_codec_is_skipped_with_a_note(written, talker):
    own = spoil(put(written, talker / "audio_tokenizer", "v2-boson"))
    good = put(written, talker.parent / "tokenizer")
    assert found(talker) == good
    (note,) = inspect(talker).notes
    assert all(part in note for part in (str(own), "fc_post2.weight", str(good)))
    assert note in examine(talker).notes


def test_damaged_siblings_are_blamed_and_not_the_talker(written, talker):
    sibling = spoil(put(written, talker.parent / "some-codec", "v2-boson"))
    with pytest.raises(HiggsError) as error:
        inspect(talker)
    for part in (str(sibling / "model.pth"), "fc_post2", str(talker / "audio_tokenizer")):
        assert part in str(error.value)
    assert "fit the model" not in str(error.value)
    assert str(talker / "audio_tokenizer") in examine(talker).advice


def test_a_given_folder_is_blamed_for_its_own_damage(written, talker, tmp_path):
    put(written, talker / "audio_tokenizer")
    given = spoil(put(written, tmp_path / "given", "v2-boson"))
    with pytest.raises(HiggsError, match=re.escape(str(given))):
        require_whole(inspect(talker, given))
