"""An adapter for requests. Responses are read whole, so that none ends in the middle."""

import time
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import NewConnectionError

from idempotency_client.keys import Keys
from idempotency_client.tries import SAFE, Patience, Tries


def _was_sent(error: BaseException | None) -> bool | None:
    cause = getattr(error.args[0], "reason", None) if error is not None and error.args else None
    if isinstance(error, requests.ConnectTimeout) or isinstance(cause, NewConnectionError):
        return False
    lost = requests.ConnectionError | requests.Timeout | requests.exceptions.ChunkedEncodingError
    return True if isinstance(error, lost) else None


class IdempotentAdapter(HTTPAdapter):
    """For `session.mount("https://api.example.com", ...)`."""

    def __init__(self, keys: Keys, *, patience: Patience | None = None) -> None:
        super().__init__(max_retries=0)
        self._keys, self._patience = keys, patience or Patience()

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        """Raises GaveUp, RuntimeError as for httpx, and ValueError for a body that can be read only once."""
        if request.method in SAFE:
            return super().send(request, *args, **kwargs)
        if not isinstance(request.body, bytes | str | None):
            raise ValueError("the body of an intent has to be bytes, so that each try sends the same")
        tries = Tries(self._keys, self._patience, request.headers, _was_sent)
        with tries.alone():
            while True:
                with tries:
                    response = super().send(request, *args, **kwargs)
                    if tries.is_answer(response.status_code, response.headers, response.content):
                        return response
                time.sleep(tries.pause_seconds)
