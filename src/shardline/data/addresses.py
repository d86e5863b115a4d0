"""Address ranges into which files are mapped at chosen addresses, which Python's mmap module cannot do."""

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
    """A reserved address range, unmapped once no array refers to it.

    Attributes:
        address: first address of the range.

    Raises:
        OSError: there is no free range of this size.
    """

    def __init__(self, size: int) -> None:
        self.address = _mmap(None, size, 0, _ANONYMOUS | _MAP_NORESERVE, -1)
        self.__array_interface__ = {
            "version": 3, "shape": (size,), "typestr": "|u1", "data": (self.address, False),
        }  # fmt: skip
        weakref.finalize(self, _libc.munmap, self.address, size)


def map_file(address: int, size: int, file: int) -> None:
    """Map an open file at an address, read-only and shared with other processes.

    Raises:
        OSError: the machine's limits do not allow the mapping.
    """
    _mmap(address, size, mmap.PROT_READ, mmap.MAP_SHARED | _MAP_FIXED, file)


def map_memory(address: int, size: int) -> None:
    """Map private memory of this process at an address.

    Raises:
        OSError: the machine's limits do not allow the mapping.
    """
    _mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE, _ANONYMOUS | _MAP_FIXED, -1)


def advise(address: int, size: int, advice: int) -> int:
    """Call madvise for an address range, and return its error number or 0."""
    failed = size > 0 and _libc.madvise(address, size, advice)
    return ctypes.get_errno() if failed else 0


@cache
def huge_pages_are_kept() -> bool:
    """Return whether the kernel keeps free huge pages, instead of reporting them to a host.

    Reading and mapping a file with huge pages takes a sixth of the processor time. But in a virtual
    machine that reports free pages to its host, the first use of a huge page costs 25 us per 4 KiB,
    much more than it saves.
    """
    reporting = Path("/sys/module/page_reporting/parameters/page_reporting_order")
    with suppress(OSError, ValueError):
        return int(reporting.read_text()) in (-1, 2**32 - 1)  # reporting is off
    return True


def _mmap(address: int | None, size: int, protection: int, flags: int, file: int) -> int:
    found: int | None = quick_libc.mmap(address, size, protection, flags, file, 0)
    if found is None or found == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return found


def strides(row_bytes: int, largest: int) -> list[tuple[int, int]]:
    """Return possible distances between two files, each with the unit of row places, best first.

    At a multiple of a huge page, a file in huge pages of the page cache is mapped thirteen times as
    fast (7 against 97 ns per 4 KiB). At a multiple of the row size too, all rows form one array. If
    that needs too many addresses (rows of 10,000,001 bytes: 41 GB per file), the unit is a byte.
    """
    huge, page = HUGE_BYTES, PAGE_BYTES
    grids = [
        (math.lcm(row_bytes, huge), row_bytes), (math.lcm(row_bytes, page), row_bytes),
        (huge, 1), (page, 1),
    ]  # fmt: skip
    return [(-(-largest // grid) * grid, unit) for grid, unit in grids]
