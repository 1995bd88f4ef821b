"""Several real gateways in one process, in virtual time, under a seeded scheduler, and an auditor of what they did."""
