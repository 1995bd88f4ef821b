"""How a caller is verified: by a token, by another service, or by its certificate. Each has a verifier.

`tokens` verifies JSON Web Tokens by a `key_set`, which gets its keys from their issuer and fetches them again when they
change. `forward_auth` asks another service. `client_certificate` reads what the TLS handshake has verified.

Entered by tokens.TokenVerifier, forward_auth.ForwardAuth, client_certificate.ClientCertificates. Imports config, core,
observe, protect, upstream.
"""
