"""The messages and calls of the wire's protos, made by `python -m tools.wire.protos`.

They live in a descriptor pool of their own. A process that also holds another copy of the same
protos, as a client of the same contract would, can load both: neither sees the other.
"""

from __future__ import annotations

from google.protobuf.descriptor_pool import DescriptorPool

__all__ = ["POOL"]

POOL = DescriptorPool()
