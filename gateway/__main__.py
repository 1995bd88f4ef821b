"""The entry point of `idempotency-gateway` and `python -m gateway`: loads `cli`. Meanwhile a Ctrl-C ends it
quietly, and a SIGHUP waits.
"""

import signal
import sys


def main() -> int:
    """Run one command; returns the exit code."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        # While the program loads there is nothing to shut down, and Python would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Not until a gateway listens to it would it be a reload and no end. Commands that never do let it through.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    from gateway import cli

    signal.signal(signal.SIGINT, before)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
