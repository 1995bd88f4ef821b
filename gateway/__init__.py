"""An idempotency gateway: a reverse proxy that makes retries of writes safe.

Each package answers one question: `core` what is true, `observe` what is reported, `store` what is remembered, `config`
what is configured, `upstream` how the service is reached, `protect` what happens to a request, `callers` how its caller
is verified, `http` how clients are served, `upkeep` what runs in the background, `events` how consumers receive events,
`deliver` how accepted requests reach the service, `admin` what operators do. `app` puts them together, `explain` says
what would become of a request, `demo` is to try it. `cli` runs the commands, and `options` is their command line.
A package imports only from those before it; the import contract in `pyproject.toml` enforces that. Each package's
docstring says what its modules do.
"""

from typing import Final

__version__ = "0.1.0"

PROGRAM: Final = "idempotency-gateway"

# The exit codes of the program; see `cli`.
EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_WRONG: Final = 2
EXIT_WORK_LEFT: Final = 3


class CommandError(Exception):
    """A command cannot be carried out. The text says why and what to do."""

    exit_code = EXIT_FAILED

    def report(self) -> str:
        """What is printed."""
        return f"{PROGRAM}: {self}"


class CommandWrong(CommandError, ValueError):
    """The command line is not a valid request. The text says what to write."""

    exit_code = EXIT_WRONG
