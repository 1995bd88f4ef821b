"""The wire to callers: bytes become requests, and replies become bytes.

`server` listens, `listening` says why it cannot, `handshakes` are those of TLS, and `settings` has the limits.
`connection` is one connection from a client. It reads with `request_parser`, and `body` is a request body that still
arrives. `request_handler` gives each request to the part that answers it, once `examining` has looked whether it is
ambiguous. `exchange` writes the reply, which `writer` turns into bytes; `delivery` and `unread` bound what slow readers
hold. `passthrough` forwards what no route protects, as a `tunnel` after an upgrade.
"""
