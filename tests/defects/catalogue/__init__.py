"""All the defects, by what they are about."""

from __future__ import annotations

from typing import Final

from tests.defects.catalogue import claims, doubt, execution, identity, stores, wire, wiring
from tests.defects.defect import Defect

DEFECTS: Final[dict[str, Defect]] = {
    defect.name: defect
    for module in (claims, execution, doubt, identity, wire, stores, wiring)
    for defect in module.DEFECTS
}
