"""LoRA adapters: base plus adapter equals the merged checkpoint, and errors name what cannot be merged."""

import json
import math
import shutil

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Adapter, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.tensor_file import open_tensors
from higgs_tts.engine.talker.weight import SCRATCH
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.engine.tools.quantize_folder import quantize_folder
from higgs_tts.tests.peft_files import KINDS, merged_folder, write_adapter
from safetensors.torch import load_file, save_file

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=24, seed=5, retries=0)


def loaded(folder, *adapters, dtype=torch.float32, weights=""):
    return load_talker(inspect(folder, adapters=adapters), CPU, dtype, weights)


def codes(folder, *adapters, dtype="fp32"):
    with Engine(EngineConfig(folder, device="cpu", dtype=dtype, adapters=adapters)) as engine:
        return engine.speak("hello the world", params=PARAMS).codes


@pytest.fixture(scope="module")
def made(written, tmp_path_factory):
    """made(family, kind) -> (base folder, adapter folder, folder with both merged in fp32)."""
    root, known = tmp_path_factory.mktemp("adapters"), {}

    def make(family, kind="plain"):
        if (family, kind) not in known:
            with torch.inference_mode(False):
                base, place = written[family], root / f"{family} {kind}"
                merged = write_adapter(base, place / "adapter", kind)
                known[family, kind] = base, place / "adapter", merged_folder(base, place / "merged", merged)
        return known[family, kind]

    return make


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["v3", "v2", "v2-boson"])
def test_base_with_adapter_equals_the_merged_checkpoint(made, family, kind):
    base, adapter, merged = made(family, kind)
    plain, ours, theirs = loaded(base), loaded(base, Adapter(adapter)), loaded(merged)
    changed = [name for name in ours if not torch.equal(ours[name], plain[name])]
    assert len(changed) >= 2 and ours.keys() == theirs.keys()
    if family == "v3" and kind == "embedding":  # see the test of tied tensors
        del theirs["head_codes"]
    for name, tensor in theirs.items():
        expected = tensor.to(ours[name].dtype).float()  # the text embedding stays in the file's
        torch.testing.assert_close(ours[name].float(), expected, rtol=0, atol=2e-6 * float(tensor.abs().max()))


@pytest.mark.parametrize("family", ["v3", "v2", "v2-boson"])
def test_adapter_and_merged_checkpoint_give_the_same_codes(made, family):
    base, adapter, merged = made(family)
    said = codes(base, Adapter(adapter))
    assert torch.equal(said, codes(merged)) and not torch.equal(said, codes(base))
    assert torch.equal(codes(base, Adapter(adapter, 0.0)), codes(base))


def test_two_adapters_are_merged_one_after_the_other(made):
    base, first, merged = made("v3")
    _, second, _ = made("v3", "patterns")
    both = loaded(base, Adapter(first), Adapter(second, 0.5))
    after = loaded(merged, Adapter(second, 0.5))
    assert all(torch.equal(both[name], tensor) for name, tensor in after.items())


def test_half_the_strength_gives_half_the_change(made):
    for kind in ("plain", "dora", "whole"):
        base, adapter, _ = made("v3", kind)
        plain, whole, half = (loaded(base, *chosen) for chosen in ((), (Adapter(adapter),), (Adapter(adapter, 0.5),)))
        for name in plain:
            torch.testing.assert_close(half[name].float(), (plain[name].float() + whole[name].float()) / 2)


def test_an_adapted_embedding_leaves_the_head_unchanged(made):
    """PEFT's merge would change both, since they are one tensor. In training, only the embedding changed."""
    base, adapter, _ = made("v3", "embedding")
    plain, ours = loaded(base), loaded(base, Adapter(adapter))
    assert plain["head_codes"] is plain["embed_codes"]
    assert torch.equal(ours["head_codes"], plain["head_codes"])
    assert not torch.equal(ours["embed_codes"], plain["embed_codes"])
    assert not torch.equal(ours["embed_text"], plain["embed_text"]) and ours["embed_text"].dtype == torch.bfloat16


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Like `made`, with widths that can be quantised."""
    root = tmp_path_factory.mktemp("wide")
    with torch.inference_mode(False):
        merged = merged_folder(EMBEDDED, root / "merged", write_adapter(EMBEDDED, root / "adapter", "plain"))
    return EMBEDDED, root / "adapter", merged


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_an_adapter_is_merged_before_quantising(wide, weights):
    base, adapter, merged = wide
    ours, theirs = loaded(base, Adapter(adapter), weights=weights), loaded(merged, weights=weights)
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items() if name != SCRATCH)


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_tensors_are_adapted_and_keep_their_format(wide, tmp_path, weights):
    base, adapter, _ = wide
    stored = quantize_folder(base, tmp_path / weights, weights)
    ours, theirs = loaded(stored, Adapter(adapter), weights=weights), loaded(base, Adapter(adapter), weights=weights)
    untouched = loaded(stored, weights=weights)
    changed = [name for name in ours if name != SCRATCH and not torch.equal(ours[name], untouched[name])]
    assert changed and all(ours[name].dtype == theirs[name].dtype for name in ours)
    bound = {"int8": 0.02, "int4": 0.2}[weights]
    for name in changed:
        a, b, plain = (dense(tensors[name]) for tensors in (ours, theirs, untouched))
        assert float((a - b).norm() / b.norm()) < bound and float((a - plain).norm() / plain.norm()) > 2 * bound


def dense(data):
    from higgs_tts.engine.talker.weight import Weight, scratch_bytes

    weight = Weight(data)
    weight.scratch = torch.empty(scratch_bytes(weight.shape, torch.float32), dtype=torch.uint8)
    return weight.dense(torch.float32).clone()


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_own_adapters_have_peft_s_form(written, tmp_path, kind):
    pytest.importorskip("peft", reason="PEFT is not installed: these tests write its files by hand")
    files = []
    with torch.inference_mode(False):
        for place, by_hand in ((tmp_path / "hand", True), (tmp_path / "peft", False)):
            write_adapter(written["v3"], place, kind, by_hand=by_hand)
            file = open_tensors([place / "adapter_model.safetensors"])
            files.append(
                (file.shapes, file.dtypes, json.loads((place / "adapter_config.json").read_text(encoding="utf-8")))
            )
    (shapes, dtypes, settings), (*theirs, all_settings) = files
    assert [shapes, dtypes] == theirs and settings.items() <= all_settings.items()


class TestFiles:
    def test_a_single_file_with_its_settings_beside_it_is_read(self, made, tmp_path):
        base, adapter, merged = made("v3")
        shutil.copy(adapter / "adapter_model.safetensors", tmp_path / "anna.safetensors")
        shutil.copy(adapter / "adapter_config.json", tmp_path / "anna.json")
        ours, theirs = loaded(base, Adapter(tmp_path / "anna.safetensors")), loaded(merged)
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items() if name != "embed_text")

    def test_the_case_of_a_suffix_does_not_matter(self, made, tmp_path):
        base, adapter, _ = made("v3")
        shutil.copy(adapter / "adapter_model.safetensors", tmp_path / "ANNA.SAFETENSORS")
        changes = inspect(base, adapters=[Adapter(tmp_path / "ANNA.SAFETENSORS")]).adapters.changes
        assert changes.keys() == inspect(base, adapters=[Adapter(adapter)]).adapters.changes.keys()

    def test_a_bad_alpha_pattern_is_refused_by_name(self, made, tmp_path):
        base, adapter, _ = made("v3")
        shutil.copytree(adapter, tmp_path / "anna")
        settings = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")) | {
            "alpha_pattern": {"(": 4}
        }
        (tmp_path / "anna" / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        with pytest.raises(HiggsError, match=r"anna: alpha_pattern contains '\('"):
            inspect(base, adapters=[Adapter(tmp_path / "anna")])

    def test_a_fingerprint_covers_files_and_settings(self, made, tmp_path, monkeypatch):
        base, adapter, _ = made("v3")
        for home in ("HOME", "USERPROFILE"):
            monkeypatch.setenv(home, str(tmp_path))
        shutil.copy(adapter / "adapter_model.safetensors", tmp_path / "anna.safetensors")
        settings = tmp_path / "anna.json"
        shutil.copy(adapter / "adapter_config.json", settings)
        seen = []
        for alpha in (8, 64):
            settings.write_text(
                json.dumps(json.loads(settings.read_text(encoding="utf-8")) | {"lora_alpha": alpha}), encoding="utf-8"
            )
            for name in ("~/anna.safetensors", str(tmp_path / "anna.safetensors")):
                seen.append(Engine(EngineConfig(base, device="cpu", adapters=(Adapter(name),))).fingerprint)
        assert seen[0] == seen[1] != seen[2] == seen[3]

    def test_missing_settings_are_guessed_and_reported(self, made, tmp_path):
        base, adapter, _ = made("v3")
        file = shutil.copy(adapter / "adapter_model.safetensors", tmp_path / "anna.safetensors")
        (warning,) = inspect(base, adapters=[Adapter(file)]).adapters.warnings
        assert "alpha" in warning and str(tmp_path / "anna.json") in warning
        with Engine(EngineConfig(base, device="cpu", adapters=(Adapter(str(file)),))) as engine:
            assert warning in engine.speak("hello", params=PARAMS).warnings

    def test_pickled_adapters_of_older_peft_are_read(self, made, tmp_path):
        base, adapter, _ = made("v2")
        shutil.copy(adapter / "adapter_config.json", tmp_path)
        torch.save(load_file(adapter / "adapter_model.safetensors"), tmp_path / "adapter_model.bin")
        ours, theirs = (loaded(base, Adapter(folder)) for folder in (tmp_path, adapter))
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())

    @pytest.mark.parametrize("prefix", ["base_model.model.", "model.", "module.language_model.", ""])
    def test_any_prefix_of_tensor_names_is_accepted(self, made, tmp_path, prefix):
        base, adapter, _ = made("v3")
        renamed = {
            key.replace("base_model.model.", prefix).replace("lora_A.weight", "lora_A.anna.weight"): tensor
            for key, tensor in load_file(adapter / "adapter_model.safetensors").items()
        }
        shutil.copy(adapter / "adapter_config.json", tmp_path)
        save_file(renamed, tmp_path / "adapter_model.safetensors")
        ours, theirs = (loaded(base, Adapter(folder)) for folder in (tmp_path, adapter))
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())

    def test_tensors_that_fit_nothing_are_listed(self, made, tmp_path):
        base, adapter, _ = made("v2")
        tensors = load_file(adapter / "adapter_model.safetensors")
        for part in ("A", "B"):
            tensors[f"base_model.model.audio_tower.layers.0.self_attn.q_proj.lora_{part}.weight"] = torch.ones(2, 2)
        shutil.copy(adapter / "adapter_config.json", tmp_path)
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        (warning,) = inspect(base, adapters=[Adapter(tmp_path)]).adapters.warnings
        assert "2 of the" in warning and "audio_tower.layers.0.self_attn.q_proj.lora_B" in warning


def altered(adapter, to, tensors=None, **settings):
    shutil.copytree(adapter, to)
    path = to / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **settings}), encoding="utf-8")
    if tensors is not None:
        save_file(tensors, to / "adapter_model.safetensors")
    return to


class TestRefused:
    @pytest.mark.parametrize(
        "settings",
        [
            {"peft_type": "LOHA"},
            {"init_lora_weights": "pissa_niter_4"},
            {"lora_bias": True},
            {"trainable_token_indices": [1]},
            {"layer_replication": [[0, 1], [0, 1]]},
            {"lora_alpha": "much"},
        ],
        ids=lambda settings: next(iter(settings)),
    )
    def test_unsupported_settings_are_refused_by_name(self, made, tmp_path, settings):
        base, adapter, _ = made("v3")
        ((name, _),) = settings.items()
        with pytest.raises(HiggsError, match=rf"{name.removeprefix('lora_') if name == 'lora_alpha' else name} is"):
            inspect(base, adapters=[Adapter(altered(adapter, tmp_path / "a", **settings))])

    def test_an_adapter_of_another_model_is_refused(self, made, written):
        _, adapter, _ = made("v2")
        with pytest.raises(HiggsError, match=r"does not fit this model: base_model\.model\..*\[\d+, \d+\].*trained on"):
            inspect(written["v3"], adapters=[Adapter(adapter)])

    def test_an_adapter_of_another_kind_is_refused(self, made, tmp_path):
        base, adapter, _ = made("v3")
        image = {"unet.down.0.lora_A.weight": torch.ones(2, 4), "unet.down.0.lora_B.weight": torch.ones(4, 2)}
        with pytest.raises(HiggsError, match=r"none of its 2 tensors match.*'unet\.'"):
            inspect(base, adapters=[Adapter(altered(adapter, tmp_path / "a", image))])

    @pytest.mark.parametrize("lost", ["A", "B"])
    def test_half_of_a_lora_pair_is_refused(self, made, tmp_path, lost):
        base, adapter, _ = made("v3")
        tensors = load_file(adapter / "adapter_model.safetensors")
        del tensors[next(key for key in tensors if f"lora_{lost}" in key)]
        with pytest.raises(HiggsError, match=r"lora_[AB]\.weight cannot be used alone"):
            inspect(base, adapters=[Adapter(altered(adapter, tmp_path / "a", tensors))])

    @pytest.mark.parametrize("dtype", [torch.int8, torch.bool])
    def test_whole_numbers_are_refused(self, made, tmp_path, dtype):
        """They would be those of a quantiser, without its scales."""
        base, adapter, _ = made("v3")
        tensors = load_file(adapter / "adapter_model.safetensors")
        tensors = {key: tensor.to(dtype) if "lora_B" in key else tensor for key, tensor in tensors.items()}
        stored = str(dtype).removeprefix("torch.")
        with pytest.raises(HiggsError, match=rf"adapter_model\.safetensors: \S+lora_B\S* is stored as '{stored}'"):
            inspect(base, adapters=[Adapter(altered(adapter, tmp_path / "a", tensors))])

    def test_a_missing_or_truncated_file_is_refused(self, made, tmp_path):
        base, adapter, _ = made("v3")
        with pytest.raises(HiggsError, match=r"nothing\.safetensors is missing"):
            inspect(base, adapters=[Adapter(tmp_path / "nothing.safetensors")])
        (tmp_path / "empty").mkdir()
        with pytest.raises(HiggsError, match=r"adapter_model\.safetensors is missing"):
            inspect(base, adapters=[Adapter(tmp_path / "empty")])
        cut = altered(adapter, tmp_path / "cut")
        data = (cut / "adapter_model.safetensors").read_bytes()
        (cut / "adapter_model.safetensors").write_bytes(data[:-100])
        with pytest.raises(HiggsError, match=r"cut short"):
            inspect(base, adapters=[Adapter(cut)])

    @pytest.mark.parametrize("strength", [11, math.nan])
    def test_strengths_out_of_range_are_refused(self, strength):
        with pytest.raises(HiggsError, match="strength"):
            Adapter("a", strength)


def test_the_terminal_takes_several_with_their_strengths(made, tmp_path, capsys):
    base, adapter, merged = made("v3")
    ran = ["say", "hello the world", "--max-frames", "24", "--seed", "5", "--retries", "0", "--dtype", "fp32"]
    ran += ["--device", "cpu", "--out", str(tmp_path / "a.wav"), "--codes", str(tmp_path / "a.npy")]
    assert main([*ran, "--model", str(base), "--lora", str(adapter), "--lora", f"{adapter}:0"]) == 0
    first = (tmp_path / "a.npy").read_bytes()
    assert main([*ran, "--model", str(merged)]) == 0
    assert (tmp_path / "a.npy").read_bytes() == first
    assert main([*ran, "--model", str(base), "--lora", f"{adapter}:99"]) == 2
    assert "strength is 99" in capsys.readouterr().err


def test_doctor_tells_a_lora_from_a_model(made):
    _, adapter, _ = made("v3")
    assert "This is a LoRA" in examine(adapter).advice


@pytest.mark.parametrize(
    ("text", "path", "strength"),
    [
        ("a.safetensors", "a.safetensors", 1),
        ("a:0.5", "a", 0.5),
        ("C:\\l\\a", "C:\\l\\a", 1),
        ("C:\\a:-1", "C:\\a", -1),
    ],
)
def test_a_windows_drive_is_not_read_as_a_strength(text, path, strength):
    assert Adapter.parse(text) == Adapter(path, strength)
