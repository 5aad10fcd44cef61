"""Arrays in the memory of a GPU, and the streams that they are ready on: CuPy, Numba, torch, JAX, whatever says so.

Nothing here needs a driver or a library: libcgx loads the driver when such an array is handed over.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

DLPACK_DEVICES = (2, 13)  # CUDA's memory, and memory that it manages
_DEFAULT_STREAM = 1  # as DLPack and __cuda_array_interface__ call CUDA's default stream; 0 would be ambiguous there


class DeviceArray:
    """Memory of a GPU that the daemon's worker has, too, with __cuda_array_interface__ for those who fill and read it."""

    def __init__(self, block: Any, shape: Tuple[int, ...], typestr: str):
        self._block, self.shape, self._typestr = block, shape, typestr

    @property
    def __cuda_array_interface__(self) -> dict:
        return {"shape": self.shape, "typestr": self._typestr, "data": (self._block.address, False), "version": 3,
                "strides": None, "stream": None}


class Ready(NamedTuple):
    """Where an array in a GPU's memory is: on `stream` (CUstream as a number; 0: the default one)."""
    stream: int


def stream_number(stream: Any) -> Optional[int]:
    """Of a CUstream, given as a number, by the protocol __cuda_stream__, or as torch, CuPy and Numba have it."""
    if stream is None or isinstance(stream, int):
        return stream
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        return int((protocol() if callable(protocol) else protocol)[1])
    for name in ("cuda_stream", "ptr", "handle"):
        if hasattr(stream, name):
            number = getattr(stream, name)
            return int(getattr(number, "value", number) or 0)
    return int(stream)


def for_dlpack(stream: Any) -> int:
    return stream_number(stream) or _DEFAULT_STREAM


def ready_by_interface(about: dict, stream: Any) -> Ready:
    """Of __cuda_array_interface__: the caller's stream, else the array's own."""
    if about.get("mask") is not None:
        raise ValueError("the array has a mask, which cgx does not know")
    number = stream_number(stream)
    return Ready(number if number is not None else about.get("stream") or 0)
