"""Latency histograms: the only module that knows hdrhistogram and its traps.

Everywhere the same bins (1 us to 1 h, three significant digits), so hours merge into months and
runs compare. The library drops values outside the range silently, calls the percentile of an
empty histogram 0, and reads a percentile in 5 ms; here they are clamped and counted, None, and
read by NumPy in 0.1 ms. One histogram holds 180 kB: fill one, encode it, let it go.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterable

import numpy as np
from hdrh.codec import HdrCookieException, HdrLengthException
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

LOWEST_S = 1e-6
HIGHEST_S = 3600.0
_LOWEST_US = 1
_HIGHEST_US = 3_600_000_000
_DIGITS = 3
_SETTINGS = (_LOWEST_US, _HIGHEST_US, _DIGITS)

# Of the standard's V2 compressed form: cookie and length, then that many bytes.
_HEADER = struct.Struct(">II")
_COOKIE = 0x1C849314
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
        return tuple(self._highest(int(np.searchsorted(total, self._rank(p)))) for p in ps)

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

    def _rank(self, p: float) -> int:
        # The subtrahend keeps 99.9 % of 1,000 at 999, not at the 1,000 that rounding makes of it.
        return max(1, math.ceil(p * self.count / 100 - 1e-9))

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
