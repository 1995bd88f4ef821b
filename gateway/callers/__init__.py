"""How a caller is verified: by a token, by another service, or by its certificate. Each has a verifier.

`tokens` verifies JSON Web Tokens by keys that it gets from their issuer and fetches again when they change; it also
reads what the TLS handshake has verified. `forward_auth` asks another service.

Entered by tokens.TokenVerifier, tokens.ClientCertificates, forward_auth.ForwardAuth. Imports config, core, observe,
protect, store, upstream.
"""
