"""The upstream client: sends a request once, and tells what is known of it.

`client` is the front; `pool` and `connect` find a connection, `connection` is one, and `idle_history` knows for how
long one may rest. `request` and `sending` write, `parser`, `chunks` and `answer` read, `result` holds the values.
`certificates` reads the files for TLS, and `keepalive` finds silent ends that have gone; the edge uses both.
"""

from gateway.upstream.answer import AnswerReceiver
from gateway.upstream.client import Answer, Duplex, Upstream
from gateway.upstream.connect import UpstreamSettings, tls_context
from gateway.upstream.pool import UpstreamStats
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
    "Unknown",
    "Upstream",
    "UpstreamSettings",
    "UpstreamStats",
    "status_of",
    "tls_context",
]
