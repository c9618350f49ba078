"""The ids behind a token file: held in memory, or, of a file too large for that, in one memory map kept open.

A map opened once makes a batch one gather, as from memory, where `pread` costs a system call a row. Its two dangers
are met here: the process would grow with all it has touched, and a file cut short underneath would be a bus error.
"""

from __future__ import annotations

import mmap
import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_ROWS_AT_ONCE = 256
_AROUND_BYTES = 64 << 10  # what Linux maps around a page that is touched, where the pages are cached
_MAPPED_BYTES = 128 << 20  # touched since pages were last given back


class CutShortError(Exception):
    """The file holds less than when it was opened."""


class HeldIds:
    """Ids [N] in memory, read only."""

    def __init__(self, ids: NDArray[Any]) -> None:
        ids.setflags(write=False)
        self.ids = ids
        self._windows: dict[int, NDArray[Any]] = {}

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Ids [stop - start], a view."""
        return self.ids[start:stop]

    def rows(self, starts: list[int], size: int) -> NDArray[Any]:
        """A copy of ids [B, size] from each place in `starts` [B] on."""
        if size not in self._windows:
            self._windows[size] = sliding_window_view(self.ids, size)
        return self._windows[size][starts]

    def close(self) -> None:
        """Nothing is open."""


class MappedIds(HeldIds):
    """`count` ids of `dtype` from byte `offset` of a file on.

    Raises OSError where the file cannot be mapped and CutShortError, from here and from both ways of reading, where
    it holds less than that.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any], count: int, offset: int) -> None:
        self._file = FileIO(path)
        self._handle = self._file.fileno()
        self._offset = offset
        self._bytes = offset + count * dtype.itemsize
        self._expect_whole()
        self._map = mmap.mmap(self._handle, self._bytes, prot=mmap.PROT_READ)
        self._map.madvise(mmap.MADV_RANDOM)  # rows lie anywhere: reading ahead would fetch what nobody asks for
        self._touched = 0
        super().__init__(np.frombuffer(self._map, dtype, count, offset))

    def _expect_whole(self) -> None:
        if os.lseek(self._handle, 0, os.SEEK_END) < self._bytes:
            raise CutShortError

    def _admit(self, rows: int, row_bytes: int) -> None:
        """Before rows are touched: the file is still whole, and what was touched before does not pile up."""
        self._expect_whole()
        self._touched += rows * (row_bytes + _AROUND_BYTES)
        if self._touched > _MAPPED_BYTES:
            self._map.madvise(mmap.MADV_DONTNEED)  # they stay in the page cache, and are no longer ours
            self._touched = 0

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """A copy of ids [stop - start], read only, that outlives the map."""
        width = self.ids.itemsize
        data = os.pread(self._handle, (stop - start) * width, self._offset + start * width)
        if len(data) != (stop - start) * width:
            raise CutShortError
        return np.frombuffer(data, self.ids.dtype)

    def rows(self, starts: list[int], size: int) -> NDArray[Any]:
        """A copy of ids [B, size] from each place in `starts` [B] on."""
        if len(starts) > _ROWS_AT_ONCE:
            cuts = range(0, len(starts), _ROWS_AT_ONCE)
            return np.concatenate([self.rows(starts[cut : cut + _ROWS_AT_ONCE], size) for cut in cuts])
        self._admit(len(starts), size * self.ids.itemsize)
        return super().rows(starts, size)

    def close(self) -> None:
        """Close the file; the map itself goes with the last view of it."""
        self._file.close()
