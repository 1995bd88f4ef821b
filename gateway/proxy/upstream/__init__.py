"""The upstream client: sends a request once, and tells what is known of it.

`client` is the front; `pool` and `connect` find a connection, `connection` is one, and `idle_history` knows for how
long one may rest. `request` and `sending` write, `parser` and `answer` read, `result` holds the values. Only what is
exported here is for the rest of the program.
"""

from gateway.proxy.upstream.answer import AnswerReceiver
from gateway.proxy.upstream.client import Answer, Duplex, UnderWay, Upstream
from gateway.proxy.upstream.connect import UpstreamSettings, tls_context
from gateway.proxy.upstream.pool import UpstreamStats
from gateway.proxy.upstream.result import (
    BodyLost,
    FileBody,
    Framing,
    Lost,
    NotSent,
    OutboundBody,
    SentNothing,
    StreamBody,
    TooLong,
    Unknown,
    status_of,
)

__all__ = [
    "Answer",
    "AnswerReceiver",
    "BodyLost",
    "Duplex",
    "FileBody",
    "Framing",
    "Lost",
    "NotSent",
    "OutboundBody",
    "SentNothing",
    "StreamBody",
    "TooLong",
    "UnderWay",
    "Unknown",
    "Upstream",
    "UpstreamSettings",
    "UpstreamStats",
    "status_of",
    "tls_context",
]
