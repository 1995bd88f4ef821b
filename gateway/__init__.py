"""An idempotency gateway: a reverse proxy that makes retries of writes safe."""

__version__ = "0.1.0"
