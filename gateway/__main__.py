"""The entry point of `idempotency-gateway` and `python -m gateway`: loads `cli`, and lets a Ctrl-C end that quietly."""

import signal
import sys


def main() -> int:
    """Run one command; returns the exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # While the program is being loaded there is nothing to end in order, and Python would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
