"""Compilation of CUDA C++ with torch's NVRTC, and launch through the driver API.

Needs no CUDA toolkit and no Triton, on Linux or Windows. torch's private NVRTC wrapper supports neither cooperative
launches nor a structure as the argument.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import pathlib
import re
import sys

import torch

from . import cubin_cache

log = logging.getLogger("higgs_tts")

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_LIMIT = 97  # CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
_PROGRAMMATIC_STREAM_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_...
_SWIZZLE_128B = 3  # CU_TENSOR_MAP_...
_PROMOTE_L2_128B = 2
_OVERLAP_SINCE = 12030  # first driver CUDA version whose graphs support programmatic dependent launch


class KernelUnavailable(RuntimeError):
    """A kernel does not support the model or GPU, or could not be compiled, loaded or launched."""


class LaunchFailed(RuntimeError):
    """The driver refused a launch, or reported at a launch that earlier work on the device failed."""


def _library(names: list[str], folders: list[pathlib.Path]) -> ctypes.CDLL:
    """Load the first library that works: glob matches in `folders`, then the system's."""
    paths = [str(path) for folder in folders for name in names for path in sorted(folder.glob(name))]
    for name in [*(path for path in paths if "builtins" not in path), *names]:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise KernelUnavailable(f"{names[0]} could not be loaded")


@functools.cache
def _nvrtc() -> ctypes.CDLL:
    """Load NVRTC: torch's first, since the system's may be older than the GPU. CUDA 11 adds a minor version."""
    major = (torch.version.cuda or "0").partition(".")[0]
    packages = pathlib.Path(torch.__file__).parent.parent
    if sys.platform == "win32":
        return _library([f"nvrtc64_{major}0_0.dll", f"nvrtc64_{major}*_0.dll"], [packages / "torch" / "lib"])
    folders = [packages / "torch" / "lib", *sorted((packages / "nvidia").glob("*/lib"))]
    return _library([f"libnvrtc.so.{major}", f"libnvrtc-*.so.{major}*", "libnvrtc.so"], folders)


@functools.cache
def _driver() -> ctypes.CDLL:
    return _library(["nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"], [])


def read_source(path: pathlib.Path) -> str:
    """Return the CUDA source in `path` with includes inlined. They are searched beside it, then in this folder."""

    def included(include) -> str:
        beside = path.parent / include[1]
        return read_source(beside if beside.is_file() else pathlib.Path(__file__).parent / include[1])

    return re.sub(r'#include "(.+)"', included, path.read_text(encoding="utf-8"))


@functools.lru_cache(maxsize=8)
def compile_cubin(source: str, capability: str, options: tuple[str, ...]) -> bytes:
    """Return the cubin of `source` for a compute capability such as "90", compiled once per machine (cubin_cache.py).

    Raises KernelUnavailable with the compiler's log if compilation fails.
    """
    compiler = "NVRTC {}.{} torch {}".format(*compiler_version(), torch.__version__)
    key = cubin_cache.key_of(source, capability, *options, compiler)
    cubin = cubin_cache.load(key)
    if cubin is None:
        cubin = _compile(source, capability, options)
        cubin_cache.save(key, cubin)
    return cubin


def compiler_version() -> tuple[int, int]:
    """Return NVRTC's version. Raises KernelUnavailable if it could not be loaded."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    _nvrtc().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _compile(source: str, capability: str, options: tuple[str, ...]) -> bytes:
    nvrtc = _nvrtc()
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"higgs.cu", 0, None, None)
    flags = [f"--gpu-architecture=sm_{capability}", "--std=c++17", *options]
    array = (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
    failed = nvrtc.nvrtcCompileProgram(program, len(flags), array)
    try:
        report = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).decode().strip("\0\n")
        if failed:
            raise KernelUnavailable(f"the kernels do not compile for compute capability {capability}: {report[:400]}")
        if report:
            log.debug("NVRTC for compute capability %s: %s", capability, report)
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of, read, program) -> bytes:
    size = ctypes.c_size_t()
    size_of(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    read(program, buffer)
    return buffer.raw


class Module:
    """Cubin loaded on the current device. `close` unloads it; none of its kernels may be running then."""

    def __init__(self, cubin: bytes):
        torch.cuda.current_stream().synchronize()  # creates the context if needed
        self._module = ctypes.c_void_p()
        _check(_driver().cuModuleLoadData(ctypes.byref(self._module), cubin), "load")

    def function(self, name: str, shared: int = 0) -> ctypes.c_void_p:
        """Return a kernel by name. `shared`: maximum bytes of dynamic shared memory at launch."""
        function = ctypes.c_void_p()
        _check(_driver().cuModuleGetFunction(ctypes.byref(function), self._module, name.encode()), "find")
        if shared:
            _check(_driver().cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), "give shared memory to")
        return function

    def close(self) -> None:
        if self._module:
            _driver().cuModuleUnload(self._module)
        self._module = None


def shared_limit(index: int) -> int:
    """Return a device's maximum bytes of shared memory per block. Needs no context."""
    device, limit = ctypes.c_int(), ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index), "find the device of")
    _check(_driver().cuDeviceGetAttribute(ctypes.byref(limit), _SHARED_LIMIT, device), "measure the memory of")
    return limit.value


def trim_graph_memory(index: int) -> None:
    """Return to the device what the driver keeps for graphs that allocated, as they do with cudaMallocAsync."""
    device = ctypes.c_int()
    _check(_driver().cuDeviceGet(ctypes.byref(device), index), "find the device of")
    _check(_driver().cuDeviceGraphMemTrim(device), "free the memory of")


TENSOR_MAP = ctypes.c_ubyte * 128  # CUtensorMap


def tensor_map(
    tensor: torch.Tensor, sizes: tuple[int, ...], strides: tuple[int, ...], box: tuple[int, ...], swizzle: bool = True
) -> ctypes.Array[ctypes.c_ubyte]:
    """Return the map of a tensor of bytes from which kernels copy boxes to shared memory (compute capability 9.0).

    sizes, box: elements per dimension, innermost first. strides: bytes, of all dimensions but the first. swizzle: a
    box's rows are 128 bytes, and their 16-byte chunks are permuted in shared memory. The tensor must outlive the map.
    Raises KernelUnavailable if the driver refuses.
    """
    buffer, rank = ctypes.create_string_buffer(ctypes.sizeof(TENSOR_MAP) + 64), len(sizes)
    start = -ctypes.addressof(buffer) % 64  # the driver wants it aligned
    steps = (ctypes.c_uint32 * rank)(*[1] * rank)
    error = _driver().cuTensorMapEncodeTiled(
        ctypes.byref(buffer, start),
        0,  # bytes
        rank,
        ctypes.c_void_p(tensor.data_ptr()),
        (ctypes.c_uint64 * rank)(*sizes),
        (ctypes.c_uint64 * (rank - 1))(*strides),
        (ctypes.c_uint32 * rank)(*box),
        steps,
        0,  # not interleaved
        _SWIZZLE_128B if swizzle else 0,
        _PROMOTE_L2_128B,
        0,  # outside the tensor are zeros
    )
    _check(error, "describe a tensor to")
    return TENSOR_MAP.from_buffer_copy(buffer, start)


class _Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("padding", ctypes.c_int), ("value", ctypes.c_int), ("rest", ctypes.c_char * 60)]


class _LaunchConfig(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    ]


@functools.cache
def _may_overlap() -> bool:
    version = ctypes.c_int()
    _check(_driver().cuDriverGetVersion(ctypes.byref(version)), "find the version for")
    return version.value >= _OVERLAP_SINCE


def launch(
    function: ctypes.c_void_p,
    grid: int,
    block: int,
    argument: ctypes.Structure,
    cooperative: bool = False,
    shared: int = 0,
    overlapping: bool = False,
) -> None:
    """Launch on the current stream with one structure as the argument.

    overlapping: if the driver supports programmatic dependent launch, blocks may start while the previous kernel runs.
    The sources say when (launch_dependent_grids) and where they wait for it (wait_on_dependent_grids).
    Raises LaunchFailed if the driver refuses the launch.
    """
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(argument))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    if overlapping and _may_overlap():
        attribute = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, 0, 1)
        config = _LaunchConfig((grid, 1, 1), (block, 1, 1), shared, stream, ctypes.pointer(attribute), 1)
        error = _driver().cuLaunchKernelEx(ctypes.byref(config), function, arguments, None)
    elif cooperative:
        error = _driver().cuLaunchCooperativeKernel(function, grid, 1, 1, block, 1, 1, shared, stream, arguments)
    else:
        error = _driver().cuLaunchKernel(function, grid, 1, 1, block, 1, 1, shared, stream, arguments, None)
    _check(error, "launch", LaunchFailed)


def _check(error: int, action: str, kind: type[RuntimeError] = KernelUnavailable):
    if error:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(error, ctypes.byref(text))
        raise kind(f"the driver could not {action} a kernel: {(text.value or b'unknown error').decode()}")
