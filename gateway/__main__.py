"""The entry point of `idempotency-gateway` and `python -m gateway`: loads `cli`; a Ctrl-C meanwhile ends it quietly."""

import signal
import sys


def main() -> int:
    """Run one command; returns the exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # While the program loads there is nothing to shut down, and Python would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
