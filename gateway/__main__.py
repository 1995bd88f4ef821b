"""The program, `idempotency-gateway` or `python -m gateway`: what there is to `cli` before it is there."""

import signal
import sys


def main() -> int:
    """Run one command; returns the exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # While the program is being loaded nothing is to be ended in order, and Python would show where it was.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gateway import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
