"""A small OpenAI-compatible endpoint with known times and faults, to measure ourselves against.

Every event and JSON answer carries two readings of this machine's monotonic clock: `read_ns`,
when the request's last byte was read, and `sent_ns`, taken just before the event was written.
`python -m probes.reference` runs it by itself, `async with Reference() as reference` in a loop.
"""

from probes.reference.behavior import Behavior, Fault
from probes.reference.server import Reference

__all__ = ["Behavior", "Fault", "Reference"]
