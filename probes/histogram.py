"""Latency histograms: the only module that knows hdrhistogram and its traps.

Everywhere the same bins (1 us to 1 h, three significant digits), so hours merge into months and
runs compare. The library drops values outside the range silently, calls the percentile of an
empty histogram 0, and reads a percentile in 5 ms; here they are clamped and counted, None, and
read by NumPy in 0.1 ms. One histogram holds 180 kB: fill one, encode it, let it go.

Where thousands are merged, the functions at the end work on bare counts, one a bin: 30 us to
decode one instead of 300.
"""

from __future__ import annotations

import math
import struct
import threading
import zlib
from collections.abc import Iterable

import numpy as np
from hdrh.codec import HdrCookieException, HdrLengthException, HdrPayload, decode
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

LOWEST_S = 1e-6
HIGHEST_S = 3600.0
_LOWEST_US = 1
_HIGHEST_US = 3_600_000_000
_DIGITS = 3
_SETTINGS = (_LOWEST_US, _HIGHEST_US, _DIGITS)

BINS = 23 * 1024
"""Number of bins: 2,048 of 1 us each, then 1,024 for every doubling."""

Counts = NDArray[np.int64]
"""One count a bin; what adds and subtracts exactly."""

_arrays = threading.local()

# Of the standard's V2 compressed form: cookie and length, then that many bytes.
_HEADER = struct.Struct(">II")
_COOKIE = 0x1C849314
# Inside, before the counts: cookie, their length, offset, digits, lowest, highest, ratio.
_PAYLOAD = struct.Struct(">IIIIQQd")
_PAYLOAD_COOKIE = 0x1C849313
# Ours, after the standard form and only when there is something to say.
_OVERFLOW = struct.Struct(">Q")


class Histogram:
    """Counts of durations; float seconds outside, integer microseconds inside.

    Attributes:
        overflow: Values outside 1 us to 1 h; each is counted at the bound it lies beyond.
    """

    def __init__(self, values: Iterable[float] = ()) -> None:
        self._hdr = HdrHistogram(*_SETTINGS)
        self.overflow = 0
        for value in values:
            self.record(value)

    @property
    def count(self) -> int:
        """Number of values recorded, those outside the range included."""
        return int(self._hdr.total_count)

    def record(self, seconds: float) -> None:
        """Count one duration.

        Raises:
            ValueError: Not a number; no measurement, so a fault of the caller.
        """
        if math.isnan(seconds):
            raise ValueError("a histogram cannot record NaN")
        if not LOWEST_S <= seconds <= HIGHEST_S:
            self.overflow += 1
            seconds = min(max(seconds, LOWEST_S), HIGHEST_S)
        self._hdr.record_value(round(seconds * 1e6))

    def merge(self, other: Histogram) -> None:
        """Add every count of `other`; the same as having recorded its values here."""
        if other.count:
            self._hdr.add(other._hdr)
        self.overflow += other.overflow

    def percentile(self, p: float) -> float | None:
        """Return the p-th percentile (0 to 100) in seconds; None when empty."""
        return self.percentiles(p)[0]

    def percentiles(self, *ps: float) -> tuple[float | None, ...]:
        """Return several percentiles from one pass; None each when empty.

        Nearest rank: the smallest bin up to which at least p % of the values lie, by its highest
        value, so never below the exact percentile and above it by less than 0.1 % (or half a
        microsecond).
        """
        if not self.count:
            return (None,) * len(ps)
        total = np.cumsum(self._counts())
        return tuple(self._highest(int(np.searchsorted(total, _rank(self.count, p)))) for p in ps)

    def fraction_at_or_below(self, seconds: float) -> float | None:
        """Return the share (0 to 1) of values up to and with `seconds`; None when empty.

        The bin that holds `seconds` counts whole: exact within 0.1 % of the threshold.
        """
        if not self.count:
            return None
        micros = round(min(seconds, HIGHEST_S) * 1e6)
        if micros < _LOWEST_US:
            return 0.0
        index = self._hdr.get_counts_array_index(micros)
        return float(self._counts()[: index + 1].sum() / self.count)

    def encode(self) -> bytes:
        """Return HdrHistogram's V2 compressed form, binary; other HDR tools read it.

        Out-of-range counts, if any, follow as eight bytes past the length the header states.
        """
        payload = self._hdr_payload()
        tail = _OVERFLOW.pack(self.overflow) if self.overflow else b""
        return _HEADER.pack(_COOKIE, len(payload)) + payload + tail

    @classmethod
    def decode(cls, data: bytes) -> Histogram:
        """Return the histogram that `encode` wrote.

        Raises:
            ValueError: Damaged bytes, or bins that are not ours and would not merge.
        """
        if len(data) < _HEADER.size or _HEADER.unpack_from(data)[0] != _COOKIE:
            raise ValueError("not an HdrHistogram in V2 compressed form")
        end = _HEADER.size + _HEADER.unpack_from(data)[1]
        if len(data) not in (end, end + _OVERFLOW.size):
            raise ValueError(f"histogram of {end} bytes in {len(data)}")
        histogram = cls()
        histogram._hdr = _decode_payload(data[_HEADER.size : end])
        if len(data) > end:
            (histogram.overflow,) = _OVERFLOW.unpack_from(data, end)
        return histogram

    def _hdr_payload(self) -> bytes:
        self._hdr.encoder.b64_wrap = False
        return bytes(self._hdr.encode())

    def _counts(self) -> NDArray[np.uint64]:
        return np.frombuffer(self._hdr.counts, dtype=np.uint64)

    def _highest(self, index: int) -> float:
        value = self._hdr.get_value_from_index(index)
        return min(int(self._hdr.get_highest_equivalent_value(value)), _HIGHEST_US) / 1e6


def _decode_payload(payload: bytes) -> HdrHistogram:
    try:
        hdr = HdrHistogram.decode(payload, b64_wrap=False)
    except (HdrCookieException, HdrLengthException, zlib.error, IndexError, ValueError) as exc:
        raise ValueError(f"damaged histogram: {exc}") from exc
    settings = (hdr.lowest_trackable_value, hdr.highest_trackable_value, hdr.significant_figures)
    if settings != _SETTINGS:
        raise ValueError(f"histogram with other bins: {settings}")
    return hdr


def count_durations(seconds: Iterable[float]) -> Counts:
    """Return the counts of durations, out-of-range ones at the bound they lie beyond.

    Raises:
        ValueError: Not a number; no measurement, so a fault of the caller.
    """
    values = np.fromiter(seconds, np.float64)
    if np.isnan(values).any():
        raise ValueError("a histogram cannot record NaN")
    micros = np.rint(np.clip(values, LOWEST_S, HIGHEST_S) * 1e6).astype(np.int64)
    return np.bincount(_bins(micros), minlength=BINS).astype(np.int64, copy=False)


def encode_counts(counts: Counts) -> bytes:
    """Return the bytes that `Histogram.encode` would; those in range, that is."""
    payload = HdrPayload(8, BINS)
    np.frombuffer(payload.counts, np.int64)[:] = counts
    header = payload.payload
    header.significant_figures = _DIGITS
    header.lowest_trackable_value, header.highest_trackable_value = _LOWEST_US, _HIGHEST_US
    header.conversion_ratio_bits = 1
    filled = np.flatnonzero(counts)
    body = bytes(payload.compress(int(filled[-1]) + 1 if len(filled) else 0))
    return _HEADER.pack(_COOKIE, len(body)) + body


def decode_counts(data: bytes) -> Counts:
    """Return the counts of an encoded histogram; what lay out of range is at the bounds.

    Raises:
        ValueError: Damaged bytes, or bins that are not ours and would not merge.
    """
    counts: Counts = np.zeros(BINS, np.int64)
    _decode_to(counts.ctypes.data, data)
    return counts


def sum_encoded(plus: Iterable[bytes], minus: Iterable[bytes] = ()) -> tuple[Counts, int]:
    """Return the counts of some encoded histograms less those of others, and their first bin.

    Bins before and after hold nothing: most of the 180 kB are never looked at.

    Raises:
        ValueError: As `decode_counts`.
    """
    total, scratch = _take_arrays()
    address = scratch.ctypes.data
    first, end = BINS, 0
    for take, encoded in ((np.add, plus), (np.subtract, minus)):
        for data in encoded:
            start, stop = _decode_to(address, data)
            if stop:
                there, counts = total[start:stop], scratch[start:stop]
                take(there, counts, out=there)
                counts.fill(0)
                first, end = min(first, start), max(end, stop)
    found = total[first:end].copy()
    total[first:end] = 0
    _arrays.both = total, scratch  # not after an error, which leaves something in them
    return found, min(first, end)


def _take_arrays() -> tuple[Counts, Counts]:
    """Return two arrays of zeros, to be given back as such: making them would cost the most."""
    kept: tuple[Counts, Counts] | None = _arrays.__dict__.pop("both", None)
    return kept or (np.zeros(BINS, np.int64), np.zeros(BINS, np.int64))


def percentiles_of(counts: Counts, *ps: float, first: int = 0) -> tuple[float | None, ...]:
    """Return several percentiles (0 to 100) in seconds; None each when empty.

    As `Histogram.percentiles`: never below the exact percentile, above it by less than 0.1 %.

    Args:
        counts: Of every bin, or of a stretch.
        ps: Percentiles.
        first: The bin of the first count.
    """
    total = counts.cumsum()
    count = int(total[-1]) if len(total) else 0
    if not count:
        return (None,) * len(ps)
    return tuple(_highest_s(first + int(np.searchsorted(total, _rank(count, p)))) for p in ps)


def count_at_or_below(counts: Counts, seconds: float, first: int = 0) -> int:
    """Return the number of values up to `seconds`; the bin that holds it counts whole."""
    micros = round(min(seconds, HIGHEST_S) * 1e6)
    if micros < _LOWEST_US:
        return 0
    last = int(_bins(np.array([micros]))[0])
    return int(counts[: max(last + 1 - first, 0)].sum())


def _decode_to(address: int, data: bytes) -> tuple[int, int]:
    """Write into counts that are all 0; return the stretch of them that may not be any more."""
    cookie, length = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0, 0)
    if cookie != _COOKIE:
        raise ValueError("not an HdrHistogram in V2 compressed form")
    end = _HEADER.size + length
    if len(data) < end:
        raise ValueError(f"histogram of {end} bytes in {len(data)}")
    try:
        payload = zlib.decompress(memoryview(data)[_HEADER.size : end])
        cookie, _, _, digits, lowest, highest, _ = _PAYLOAD.unpack_from(payload)
        if (cookie, lowest, highest, digits) != (_PAYLOAD_COOKIE, *_SETTINGS):
            raise ValueError(f"histogram with other bins: {lowest} to {highest}, {digits} digits")
        found = decode(payload, _PAYLOAD.size, address, BINS, 8)
    except (zlib.error, struct.error, IndexError) as exc:
        raise ValueError(f"damaged histogram: {exc}") from exc
    if not found["total"]:
        return 0, 0
    return found["min_nonzero_index"], found["max_nonzero_index"] + 1


def _bins(micros: Counts) -> Counts:
    """Return the bin of each value: its doubling, then its leading eleven bits."""
    doubling: Counts = np.maximum(np.frexp(micros)[1] - 11, 0).astype(np.int64)
    bins: Counts = (doubling << 10) + (micros >> doubling)
    return bins


def _highest_s(index: int) -> float:
    """Return the highest value of a bin in seconds."""
    doubling = max((index >> 10) - 1, 0)
    lowest = (index - (doubling << 10)) << doubling
    return min(lowest + (1 << doubling) - 1, _HIGHEST_US) / 1e6


def _rank(count: int, p: float) -> int:
    # The subtrahend keeps 99.9 % of 1,000 at 999, not at the 1,000 that rounding makes of it.
    return max(1, math.ceil(p * count / 100 - 1e-9))
