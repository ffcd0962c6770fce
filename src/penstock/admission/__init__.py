"""One question for all limits: may this request begin?

For example::

    admission = AdmissionControl(
        concurrency=ConcurrencyLimiter(), rate=rate_limit("100/minute"), budget=None
    )
    admitted = admission.admit("alice")
    if admitted:
        try:
            serve()
        finally:
            admission.release(admitted.lease_id)
"""

from __future__ import annotations

from ..core._decision import combine
from ._control import AXES, Admission, AdmissionControl, AxisRequest

__all__ = ["AXES", "Admission", "AdmissionControl", "AxisRequest", "combine"]
