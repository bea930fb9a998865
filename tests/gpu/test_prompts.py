"""Prompts by the CUDA kernels, eager and captured, on layers of the published widths."""

import itertools

import pytest
import torch
from higgs_tts.engine import Engine, EngineConfig, SamplingParams, Voice
from higgs_tts.engine.core.codes import BOC
from higgs_tts.engine.core.sequence import Sequence
from higgs_tts.engine.decode import prompts
from higgs_tts.engine.decode.fill import Fill, Piece
from higgs_tts.engine.decode.kernels.prompt import PromptKernel, Sharing, sizes_of
from higgs_tts.engine.decode.kernels.sample import SampleKernel
from higgs_tts.engine.decode.model_runner import ModelRunner
from higgs_tts.engine.decode.prompts import Prefill, open_prefill
from higgs_tts.engine.device.graph import GraphError
from higgs_tts.engine.device.memory import PrivatePool
from higgs_tts.tests.device_memory import free_bytes
from torch.profiler import ProfilerActivity, profile

CUDA = torch.device("cuda", 0)
LAYERS, CONTEXT = 3, 1280
FORMATS = ["", "int8", "int4"]
TEXT = "One two three four five six seven."


def sequence_of(config, seed, text, codes, tail=0):
    """Text, a clip's codes, text again."""
    g = torch.Generator().manual_seed(seed)
    columns = torch.randint(0, 1024, (codes, config.codebooks), generator=g)
    ids = torch.randint(0, config.text_vocab, (text + codes + tail,), generator=g).tolist()
    return Sequence(ids, ((text, columns),) if codes else ())


def prompt_of(config, seed=0, codes=250):
    """340 positions, as a voice of ten seconds has; v2's last one holds codes."""
    sequence = sequence_of(config, seed, 30, codes, 60)
    if config.family == "v3":
        return sequence
    first = len(sequence) - 1
    return Sequence(sequence.ids, (*sequence.audio, (first, torch.full((1, config.codebooks), BOC))))


def relative(ours, theirs):
    return float((ours.float() - theirs.float()).norm() / theirs.float().norm())


def spoil(state):
    """Fill what a prompt writes with what it never writes."""
    for tensor in (state.cache.keys, state.cache.values, state.logits):
        tensor.fill_(0.25)


def results(state, row, length):
    """Everything that a prompt of that length leaves in a row."""
    found = state.logits[row], state.cache.keys[:, row, :, :length], state.cache.values[:, row, :, :length]
    return [tensor.clone() for tensor in found]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.fixture
def prefill_of():
    """make(talker, state, captured) -> Prefill by kernels; all are closed in the end."""
    made, pool = [], PrivatePool(CUDA)

    def make(talker, state, captured=True):
        made.append(open_prefill(talker, "auto", pool))
        if captured:
            made[-1].capture(state, pool.capture_stream())
            assert not made[-1].note
        return made[-1]

    yield make
    torch.cuda.synchronize()
    for one in made:
        one.close()
    pool.close()


def counted(work):
    """{driver call: times} of launches and copies."""
    work()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    kinds = ("Launch", "Memcpy", "Memset")
    return {
        event.key: event.count
        for event in seen.key_averages()
        if event.key.startswith("cu") and any(kind in event.key for kind in kinds)
    }


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_captured_fill_is_one_graph_and_two_copies(wide, state_of, prefill_of, family, weights):
    """Of 340 positions. A row's start is one more kernel, and in v2 copies for its sampler's history."""
    talker = wide(family, torch.bfloat16, LAYERS, CONTEXT, weights)
    state = state_of(talker, 2, CONTEXT)
    prefill, admitted = prefill_of(talker, state), [(1, prompt_of(talker.config))]
    runner = ModelRunner(talker, state, sample_kernel=SampleKernel(talker, state))
    whole = counted(lambda: prefill.begin(state, admitted, start=runner.start_row).complete())
    assert whole["cudaGraphLaunch"] == 1 and sum(whole.values()) <= (5 if family == "v3" else 10), whole
    fill = counted(lambda: prefill.begin(state, admitted, start=lambda row, sequence: None).complete())
    assert fill["cudaGraphLaunch"] == 1 and sum(fill.values()) <= 4, fill
    runner.close()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_captured_and_eager_prompts_are_bit_equal(wide, state_of, prefill_of, family, weights):
    """Prompts of every way to need a size, alone and together, and a long one."""
    talker = wide(family, torch.bfloat16, LAYERS, CONTEXT, weights)
    config, states = talker.config, [state_of(talker, 4, CONTEXT) for _ in range(2)]
    both = [prefill_of(talker, state, captured) for state, captured in zip(states, (False, True), strict=True)]
    lengths = [(5, 0, 9), (60, 130, 60), (200, 300, 90), (0, 40, 700), (3, 140, 2), (0, 300, 1), (1, 0, 0)]
    sequences = [sequence_of(config, seed, *length) for seed, length in enumerate(lengths)]
    groups = [[one] for one in sequences] + [sequences[:3], [sequences[0], sequences[6], sequences[4], sequences[0]]]
    for group in groups:
        found = []
        for prefill, state in zip(both, states, strict=True):
            spoil(state)
            prefill.begin(state, list(enumerate(group))).complete()
            found.append([results(state, row, CONTEXT) for row in range(4)])
        assert all(same(one, other) for one, other in zip(*found, strict=True))
        for row, one in enumerate(group):
            assert found[0][row][0].isfinite().all() and not (found[0][row][0] == 0.25).all()
            assert (found[0][row][1][:, :, len(one) :] == 0.25).all()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_position_s_bits_depend_on_neither_place_nor_neighbours(wide, state_of, family, weights):
    """In every size: alone, then first, in the middle and last of a fill that others make full."""
    talker = wide(family, torch.bfloat16, LAYERS, CONTEXT, weights)
    config, state = talker.config, state_of(talker, 3, CONTEXT)
    kernel = PromptKernel(talker)
    assert kernel.sharing is not Sharing.NONE
    for size in sizes_of(config):
        text, code = (min(20, size.text), min(20, size.code)) if family == "v2" else (20, 20)
        mine = sequence_of(config, 1, text, code)
        left = (size.text - text, size.code - code) if family == "v2" else (size.text - 40, 0)
        halves = [tuple(count // 2 for count in left), tuple(count - count // 2 for count in left)]

        def put(before, after, size=size, mine=mine):
            spoil(state)
            others = (sequence_of(config, seed, *counts) for seed, counts in ((2, before), (3, after)))
            first, last = (
                [Piece(one, row, 0, len(one))] if len(one) else [] for row, one in zip((0, 2), others, strict=True)
            )
            pieces = [*first, Piece(mine, 1, 0, len(mine)), *last]
            Fill(config, kernel.layout, size, pieces).upload(talker, kernel, state)
            kernel.run(size)
            torch.cuda.synchronize()
            return results(state, 1, len(mine))

        alone = put((0, 0), (0, 0))
        assert alone[0].isfinite().all() and not (alone[0] == 0.25).all()
        for before, after in (((0, 0), left), (halves[0], halves[1]), (left, (0, 0))):
            assert same(put(before, after), alone), (size, before, after)
    kernel.close()


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_prompts_of_different_sizes_share_a_fill_bit_for_bit(wide, state_of, prefill_of, family, weights):
    talker = wide(family, torch.bfloat16, LAYERS, CONTEXT, weights)
    config, state = talker.config, state_of(talker, 4, CONTEXT)
    prefill, kernel = prefill_of(talker, state), PromptKernel(talker)
    sharing = kernel.sharing
    kernel.close()
    if sharing is not Sharing.ANY_SIZES:
        pytest.skip("this cuBLAS rounds the products of fills of different sizes differently")
    sequences = [sequence_of(config, seed, *counts) for seed, counts in enumerate([(20, 0), (30, 250), (9, 120, 2)])]
    alone = []
    for row, sequence in enumerate(sequences):
        spoil(state)
        prefill.begin(state, [(row, sequence)]).complete()
        alone.append(results(state, row, len(sequence)))
    spoil(state)
    calls = counted(lambda: prefill.begin(state, list(enumerate(sequences))).complete())
    assert calls["cudaGraphLaunch"] == 1
    assert all(same(results(state, row, len(one)), alone[row]) for row, one in enumerate(sequences))


@pytest.mark.parametrize("weights", FORMATS)
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_a_prompt_in_two_pieces_is_bit_equal_to_the_whole(wide, state_of, family, weights):
    """In one size of fill, which is what a product's shape depends on."""
    talker = wide(family, torch.bfloat16, LAYERS, CONTEXT, weights)
    config, state = talker.config, state_of(talker, 2, CONTEXT)
    kernel, sequence, found = PromptKernel(talker), prompt_of(talker.config, codes=100), []
    size = sizes_of(config)[-1] if family == "v3" else next(s for s in sizes_of(config) if min(s) >= 128)
    for cuts in ([0, len(sequence)], [0, 41, len(sequence)], [0, 16, 100, 101, len(sequence)]):
        spoil(state)
        for start, stop in itertools.pairwise(cuts):
            piece = Piece(sequence, 1, start, stop)
            Fill(config, kernel.layout, size, [piece]).upload(talker, kernel, state)
            kernel.run(size)
            torch.cuda.synchronize()
        found.append(results(state, 1, len(sequence)))
    assert same(found[1], found[0]) and same(found[2], found[0])
    kernel.close()


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernels_are_within_two_percent_of_fp32(wide, state_of, prefill_of, family):
    """The fp32 talker holds the same weights, rounded to bf16."""
    talker, exact = (wide(family, dtype, 4, CONTEXT) for dtype in (torch.bfloat16, torch.float32))
    for one, other in zip(exact.tensors(), talker.tensors(), strict=True):
        one.copy_(other)
    exact.embed_text.copy_(talker.embed_text)
    ours, theirs = state_of(talker, 2, CONTEXT), state_of(exact, 2, CONTEXT)
    prefill = prefill_of(talker, ours)
    for seed, codes in enumerate((250, 20, 560)):
        admitted = [(1, prompt_of(talker.config, seed, codes))]
        prefill.begin(ours, admitted).complete()
        Prefill(exact).begin(theirs, admitted).complete()
        assert relative(ours.logits[1], theirs.logits[1]) <= 0.02, codes
        length = len(admitted[0][1])
        for name in ("keys", "values"):
            a, b = (getattr(state.cache, name)[:, 1, :, :length] for state in (ours, theirs))
            assert relative(a, b) <= 0.02, (codes, name)


@pytest.mark.parametrize("weights", ["int8", "q8_0", "int4"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_kernels_and_twin_agree_on_quantised_weights(wide, state_of, prefill_of, family, weights):
    talker = wide(family, torch.bfloat16, 4, CONTEXT, weights)
    ours, twin = (state_of(talker, 2, CONTEXT) for _ in range(2))
    admitted = [(0, prompt_of(talker.config))]
    prefill_of(talker, ours).begin(ours, admitted).complete()
    Prefill(talker).begin(twin, admitted).complete()
    assert relative(ours.logits[0], twin.logits[0]) < 3e-2


def engine_of(folder, dtype="bf16", **changes):
    return Engine(EngineConfig(str(folder), device="cuda:0", context=CONTEXT, dtype=dtype, **changes))


def said(engine, frames=40):
    codes = torch.randint(0, 1024, (250, 8), generator=torch.Generator().manual_seed(0))
    params = SamplingParams(seed=3, max_frames=frames, retries=0)
    return engine.speak(TEXT, Voice(codes, "What the clip says, in about these words."), params)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("family", ["v3", "v2"])
def test_unloading_returns_all_memory_and_trim_changes_no_codes(folders, family, dtype):
    with engine_of(folders[family], dtype) as engine:  # whatever the process keeps for good is there after this
        said(engine)
    before = free_bytes()
    engine = engine_of(folders[family], dtype)
    with engine:
        first = said(engine)
        assert not any("CUDA graphs" in warning for warning in first.warnings)
        held = free_bytes()
        assert engine.trim() > 0 and free_bytes() > held
        assert torch.equal(said(engine).codes, first.codes)
        assert abs(free_bytes() - held) <= 64 << 20  # blocks of pools and of graphs
    assert free_bytes() == before


@pytest.mark.parametrize("family", ["v3", "v2"])
def test_codes_are_the_same_without_graphs(folders, monkeypatch, family):
    """Turned off, or failed; memory comes back after a failure as well."""
    with engine_of(folders[family]) as engine:
        expected = said(engine)
    with engine_of(folders[family], runner="eager") as engine:
        assert torch.equal(said(engine).codes, expected.codes)
    before, capture, made = free_bytes(), prompts.capture, []

    def fails(work, stream):
        if len(made) == 2:
            raise GraphError("planted failure")
        made.append(capture(work, stream))
        return made[-1]

    monkeypatch.setattr(prompts, "capture", fails)
    with engine_of(folders[family]) as engine:
        speech = said(engine)
        assert torch.equal(speech.codes, expected.codes)
        assert any("CUDA graphs are off for prompts" in note and "planted" in note for note in speech.warnings)
    made.clear()
    assert free_bytes() == before
