"""The upstream client: sends a request once, and returns what is known of it.

`client` is the interface, chooses a connection and writes the head; `connect` opens one, and loads certificates for the
edge, too; `connection` is one, reads responses, and has the types of what is known of an exchange.

Entered by client.Upstream.exchange. Imports core.
"""

from gateway.upstream.client import Upstream, UpstreamResponse, UpstreamStats
from gateway.upstream.connect import UpstreamSettings, keep_alive, tls_context
from gateway.upstream.connection import (
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
    "FileBody",
    "Framing",
    "Lost",
    "NotSent",
    "OutboundBody",
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
