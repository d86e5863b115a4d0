"""Ranges of addresses that files are mapped into, at places of our choice; Python's mmap module cannot do that."""

import ctypes
import math
import mmap
import os
import weakref
from contextlib import suppress
from functools import cache
from pathlib import Path

from shardline.data.raw_files import quick_libc

PAGE_BYTES, HUGE_BYTES = mmap.PAGESIZE, 2 << 20
# mman.h of Linux
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000
WILLNEED, HUGEPAGE, POPULATE_READ = 3, 14, 22
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

_libc = ctypes.CDLL(None, use_errno=True)
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Reservation:
    """An address range, given back with all that lies in it when no array refers to it.

    Attributes:
        address: where it begins.

    Raises:
        OSError: there is no such range.
    """

    def __init__(self, size: int) -> None:
        self.address = _mmap(None, size, 0, _ANONYMOUS | _MAP_NORESERVE, -1)
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": (self.address, False),
        }  # fmt: skip
        weakref.finalize(self, _libc.munmap, self.address, size)


def map_file(address: int, size: int, file: int) -> None:
    """Map an open file there, to be read by all processes that map it.

    Raises:
        OSError: the machine's limits do not allow it.
    """
    _mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, file)


def map_memory(address: int, size: int) -> None:
    """Put memory of this process there.

    Raises:
        OSError: the machine's limits do not allow it.
    """
    _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, _ANONYMOUS | _MAP_FIXED, -1)


def advise(address: int, size: int, advice: int) -> int:
    """Tell the kernel what will be done with a range, and return the number of its error, or 0."""
    failed = size > 0 and _libc.madvise(address, size, advice)
    return ctypes.get_errno() if failed else 0


@cache
def huge_pages_are_kept() -> bool:
    """Return whether this machine has its free huge pages for itself.

    A file that is read into huge pages is read and mapped at a sixth of the processor's time. Where
    the kernel reports free pages to the host of a virtual machine, these are huge pages first, and
    the first use of each costs 25 us per 4 KiB, much more than it saves.
    """
    reporting = Path("/sys/module/page_reporting/parameters/page_reporting_order")
    with suppress(OSError, ValueError):
        return int(reporting.read_text()) in (-1, 2**32 - 1)  # nobody has asked for reports
    return True


def _mmap(address: int | None, size: int, protection: int, flags: int, file: int) -> int:
    found: int | None = quick_libc.mmap(address, size, protection, flags, file, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def strides(row_bytes: int, largest: int) -> list[tuple[int, int]]:
    """Return distances of two files with the unit in which rows' places are counted, best first.

    A file that begins at a multiple of a huge page is mapped by huge pages where the page
    cache holds it so: thirteen times as fast, 7 ns for 97 per 4 KiB. At a multiple of the
    row size too, rows are those of one array. Where that would use up the addresses (rows
    of 10,000,001 bytes: 41 GB a file), places are counted in bytes.
    """
    huge, page = HUGE_BYTES, PAGE_BYTES
    grids = [
        (math.lcm(row_bytes, huge), row_bytes), (math.lcm(row_bytes, page), row_bytes),
        (huge, 1), (page, 1),
    ]  # fmt: skip
    return [(-(-largest // grid) * grid, unit) for grid, unit in grids]
