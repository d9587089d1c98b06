"""Telling people: wording, channels, and the outbox that delivers at least once, in order.

`words` says it, `senders` knows each kind of receiver, `outbox` tries until it is delivered.
"""

from monitor.notify.outbox import Outbox
from monitor.notify.senders import SendError, missing, refresh, send
from monitor.notify.words import About

__all__ = ["About", "Outbox", "SendError", "missing", "refresh", "send"]
