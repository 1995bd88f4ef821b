"""Requests whose bodies have yet to come: how many there may be at once, and who gives way when all places are taken.

A place costs a client no more than a head, and a byte now and then to keep it. So these places are apart from those of
operations, and when all are taken one whose body comes too slowly loses its own to a newcomer. A body that comes at a
pace keeps its place: under a load of long uploads, what is half here must not make room for more of the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gateway.protect.reply import Cut, RequestBody, RequestCut


class NoPlace(Exception):
    """There was no place, or it was lost to another request. Nothing was done for this one."""


class Arrivals:
    """The places of one gateway process."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._bodies: set[RequestBody] = set()

    @contextmanager
    def place(self, body: RequestBody) -> Iterator[None]:
        """A place while the body is being taken. Raises `NoPlace`."""
        if len(self._bodies) >= self._places and not self._make_room():
            raise NoPlace
        self._bodies.add(body)
        try:
            yield
        except RequestCut as cut:
            if cut.cut is Cut.CROWDED_OUT:
                raise NoPlace from None
            raise
        finally:
            self._bodies.discard(body)

    def _make_room(self) -> bool:
        for body in self._bodies:
            if body.crowd_out():
                self._bodies.discard(body)
                return True
        return False
