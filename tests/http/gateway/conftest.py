"""The stores that the rows of the verdict and outcome tables are shown on: all on SQLite, and those in which the store
has a say on the others, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.house import store_section

# What is claimed, kept, found again or shared by way of the store. Other rows are the same code on each store, which
# the suite of all stores holds to one contract; on Postgres and Redis they are left to `make proof`.
_OF_THE_STORE = {
    # Verdicts.
    "test_rule_8_store_unavailable", "test_rule_9_key_reused", "test_rule_10_replayed",
    "test_rule_11_response_not_stored", "test_rule_12_key_expired", "test_rule_13_in_flight", "test_rule_14_in_doubt",
    "test_rule_15_herd", "test_scopes_never_meet",
    # Outcomes.
    "test_client_disconnect_cancels_nothing", "test_later_attempt_at_the_door_keeps_the_fingerprint",
    "test_nothing_sent", "test_too_long_is_recorded_before_its_first_byte",
    "test_upstream_declares_outcome_and_retention", "test_waiters_of_a_failing_request_do_not_run_it",
    "test_waiters_of_a_forgotten_request_share_nothing",
    # Doubt.
    "test_a_late_answer_wins_over_a_probe", "test_a_probe_that_is_configured_later_resolves_older_doubts",
    "test_a_service_sends_nothing_of_another_again", "test_one_prober_at_a_time",
    "test_probe_finds_what_happened", "test_resend_runs_once_for_a_herd", "test_resend_takes_over",
    # What a store remembers of a configuration, and of contents.
    "test_a_fingerprint_key_that_is_lost", "test_a_rename_that_is_accepted", "test_a_renamed_route_is_refused",
    "test_accepted_requests_hold_their_content", "test_another_identity_key",
    "test_check_says_what_a_start_would_say", "test_enforcing_starts_with_no_memory",
    "test_repeats_are_counted_and_executed", "test_the_numbers_are_the_client_s",
    "test_twenty_keys_through_two_gateways_have_one_effect",
    # What is kept of a caller, and how.
    "test_a_key_that_is_another_one_under_its_id", "test_a_rotation", "test_nothing_of_a_token_is_kept",
    "test_only_the_first_request_gets_the_values", "test_resource_is_kept_by_every_store",
    "test_switched_on_in_a_living_store", "test_who_has_the_key_replays",
}  # fmt: skip


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave to `make proof` what is the same on every store."""
    if (
        isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("store", "sqlite") in ("postgres", "postgres-redis")
        and item.originalname not in _OF_THE_STORE
    ):
        item.add_marker(pytest.mark.full)


@pytest.fixture(params=["sqlite", "postgres", "postgres-redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    """The `store` section of a configuration, on an empty store."""
    return store_section(request, tmp_path)
