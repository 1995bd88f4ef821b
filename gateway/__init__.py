"""An idempotency gateway: a reverse proxy that makes retries of writes safe.

Each package answers one question: `core` what is true, `observe` what is told, `store` what is remembered, `config`
what was asked for, `upstream` how the service is reached, `protect` what happens to a request, `http` how callers are
served, `upkeep` what happens by itself, `admin` what operators do. `app` puts them together, `demo` and `cli` start it.
A package imports from those before it alone, which the import contract in `pyproject.toml` holds. What is where in a
package stands in its first lines.
"""

from typing import Final

__version__ = "0.1.0"

PROGRAM: Final = "idempotency-gateway"

# The exit codes of the program; see `cli`.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_WORK_LEFT: Final = 3
