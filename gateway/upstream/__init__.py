"""The upstream client: sends a request once, and returns what is known of it.

`client` is the interface; `pool` chooses a connection, `connect` opens one, `connection` is one. `request` writes,
`parser` and `response` read, `result` has the result types. `certificates` loads TLS files, for the edge too. `names`
resolves names for who asks others by aiohttp's client.
"""

from gateway.upstream.client import Duplex, Upstream, UpstreamResponse
from gateway.upstream.connect import UpstreamSettings, keep_alive, tls_context
from gateway.upstream.pool import UpstreamStats
from gateway.upstream.response import ResponseReceiver
from gateway.upstream.result import (
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
    "BodyLost",
    "Duplex",
    "FileBody",
    "Framing",
    "Lost",
    "NotSent",
    "OutboundBody",
    "ResponseReceiver",
    "SentNothing",
    "StreamBody",
    "TooLong",
    "Unknown",
    "Upstream",
    "UpstreamResponse",
    "UpstreamSettings",
    "UpstreamStats",
    "keep_alive",
    "status_of",
    "tls_context",
]
