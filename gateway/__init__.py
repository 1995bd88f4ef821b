"""An idempotency gateway: a reverse proxy that makes retries of writes safe."""

from typing import Final

__version__ = "0.1.0"

PROGRAM: Final = "idempotency-gateway"

# The exit codes of the program; see `cli`.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_WORK_LEFT: Final = 3
