"""Which operation a request is about, and whether it is the same request as before.

`key` makes the operation id of a scope and a key; a scope may be taken from the token or the certificate of the
`caller`. `fingerprint` compares requests by the canonical forms of their `body`. It finds in what two requests
differ, too, and makes the digest by which a repeat under another key is recognised.
"""
