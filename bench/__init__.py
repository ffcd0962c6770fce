"""Benchmarks: Penstock next to its peers, in one run. `python -m bench --help` says how."""
