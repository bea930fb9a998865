"""Golden tests: the engine still produces every recorded code and sample.

A waveform recorded in this very environment must match bit for bit, others to 16 bits.
"""

import json
import pathlib
import sys

import pytest
import torch
from safetensors import safe_open

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from cases import (
    CPU_FILE,
    FAMILIES,
    GPU_FILE,
    ROWS,
    cpu_runs,
    digest,
    environment,
    folder_of,
    gpu_folder,
    gpu_runs,
)

LEAST_BITS = 3 / 32767  # rounding to 16 bits, and what another torch or processor rounds otherwise


def recorded(path):
    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()  # noqa: SIM118


@pytest.fixture(autouse=True)
def _inference():
    with torch.inference_mode():
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_codes_and_waveforms_on_the_cpu_equal_the_recorded_ones(family, tmp_path):
    tensors, metadata = recorded(CPU_FILE)
    exact = json.loads(metadata["wav"]).get(environment(), {})
    names = []
    for name, codes, wav in cpu_runs(family, folder_of(family, tmp_path)):
        names.append(f"{name}/codes")
        assert torch.equal(codes.to(torch.int16), tensors[names[-1]]), name
        if wav is not None:
            names.append(f"{name}/wav")
            assert (wav - tensors[names[-1]] / 32767).abs().max() < LEAST_BITS, name
            if exact:
                assert digest(wav) == exact[name], name
    assert sorted(names) == sorted(name for name in tensors if name.startswith(f"{family}/"))


@pytest.mark.parametrize("family", ["v3", "v2", "embedded"])
def test_codes_on_the_gpu_equal_the_recorded_ones(family, tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA GPU here")
    said = dict(gpu_runs(family, gpu_folder(family, tmp_path)))
    for rows in ROWS[2:]:
        assert torch.equal(said[f"{family}/{rows} rows"], said[f"{family}/2 rows"])
    tensors, metadata = recorded(GPU_FILE)
    if torch.cuda.get_device_name(0) != metadata["device"]:
        pytest.skip(f"equal for all batch sizes; another GPU than {metadata['device']} may add up in another order")
    for name, codes in said.items():
        assert torch.equal(codes.to(torch.int16), tensors[name]), name
