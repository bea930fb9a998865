"""Adapters as the trainers of Higgs TTS 3 save them: every trained tensor is merged, or refused by name."""

import io
import pickle
import shutil
import zipfile

import pytest
import torch
from higgs_tts.engine import EMBEDDED, Adapter, Engine, EngineConfig, HiggsError, SamplingParams
from higgs_tts.engine.__main__ import main
from higgs_tts.engine.checkpoint.adapter_files import AUDIO_MODULES
from higgs_tts.engine.checkpoint.load import inspect, load_talker
from higgs_tts.engine.checkpoint.tensor_file import open_folder
from higgs_tts.engine.tools.doctor import examine
from higgs_tts.tests.peft_files import merged_folder
from higgs_tts.tests.port_files import EMBEDDING, HEAD, WRITERS, write_adapter_of
from safetensors.torch import load, save_file

CPU = torch.device("cpu")
PARAMS = SamplingParams(max_frames=12, seed=5, retries=0)
FACTOR = 6 / 4  # alpha / rank in port_files.py


def spoken(folder, *adapters, dtype="fp32"):
    with Engine(EngineConfig(folder, device="cpu", dtype=dtype, adapters=adapters)) as engine:
        return engine.speak("hello the world", params=PARAMS)


def loaded(folder, *adapters):
    return load_talker(inspect(folder, adapters=adapters), CPU, torch.float32)


def trained(base, head):
    """Return (LoRA of the layers' matrices, tensors trained in full, all tensors merged) of a training from `base`."""
    stored, generator = open_folder(base), torch.Generator().manual_seed(1)

    def noise(*shape):
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    layers, merged = {}, {}
    for name in stored.shapes:
        if name.startswith("body.layers.") and name.endswith("_proj.weight"):
            rows, width = stored.shapes[name]
            a, b, module = noise(4, width), noise(rows, 4), name.removesuffix(".weight")
            layers |= {f"{module}.lora_A.weight": a, f"{module}.lora_B.weight": b}
            merged[name] = stored.get(name).float() + b @ a * FACTOR
    codes = stored.get(EMBEDDING).float()
    whole = {}
    if head != "untouched":
        whole[EMBEDDING] = codes + 0.3 * codes.std() * noise(*codes.shape) * codes.shape[1] ** 0.5
        whole[HEAD] = whole[EMBEDDING]
    if head == "apart":
        whole[HEAD] = codes + 0.3 * codes.std() * noise(*codes.shape) * codes.shape[1] ** 0.5
    return layers, whole, merged | {name: tensor.clone() for name, tensor in whole.items()}


@pytest.fixture(scope="module")
def made(written, tmp_path_factory):
    """made(model, head) -> (base, the training's results, the folder with all of them merged), made once."""
    root, known, bases = tmp_path_factory.mktemp("trained"), {}, {"tiny": written["v3"], "embedded": EMBEDDED}

    def make(model="tiny", head="apart"):
        if (model, head) not in known:
            with torch.inference_mode(False):
                *results, merged = trained(bases[model], head)
                folder = merged_folder(bases[model], root / f"{model} {head}", merged)
            for path in folder.glob("*.safetensors*"):
                if path.name != "model.safetensors":
                    path.unlink()
            known[model, head] = bases[model], results, folder
        return known[model, head]

    return make


@pytest.fixture
def adapter(made, tmp_path):
    """adapter(writer, head) -> (base, the adapter's folder)."""

    def write(writer="finetune", head="apart", to="run"):
        base, results, _ = made("tiny", head)
        with torch.inference_mode(False):
            return base, write_adapter_of(writer, tmp_path / to, *results)

    return write


@pytest.mark.parametrize("head", ["untouched", "tied", "apart"])
@pytest.mark.parametrize(
    ("model", "dtype"),
    [
        ("tiny", "fp32"),
        ("tiny", "bf16"),
        ("embedded", "int8"),
        pytest.param("embedded", "fp32", marks=pytest.mark.matrix),
        pytest.param("embedded", "bf16", marks=pytest.mark.matrix),
    ],
)
def test_every_trainer_s_adapter_speaks_like_the_merged_weights(made, tmp_path, model, dtype, head):
    base, results, merged = made(model, head)
    expected = spoken(merged, dtype=dtype)
    assert not torch.equal(expected.codes, spoken(base, dtype=dtype).codes)
    for writer in WRITERS:
        with torch.inference_mode(False):
            folder = write_adapter_of(writer, tmp_path / writer, *results)
        said = spoken(base, Adapter(str(folder)), dtype=dtype)
        assert torch.equal(said.codes, expected.codes) and torch.equal(said.wav, expected.wav), writer
        assert said.warnings == expected.warnings


@pytest.mark.parametrize("writer", WRITERS)
def test_head_and_embedding_are_merged_apart(made, adapter, writer):
    base, folder = adapter(writer)
    _, (_, whole), _ = made("tiny", "apart")
    tensors = loaded(base, Adapter(folder))
    assert torch.equal(tensors["embed_codes"], whole[EMBEDDING]) and torch.equal(tensors["head_codes"], whole[HEAD])


def plant(folder, **tensors):
    path = folder / "adapter_model.safetensors"
    save_file({**load(path.read_bytes()), **{name: tensor.clone() for name, tensor in tensors.items()}}, path)


PLANTED = "base_model.model.audio_adapter.lora_A.weight"


class TestWithoutAPlace:
    @pytest.mark.parametrize("writer", WRITERS)
    def test_a_planted_tensor_is_refused_by_name_with_trainer_and_switch(self, adapter, writer):
        base, folder = adapter(writer)
        plant(folder, **{PLANTED: torch.ones(4, 8)})
        with pytest.raises(HiggsError) as error:
            inspect(base, adapters=[Adapter(folder)])
        known = "a trainer of Higgs TTS 3" if writer == "boson" else "the transformers port of Higgs TTS 3"
        for part in (PLANTED, known, str(folder), "partial in Higgs Load LoRA", "--partial-lora"):
            assert part in str(error.value)

    def test_partial_loads_the_rest_and_says_so(self, adapter):
        base, folder = adapter()
        expected = spoken(base, Adapter(str(folder)))
        plant(folder, **{PLANTED: torch.ones(4, 8)})
        said = spoken(base, Adapter(str(folder), partial=True))
        assert torch.equal(said.codes, expected.codes)
        (warning,) = set(said.warnings) - set(expected.warnings)
        assert "1 of the" in warning and PLANTED in warning

    def test_the_terminal_has_the_switch(self, adapter, tmp_path, capsys):
        base, folder = adapter()
        plant(folder, **{PLANTED: torch.ones(4, 8)})
        ran = ["say", "hello", "--max-frames", "8", "--retries", "0", "--dtype", "fp32", "--device", "cpu"]
        ran += ["--model", str(base), "--lora", str(folder), "--out", str(tmp_path / "a.wav")]
        assert main(ran) == 2 and PLANTED in capsys.readouterr().err
        assert main([*ran, "--partial-lora"]) == 0

    @pytest.mark.parametrize("prefix", ["speech_encoder.", "ema_teacher.net."])
    def test_layers_of_another_network_do_not_take_the_talker_s_places(self, adapter, prefix):
        base, folder = adapter()
        path = folder / "adapter_model.safetensors"
        key = "layers.0.self_attn.q_proj.lora_A.weight"
        held = load(path.read_bytes())[f"base_model.model.model.{key}"]
        plant(folder, **{f"base_model.model.{prefix}{key}": held, f"base_model.model.{prefix}x.{key}": held})
        with pytest.raises(HiggsError, match=rf"2 of the .*{prefix}{key}"):
            inspect(base, adapters=[Adapter(folder)])

    def test_two_names_of_one_tensor_are_not_both_taken(self, adapter):
        base, folder = adapter()
        plant(folder, **{f"base_model.model.{EMBEDDING}": torch.zeros(8208, 64)})
        with pytest.raises(HiggsError, match=r"1 of the .*embedding"):
            inspect(base, adapters=[Adapter(folder)])

    def test_an_image_model_s_lora_is_called_one(self, adapter):
        base, folder = adapter()
        save_file({"lora_unet_down.lora_A.weight": torch.ones(2, 2)}, folder / "adapter_model.safetensors")
        with pytest.raises(HiggsError, match="an image model's trainer"):
            inspect(base, adapters=[Adapter(folder)])


class TestNotTrainedWeights:
    def test_copies_and_states_beside_the_weights_change_nothing(self, adapter):
        """Averages, the optimiser, PEFT's copies of what it wraps, and a second adapter called ema."""
        base, folder = adapter()
        plain = loaded(base, Adapter(folder))
        held = load((folder / "adapter_model.safetensors").read_bytes())
        key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
        other = torch.full_like(held[key], 9.0)
        raw = {name.replace(".lora_A.weight", ".lora_A.default.weight"): tensor for name, tensor in held.items()}
        raw |= {f"ema.{name}": tensor + 1 for name, tensor in held.items() if "layers.0" in name}
        raw |= {key.replace(".weight", ".ema.weight"): other, f"optimizer.state.{key}.exp_avg": other + 1}
        raw |= {"base_model.model.audio_head.original_module.weight": torch.zeros(8208, 64)}
        save_file(raw, folder / "adapter_model.safetensors")
        (warning,) = inspect(base, adapters=[Adapter(folder)]).adapters.warnings
        assert "are not used for speech" in warning and "exp_avg" in warning
        ours = loaded(base, Adapter(folder))
        assert all(torch.equal(ours[name], tensor) for name, tensor in plain.items())

    def test_an_average_alone_is_an_adapter(self, adapter):
        base, folder = adapter("boson", "untouched")
        plain, path = loaded(base, Adapter(folder)), folder / "adapter_model.safetensors"
        save_file({f"ema.{name}": tensor for name, tensor in load(path.read_bytes()).items()}, path)
        ours = loaded(base, Adapter(folder))
        assert all(torch.equal(ours[name], tensor) for name, tensor in plain.items())

    def test_a_second_adapter_in_one_file_is_refused(self, adapter):
        base, folder = adapter()
        plant(folder, **{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.bob.weight": torch.ones(4, 64)})
        with pytest.raises(HiggsError, match=r"lora_A\.bob\.weight"):
            inspect(base, adapters=[Adapter(folder)])

    def test_a_training_s_folder_names_the_adapters_in_it(self, adapter, tmp_path):
        base, latest = adapter("gui")
        _, earlier = adapter("gui", to="run/checkpoint-100")
        with pytest.raises(HiggsError) as error:
            inspect(base, adapters=[Adapter(tmp_path / "run")])
        assert str(latest) in str(error.value) and str(earlier) in str(error.value)
        advice = examine(tmp_path / "run").advice
        assert str(latest) in advice and "--lora" in advice

    @pytest.mark.parametrize("name", ["optimizer.pt", "trainer_state.pt", "rng_state_0.pth", "scheduler.bin"])
    def test_a_training_s_state_is_not_called_damaged(self, adapter, name):
        base, folder = adapter()
        torch.save({"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-5}]}, folder / name)
        with pytest.raises(HiggsError, match=rf"{name} is the state of a training"):
            inspect(base, adapters=[Adapter(folder / name)])
        assert not inspect(base, adapters=[Adapter(folder)]).adapters.warnings

    def test_files_that_were_not_read_are_named(self, adapter, tmp_path):
        base, folder = adapter()
        save_file({"a": torch.ones(1)}, folder / "adapter_model_ema.safetensors")
        (warning,) = inspect(base, adapters=[Adapter(folder)]).adapters.warnings
        assert "adapter_model_ema.safetensors" in warning and "not read" in warning
        _, gui = adapter("gui", to="gui")
        for name, to in (("adapter_model.safetensors", "anna.safetensors"), ("adapter_config.json", "anna.json")):
            shutil.move(gui / name, gui / to)
        (warning,) = inspect(base, adapters=[Adapter(gui / "anna.safetensors")]).adapters.warnings
        assert AUDIO_MODULES in warning and "not read" in warning


class TestAudioModules:
    def test_they_count_in_the_fingerprint(self, adapter):
        base, folder = adapter("gui")
        config = EngineConfig(base, device="cpu", adapters=(Adapter(str(folder)),))
        first = Engine(config).fingerprint
        torch.save({"audio_head": {"weight": torch.zeros(8208, 64)}}, folder / AUDIO_MODULES)
        assert Engine(config).fingerprint != first

    def test_a_module_s_own_state_dict_is_read(self, adapter):
        """With torch's metadata and a parameter that two modules share, as the trainer's tied model has it."""
        base, folder = adapter("gui")
        with torch.inference_mode(False):
            embedding, head = torch.nn.Embedding(8208, 64), torch.nn.Linear(64, 8208, bias=False)
            head.weight = embedding.weight
            torch.save(
                {"audio_embedding": embedding.state_dict(), "audio_head": head.state_dict()}, folder / AUDIO_MODULES
            )
        tensors = loaded(base, Adapter(folder))
        assert torch.equal(tensors["embed_codes"], embedding.weight) and torch.equal(tensors["head_codes"], head.weight)

    @pytest.mark.parametrize(
        ("held", "told"),
        [
            ({"audio_head": {"weight": torch.zeros(3, 64)}}, "audio_head.weight has the shape"),
            ({"audio_head": {"bias": torch.zeros(8208)}}, "audio_head.bias"),
            ({"lm_head": {"weight": torch.zeros(2, 2)}}, "lm_head.weight"),
            ({"audio_head": {"deeper": {"weight": torch.zeros(8208, 64)}}}, "not a plain table"),
            ({"audio_head": {"weight": [1.0]}}, "not a plain table"),
            ({"audio_head": {10**5000: torch.zeros(1)}}, "not a file of plain"),
            ({10**5000: {"weight": torch.zeros(1)}}, "not a file of plain"),
            ({"audio_head": {7: torch.zeros(1)}}, "not a plain table"),
            ({("a",): {"weight": torch.zeros(1)}}, "not a plain table"),
            ({"a": {"b.c": torch.zeros(1)}, "a.b": {"c": torch.zeros(1)}}, "not a plain table"),
            ({"a" * 300: {"weight": torch.zeros(1)}}, "not a plain table"),
            ({"a": {f"{n}": torch.zeros(1) for n in range(16_385)}}, "not a plain table"),
            ({"audio_head": {"weight": torch.zeros(1).expand(8208, 64)}}, "not a plain tensor"),
            ({"audio_head": {"weight": torch.zeros(8208, 64, device="meta")}}, "not a plain tensor"),
            ([torch.zeros(1)], "not a plain table"),
        ],
        ids=range(15),
    )
    def test_hostile_tables_are_refused(self, adapter, held, told):
        base, folder = adapter("gui")
        torch.save(held, folder / AUDIO_MODULES)
        with pytest.raises(HiggsError) as error:
            inspect(base, adapters=[Adapter(folder)])
        assert told in str(error.value) and str(folder) in str(error.value)
        assert len(str(error.value)) < 2000 and "\n" not in str(error.value)

    def test_code_in_them_never_runs(self, adapter, tmp_path):
        class Runs:
            def __reduce__(self):
                return (open, (str(tmp_path / "ran"), "w"))

        base, folder = adapter("gui")
        for write in (lambda: torch.save({"audio_head": Runs()}, folder / AUDIO_MODULES), lambda: raw(folder, Runs())):
            write()
            with pytest.raises(HiggsError, match="not a file of plain weights"):
                inspect(base, adapters=[Adapter(folder)])
            assert not (tmp_path / "ran").exists()

    def test_bombs_and_cut_files_are_refused(self, adapter):
        base, folder = adapter("gui")
        path = folder / AUDIO_MODULES
        data = path.read_bytes()
        packed = io.BytesIO()
        with zipfile.ZipFile(path) as stored, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in stored.namelist():
                archive.writestr(name, stored.read(name))
        for spoiled in (
            b"",
            data[:-100],
            data[:100],
            packed.getvalue(),
            b"version https://git-lfs.github.com/spec/v1\n",
        ):
            path.write_bytes(spoiled)
            with pytest.raises(HiggsError, match=AUDIO_MODULES):
                inspect(base, adapters=[Adapter(folder)])

    def test_views_that_overlap_are_refused(self, adapter):
        base, folder = adapter("gui")
        store = torch.zeros(8208 * 64 + 1)
        views = {f"a{n}": {"weight": store[n : n + 8208 * 64].view(8208, 64)} for n in (0, 1)}
        torch.save(views, folder / AUDIO_MODULES)
        with pytest.raises(HiggsError, match="larger than the file"):
            inspect(base, adapters=[Adapter(folder)])


def raw(folder, thing):
    with (folder / AUDIO_MODULES).open("wb") as file:
        pickle.dump({"audio_head": thing}, file)
