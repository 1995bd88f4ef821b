"""`python -m gateway`: the same as the program `idempotency-gateway`."""

import sys

from gateway.cli import main

sys.exit(main())
