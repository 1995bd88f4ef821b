"""Gateways that accept requests and are killed: what got a 202 is delivered once, or is in doubt and says so.

`python -m tests.integration.accepting --kills 200`. See `lanes`: here nothing is in order. No request has an effect
twice, none that was accepted is lost, and what is in doubt has begun to arrive and is found by its status URL; one in
fifty kills that leaves a doubt of which nothing arrived is let pass, and one more; one in two hundred was seen.
"""

from __future__ import annotations

import sys
from functools import partial

from tests.integration.lanes import deliver_under_kills
from tests.support import long_run

accept_under_kills = partial(deliver_under_kills, is_ordered=False, has_consumer=False)

if __name__ == "__main__":
    sys.exit(long_run.main("accepting", __doc__, accept_under_kills, kills=200))
