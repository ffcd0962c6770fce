"""Claims that are proved by looking at every case: `python -m proofs.leases`."""
