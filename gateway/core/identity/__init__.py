"""Which operation a request is about, and whether it is the same request as before.

`key` and `scope` make the `operation_id`; a scope may be taken from a `token` or a client's `certificate`.
`fingerprint` compares requests by the `canonical` forms of their bodies, with `media` for media types and `pointer` for
JSON Pointers. It finds in what two requests differ, too, and makes the digest by which a repeat under another key is
recognised.
"""
