"""Record the golden results. Run it only for an intended change of codes, and note it in CHANGELOG.

python tests/golden/record.py cpu    adds this environment's waveform digests; codes that differ replace the old
python tests/golden/record.py gpu    on an H200
"""

import json
import pathlib
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1]), str(pathlib.Path(__file__).parent)]

import conftest  # noqa: E402, F401  (imports the pack as higgs_tts)
from cases import CPU_FILE, FAMILIES, GPU_FILE, cpu_runs, digest, environment, folder_of, gpu_folder, gpu_runs  # noqa: E402


def main(kind: str):
    with tempfile.TemporaryDirectory() as made, torch.inference_mode():
        record_cpu(pathlib.Path(made)) if kind == "cpu" else record_gpu(pathlib.Path(made))


def record_cpu(made: pathlib.Path):
    old, digests = {}, {}
    if CPU_FILE.exists():
        with safe_open(CPU_FILE, "pt") as file:
            old = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            digests = json.loads(file.metadata()["wav"])
    tensors, fresh = {}, {}
    for family in FAMILIES:
        for name, codes, wav in cpu_runs(family, folder_of(family, made)):
            tensors[f"{name}/codes"] = codes.to(torch.int16)
            if wav is not None:
                tensors[f"{name}/wav"] = (wav * 32767).round().to(torch.int16)
                fresh[name] = digest(wav)
    for name, codes in tensors.items():
        if name.endswith("/codes") and name in old and not torch.equal(codes, old[name]):
            print(f"{name}: other codes than before")
            digests = {}  # those of other environments are of the old codes
        elif name in old and (codes.shape != old[name].shape or (codes.int() - old[name].int()).abs().max() > 3):
            print(f"{name}: another waveform than before")
            digests = {}
    digests[environment()] = fresh
    save_file(tensors, CPU_FILE, {"wav": json.dumps(digests, sort_keys=True)})


def record_gpu(made: pathlib.Path):
    runs = (run for family in ("v3", "v2", "embedded") for run in gpu_runs(family, gpu_folder(family, made)))
    tensors = {name: codes.to(torch.int16) for name, codes in runs}
    save_file(tensors, GPU_FILE, {"device": torch.cuda.get_device_name(0), "torch": torch.__version__})


if __name__ == "__main__":
    main(sys.argv[1])
