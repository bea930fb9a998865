"""Small random talkers and prompts made without files, and tiny checkpoints."""

import contextlib
import dataclasses
import os
import types

import pytest
import torch
import transformers
from higgs_tts.engine.core.codes import BOC, apply_v2, apply_v3
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.cuda import nvrtc
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.state import DecodeState
from higgs_tts.engine.talker import build_talker
from higgs_tts.engine.talker.config import ModelConfig, RopeConfig
from higgs_tts.engine.tools.tiny import FAMILIES, write_tiny
from higgs_tts.tests.traced import trace, tracing
from higgs_tts.tests.watched import watching

CPU = torch.device("cpu")
TEXT_VOCAB = 300
ROPES = {"v3": RopeConfig(1e6), "v2": RopeConfig(500000.0, 32.0, 0.125, 0.5, 1024)}


def small_config(family: str) -> ModelConfig:
    return ModelConfig(
        family=family,
        layout=family,
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=96,
        norm_eps=1e-6 if family == "v3" else 1e-5,
        rope=ROPES[family],
        text_vocab=TEXT_VOCAB,
    )


def small_tensors(config: ModelConfig, seed: int = 0) -> dict:
    """Return canonical tensors with a lively residual stream. Faint heads keep greedy decoding from special codes."""
    g = torch.Generator().manual_seed(seed)
    hidden, inner, dim = config.hidden, config.intermediate, config.head_dim

    def matrix(*shape):
        return torch.randn(*shape, generator=g) / shape[-1] ** 0.5

    def norm(size):
        return 1 + 0.1 * torch.randn(size, generator=g)

    codes = config.codebooks * config.code_vocab
    tensors = {
        "embed_text": torch.randn(config.text_vocab, hidden, generator=g),
        "embed_codes": torch.randn(codes, hidden, generator=g) * 0.35,
        "norm": norm(hidden),
    }
    head = torch.randn(codes, hidden, generator=g) * 0.5
    head.view(config.codebooks, config.code_vocab, hidden)[:, BOC:] *= 0.02
    tensors["head_codes"] = head
    for index in range(config.layers):
        layer = {
            "qkv": matrix((config.heads + 2 * config.kv_heads) * dim, hidden),
            "o": matrix(hidden, config.heads * dim),
            "attn_norm": norm(hidden),
            "mlp_norm": norm(hidden),
            "gate_up": matrix(2 * inner, hidden),
            "down": matrix(hidden, inner),
        }
        if config.family == "v3":
            layer |= {"q_norm": norm(dim), "k_norm": norm(dim)}
        else:
            layer |= {
                "audio_attn_norm": norm(hidden),
                "audio_mlp_norm": norm(hidden),
                "audio_gate_up": matrix(2 * inner, hidden),
                "audio_down": matrix(hidden, inner),
            }
        tensors |= {f"layers.{index}.{name}": value for name, value in layer.items()}
    return tensors


def small_prompt(config: ModelConfig, seed: int = 0, frames: int = 6):
    """Return a prompt with a reference in the middle, like those of prompt/."""
    g = torch.Generator().manual_seed(seed)
    text = torch.randint(0, config.text_vocab - 4, (9,), generator=g).tolist()
    codes = torch.randint(0, 1024, (frames, config.codebooks), generator=g)
    rows = apply_v3(codes) if config.family == "v3" else apply_v2(codes)
    ids = text[:4] + [0] * len(rows) + text[4:]
    spans = [(4, rows)]
    if config.family == "v2":
        spans.append((len(ids), torch.full((1, config.codebooks), BOC)))
        ids = [*ids, 0]
    return Sequence(ids, tuple(spans), prefix=4 + len(rows))


class Tensors:
    """A TensorFile with tensors in memory."""

    def __init__(self, tensors):
        self.tensors = tensors
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self.dtypes = {name: tensor.dtype for name, tensor in tensors.items()}

    def file_of(self, name):
        return "model.safetensors"

    def get(self, name, device):
        return self.tensors[name].to(device)


class Bench(ModelRunner):
    """A model runner over a small talker. `start` prefills rows, `run` returns the outputs [B, steps, K]."""

    def __init__(self, family, batch=1, context=512, is_traced=False, dtype=torch.float32, seed=0):
        self.config = small_config(family)
        self.tensors = {k: v.to(dtype) for k, v in small_tensors(self.config, seed).items()}
        aligned = (0, 0), (1, 0), (1, self.config.heads - 1)
        state = DecodeState(self.config, batch, context, CPU, dtype, aligned)
        super().__init__(build_talker(self.config, self.tensors, context), state)
        if is_traced:
            trace(self)

    def start(self, params, prompts=None, lines=None):
        for b in range(self.state.batch):
            prompt = prompts[b] if prompts else small_prompt(self.config)
            sequence = dataclasses.replace(prompt, index=lines[b] if lines else 0, params=params)
            self.prefill([(b, sequence)])

    def run(self, steps):
        for _ in range(steps):
            self.step()
        return self.state.delay.outputs[:, :steps].clone()


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """Tiny checkpoints by family, shared: a test that changes one must copy it."""
    root = tmp_path_factory.mktemp("written")
    return {family: write_tiny(root / family, family) for family in FAMILIES}


@pytest.fixture
def left_behind(caplog):
    """left_behind() -> (bytes, device) of every pool that closed with live references to its tensors."""
    caplog.set_level("DEBUG", "higgs_tts")
    return lambda: [record.args for record in caplog.records if record.module == "memory"]


@pytest.fixture(scope="session")
def compiler():
    """torch's NVRTC. Fails only if it is missing."""
    try:
        nvrtc.compile_cubin("", "80", ())
    except nvrtc.KernelUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def codec_of_transformers():
    """transformers' codec class, which cannot be built without torchaudio."""
    if not hasattr(transformers, "HiggsAudioV2TokenizerModel"):
        pytest.skip(f"transformers {transformers.__version__} has no HiggsAudioV2TokenizerModel to compare with")
    if not transformers.utils.is_torchaudio_available():
        pytest.skip("no torchaudio here, and transformers' HiggsAudioV2TokenizerModel needs it")
    return transformers.HiggsAudioV2TokenizerModel


@pytest.fixture(scope="session")
def in_memory():
    return Tensors


@pytest.fixture
def before_steps():
    """before_steps(watch): watch(runner) is called before each whole step of every model runner."""
    with contextlib.ExitStack() as stack:
        yield lambda watch: stack.enter_context(watching(watch))


@pytest.fixture(params=[False, True], ids=["eager", "traced"])
def is_traced(request):
    """Run a test twice: with eager steps, and with traced ones in all model runners that it makes."""
    with tracing() if request.param else contextlib.nullcontext():
        yield request.param


@pytest.fixture
def bench():
    return Bench


@pytest.fixture
def full_disk():
    """`with full_disk(room)`: files cannot grow beyond `room` bytes; further writes fail as on a full disk."""
    resource = pytest.importorskip("resource", reason="limits the size of files, which Windows cannot")

    @contextlib.contextmanager
    def full(room):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


@pytest.fixture
def make_pipe():
    """make_pipe(path): a named pipe, which nobody writes to. Windows has none in folders and gets a folder."""
    return getattr(os, "mkfifo", os.mkdir)


@pytest.fixture
def link():
    """link(path, folder): a link to a folder. Windows asks for a right, and Wine makes none."""

    def make(path, folder):
        try:
            path.symlink_to(folder, target_is_directory=True)
        except OSError as error:
            pytest.skip(f"Windows makes no link here: {error}")
        if not path.is_dir():
            pytest.skip("Windows makes no link here")

    return make


@pytest.fixture
def small():
    return types.SimpleNamespace(config=small_config, tensors=small_tensors, prompt=small_prompt)
