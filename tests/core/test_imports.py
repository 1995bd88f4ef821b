"""What the core imports; the other walls are contracts in `pyproject.toml`, which `make lint` holds."""

from __future__ import annotations

import sys

import grimp


def test_the_core_imports_nothing_third_party_but_functions_of_bytes() -> None:
    """What the core imports is the core, comes with Python, or is a cipher, JSON or a quoted string."""
    graph = grimp.build_graph("gateway", include_external_packages=True, cache_dir=None)
    imported = {
        name
        for module in graph.find_descendants("gateway.core") | {"gateway.core"}
        for name in graph.find_modules_directly_imported_by(module)
    }
    foreign = {name for name in imported if not name.startswith("gateway.core") and name not in sys.stdlib_module_names}
    assert imported
    assert foreign == {"cryptography", "http_sf", "orjson"}
