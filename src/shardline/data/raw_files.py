"""Reads of open files by descriptor, without Python file objects or waits for the interpreter lock."""

import ctypes
import errno
import os

import numpy as np

# Calls of a microsecond keep the interpreter lock: if each call for many small shards released it,
# each would wait for the training's thread.
quick_libc = ctypes.PyDLL(None, use_errno=True)
quick_libc.mmap.restype = ctypes.c_void_p
quick_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
quick_libc.lseek.restype = ctypes.c_long
quick_libc.lseek.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int]


def size_of(file: int) -> int:
    """Return the size of an open file in bytes."""
    size: int = quick_libc.lseek(file, 0, os.SEEK_END)
    return size


def close(file: int) -> None:
    """Close a file that was opened for reading."""
    quick_libc.close(file)


def read_exactly(file: int, out: np.ndarray, start: int) -> None:
    """Fill `out` [n] uint8 with the bytes of a file from `start` on.

    Raises:
        OSError: the file cannot be read, or is too short.
    """
    done = 0
    while done < len(out):
        count = os.preadv(file, [out[done:].data], start + done)
        if not count:
            raise OSError(errno.EIO, "the file ends too early")
        done += count
