"""Reads the call frame that XLA passes to a compiled function on a CPU: the buffers of one call.

XLA calls it with a pointer to a frame of 8-byte words (`XLA_FFI_CallFrame` in jaxlib's
xla/ffi/api/c_api.h). Before the first call it asks which version of this interface the function
speaks: 0.x, whose frames begin with the same words in every JAX that the project supports.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from numba import carray, cfunc, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

_HANDLER = types.int64(types.voidptr)  # from a frame to an error; 0 is success
# Words of a frame, of its list of arguments or results, and of a buffer.
_QUERY, _API, _ARGUMENTS, _RESULTS = 1, 2, 9, 14
_DATA, _SIZES = 3, 5
_FRAME_WORDS, _BUFFER_WORDS = 15, 6
# Words of a query and of its answer, and of the interface that asks.
_ANSWER, _VERSION, _API_VERSION = 3, 3, 4
_MAJOR = 0xFFFFFFFF  # bits of a version


@intrinsic
def _to_pointer(typing_context: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@njit(inline="always")
def pointer(address: Any) -> Any:
    """The pointer to an address."""
    return _to_pointer(address)  # pyright: ignore[reportCallIssue]: numba passes the first argument


@njit(inline="always")
def _words(address, count):
    return carray(pointer(address), (count,), np.int64)


@njit
def open_frame(frame_pointer: Any) -> Any:
    """A frame's words; empty if XLA asked for the interface's version, which is answered here."""
    frame = carray(frame_pointer, (_FRAME_WORDS,), np.int64)
    if frame[_QUERY] == 0:
        return frame
    answer = _words(_words(frame[_QUERY], _ANSWER + 1)[_ANSWER], _VERSION + 1)
    version = _words(frame[_API], _API_VERSION + 1)[_API_VERSION]
    if version & _MAJOR == 0:  # XLA refuses a function that does not answer.
        answer[_VERSION] = version
    return frame[:0]


@njit(inline="always")
def argument(frame: Any, index: int, rank: int) -> Any:
    """Address and sizes of an argument's buffer."""
    return _buffer(frame[_ARGUMENTS], index, rank)


@njit(inline="always")
def result(frame: Any, index: int, rank: int) -> Any:
    """Address and sizes of a result's buffer."""
    return _buffer(frame[_RESULTS], index, rank)


@njit(inline="always")
def _buffer(buffers, index, rank):
    buffer = _words(_words(buffers, index + 1)[index], _BUFFER_WORDS)
    return buffer[_DATA], _words(buffer[_SIZES], rank)


def register(name: str, handler: Callable[[Any], Any]) -> None:
    """Compile a function of a frame's pointer into a target of `jax.ffi.ffi_call` on CPUs.

    The compiled function is kept beside its source file, as long as that file does not change, or
    in the user's cache directory.
    """
    try:
        compiled = cfunc(_HANDLER, cache=True)(handler)
    except RuntimeError:  # Neither can be written.
        compiled = cfunc(_HANDLER)(handler)
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(compiled.ctypes), platform="cpu")
