"""Counts in the text format that Prometheus reads. Totals only: never a key, never a client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ...core.store import COUNTED, STATS
from ..metrics import HistogramSnapshot, MetricsSnapshot, Tally

__all__ = ["TEXT", "exposition", "policy_lines"]

TEXT = "text/plain; version=0.0.4; charset=utf-8"


def exposition(
    counted: MetricsSnapshot, statuses: Mapping[int, int], gauges: Mapping[str, int]
) -> str:
    """Everything that `/metrics` shows."""
    policies = {
        name: tuple(counts[field] for field in Tally.__slots__)
        for name, counts in counted.policies.items()
    }
    lines = [*policy_lines(policies), *_slots(counted.slots), *_stores(counted.stores)]
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
        "Replies of the gRPC server.",
        ((f'code="{code}"', count) for code, count in sorted(counted.grpc_codes.items())),
    )
    lines += _family(
        "penstock_grpc_shed_total",
        "counter",
        "gRPC calls refused because there were too many.",
        [("", counted.grpc_shed)],
    )
    lines += _family(
        "penstock_foreign_clocks_total",
        "counter",
        "Requests denied for a stored instant that only a clock ahead of ours can have written.",
        [("", counted.foreign_clocks)],
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


def policy_lines(counted: Mapping[str, tuple[int, ...]]) -> Iterator[str]:
    """What was counted for each policy, as `Tally.counts` gives it: by far the longest part where
    there are many."""
    labels = {name: f'policy="{_escaped(name)}"' for name in counted}
    for name, text, each in _PER_POLICY:
        samples = (
            (labels[policy] + more, counts[at])
            for policy, counts in counted.items()
            for more, at in each
        )
        yield from _family(name, "counter", text, samples)


def _at(field: str) -> int:
    return Tally.__slots__.index(field)


_PER_POLICY = (
    (
        "penstock_decisions_total",
        "Decisions.",
        [(f',outcome="{outcome}"', _at(outcome)) for outcome in ("allowed", "denied")],
    ),
    (
        "penstock_store_errors_total",
        "Calls that the store failed.",
        [(f',reason="{reason}"', _at(f"store_{reason}")) for reason in ("away", "full")],
    ),
    (
        "penstock_failed_total",
        "Answers given in place of the store's.",
        [(f',mode="{mode}"', _at(f"failed_{mode}")) for mode in ("open", "closed", "error")],
    ),
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


def _stores(stores: Mapping[str, Mapping[str, int]]) -> Iterable[str]:
    for field, text in STATS.items():
        kind = "counter" if field in COUNTED else "gauge"
        name = f"penstock_store_{field}" + "_total" * (kind == "counter")
        samples = [
            (f'store="{_escaped(store)}"', told[field])
            for store, told in stores.items()
            if field in told
        ]
        yield from _family(name, kind, text, samples)


def _latency(latency: Mapping[str, HistogramSnapshot]) -> Iterable[str]:
    if not latency:
        return
    name = "penstock_request_seconds"
    yield f"# HELP {name} From the last byte of a request to its reply."
    yield f"# TYPE {name} histogram"
    for server, histogram in latency.items():
        total = 0
        bounds = [*map(repr, histogram.bounds_s), "+Inf"]
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            yield f'{name}_bucket{{server="{server}",le="{bound}"}} {total}'
        yield f'{name}_sum{{server="{server}"}} {histogram.sum_s!r}'
        yield f'{name}_count{{server="{server}"}} {total}'


def _family(name: str, kind: str, text: str, samples: Iterable[tuple[str, int]]) -> Iterable[str]:
    described = False
    for labels, value in samples:
        if not described:
            described = True
            yield f"# HELP {name} {text}"
            yield f"# TYPE {name} {kind}"
        yield f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
