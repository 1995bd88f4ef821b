"""One key for one intent: kept over restarts of the caller, repeated by a table, stopped at doubt.

An intent has its key on the disk before the first byte is sent. After each try `table` says whether the same request
goes out again under the same key. What comes back is the answer; otherwise `GaveUp` says what is known. `table` and
`tries` decide and do no I/O, `keys` keeps, `httpx` and `requests` send and wait.
"""

from idempotency_client.keys import FileKeys, Keys, New
from idempotency_client.table import Known
from idempotency_client.tries import GaveUp, Patience, intent

__all__ = ["FileKeys", "GaveUp", "Keys", "Known", "New", "Patience", "intent"]
