"""Explains requests for the console of a gateway that serves, by the configuration that it has in force.

The lines are those of the text that the console shows of it, because the file may have been changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from ipaddress import ip_address
from typing import Any

from gateway.admin.fault import CannotExplain
from gateway.admin.operations import Operations
from gateway.app.life import StartError
from gateway.config import Config, Document, Placeholders
from gateway.config.document import read_document
from gateway.config.effective import effective
from gateway.explain.dry_run import Incomplete
from gateway.explain.explaining import explain, read_record
from gateway.explain.request import RequestWrong, from_text, hop_of
from gateway.store.journal import HostJournals


class Explainer:
    """Satisfies `admin.process.Explain`, for the configuration in force."""

    def __init__(self, config: Config, operations: Operations, journals: HostJournals) -> None:
        self._config = config
        self._operations = operations
        self._journals = journals
        self._document: Document | None = None

    async def __call__(self, request: bytes, peer: str, response: int | None, with_record: bool) -> Mapping[str, Any]:
        """The explanation as JSON values. Raises `CannotExplain`, and `StoreError` where the record is not read."""
        if response is not None and not 200 <= response <= 599:
            raise CannotExplain("a status of a response is from 200 to 599")
        try:
            peer = str(ip_address(peer))
        except ValueError:
            raise CannotExplain("the address that it comes from is one such as 192.0.2.1") from None
        config = self._config
        if self._document is None:
            # In a thread: of many routes it takes long.
            text = effective(config)
            self._document = await asyncio.to_thread(read_document, text, "configuration", {}, Placeholders())
        document = self._document
        look = partial(read_record, self._operations, self._journals) if with_record else None
        try:
            given = from_text(request, "the request")
            hop = hop_of(given, peer, None)
            return (await explain(config, document, given.wire, hop, response=response, look=look)).document()
        except (RequestWrong, Incomplete, StartError) as error:
            raise CannotExplain(str(error)) from None
