"""The messages of `throttlekit.v1`, and conversions between them and decisions."""

from __future__ import annotations

from ..core._decision import Decision, DegradedDecision, DegradedForecast, Forecast
from .proto import rate_limiter_pb2 as pb

__all__ = ["decision_message", "decision_of", "fill", "forecast_message", "forecast_of"]


def fill(message: pb.Decision, decision: Decision) -> None:
    """Copy a decision into a message that is part of another: no second message is made."""
    message.allowed = decision.allowed
    message.limit = decision.limit
    message.remaining = decision.remaining
    message.reset_at = decision.reset_at
    message.retry_after_ms = decision.retry_after_ms
    if type(decision) is not Decision:
        message.degraded = decision.degraded or ""


def decision_message(decision: Decision) -> pb.Decision:
    message = pb.Decision()
    fill(message, decision)
    return message


def decision_of(message: pb.Decision) -> Decision:
    decision = Decision(
        message.allowed,
        message.limit,
        message.remaining,
        message.reset_at,
        message.retry_after_ms,
    )
    return DegradedDecision.of(message.degraded, decision) if message.degraded else decision


def forecast_message(forecast: Forecast) -> pb.Forecast:
    return pb.Forecast(
        spendable_now=forecast.spendable_now,
        next_replenish_at=forecast.next_replenish_at,
        full_at=forecast.full_at,
        degraded=forecast.degraded,
    )


def forecast_of(message: pb.Forecast) -> Forecast:
    forecast = Forecast(message.spendable_now, message.next_replenish_at, message.full_at)
    return DegradedForecast(message.degraded, forecast) if message.degraded else forecast
