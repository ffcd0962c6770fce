"""Counts in the text format that Prometheus reads. Totals only: never a key, never a client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..metrics import HistogramSnapshot, MetricsSnapshot

__all__ = ["TEXT", "exposition"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"

_FAILURES = (("open", "failed_open"), ("closed", "failed_closed"), ("error", "failed_error"))


def exposition(
    counted: MetricsSnapshot, statuses: Mapping[int, int], gauges: Mapping[str, int]
) -> str:
    """Everything that `/metrics` shows."""
    lines = [*_policies(counted.policies), *_slots(counted.slots)]
    lines += _latency(counted.latency)
    lines += _family(
        "penstock_reloads_total",
        "counter",
        "Reloads of the policy file.",
        ((f'result="{result}"', count) for result, count in counted.reloads.items()),
    )
    lines += _family(
        "penstock_inline_policies",
        "gauge",
        "Inline policies in use.",
        [("", counted.inline_policies)],
    )
    lines += _family(
        "penstock_http_responses_total",
        "counter",
        "Replies of the HTTP server.",
        ((f'status="{status}"', count) for status, count in sorted(statuses.items())),
    )
    lines += _family(
        "penstock_grpc_responses_total",
        "counter",
        "Replies of the gRPC door.",
        ((f'code="{code}"', count) for code, count in sorted(counted.grpc_codes.items())),
    )
    lines += _family(
        "penstock_grpc_shed_total",
        "counter",
        "gRPC calls refused because there were too many.",
        [("", counted.grpc_shed)],
    )
    for name, value in gauges.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines += _family(f"penstock_http_{name}", kind, _GAUGES[name], [("", value)])
    return "\n".join(lines) + "\n"


_GAUGES = {
    "connections": "Open connections of the HTTP server.",
    "strangers": "Of them, those that have not shown who they are, or only probe.",
    "buffered_bytes": "Requests that are not answered, and replies that are not taken, in bytes.",
    "in_flight": "HTTP requests that wait for the store.",
    "shed_total": "HTTP requests and connections refused because there were too many.",
}


def _policies(policies: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    decisions = [
        (f'policy="{_escaped(name)}",outcome="{outcome}"', tally[outcome])
        for name, tally in policies.items()
        for outcome in ("allowed", "denied")
    ]
    errors = [(f'policy="{_escaped(name)}"', t["store_errors"]) for name, t in policies.items()]
    failures = [
        (f'policy="{_escaped(name)}",mode="{mode}"', tally[field])
        for name, tally in policies.items()
        for mode, field in _FAILURES
    ]
    yield from _family("penstock_decisions_total", "counter", "Decisions.", decisions)
    yield from _family(
        "penstock_store_errors_total", "counter", "Calls that the store failed.", errors
    )
    yield from _family(
        "penstock_failed_total", "counter", "Answers given in place of the store's.", failures
    )


_RECLAIMED = "Slots taken back from holders that fell silent."


def _slots(slots: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for field, name, kind, text in (
        ("limit", "penstock_slots_limit", "gauge", "The ceiling of requests in flight."),
        ("in_flight", "penstock_slots_in_flight", "gauge", "Slots that are held."),
        ("reclaimed", "penstock_slots_reclaimed_total", "counter", _RECLAIMED),
    ):
        samples = [(f'policy="{_escaped(policy)}"', held[field]) for policy, held in slots.items()]
        yield from _family(name, kind, text, samples)


def _latency(latency: Mapping[str, HistogramSnapshot]) -> Iterable[str]:
    if not latency:
        return
    name = "penstock_request_seconds"
    yield f"# HELP {name} From the last byte of a request to its reply."
    yield f"# TYPE {name} histogram"
    for door, histogram in latency.items():
        total = 0
        bounds = [*map(repr, histogram.bounds_s), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            yield f'{name}_bucket{{door="{door}",le="{bound}"}} {total}'
        yield f'{name}_sum{{door="{door}"}} {histogram.sum_s!r}'
        yield f'{name}_count{{door="{door}"}} {total}'


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, int]]) -> Iterable[str]:
    listed = [
        f"{name}{{{labels}}} {value}" if labels else f"{name} {value}" for labels, value in samples
    ]
    if listed:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        yield from listed


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
