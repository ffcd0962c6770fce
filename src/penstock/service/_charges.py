"""Charges of the service, which any worker of any node can settle.

A client holds the id of a charge, and may send it to a worker that has never seen the charge. So
the id contains what was charged: the policy, the plan, and the key, the units, the form of the
counts and the figures of each limit. So a charge releases what it took, whatever the figures are
when it is settled. And there is a record of it (`_charge_records.py`), written in the same step as
the charge:

    <the file's prefix>:<policy>:charge:<nonce of the id>

The settlement removes the record, in one step with the refund. So a charge is settled once, however
often and wherever that is asked for. An id without a record is that of a charge that was settled,
whose record has expired, or that was never made: there is nothing to settle.

By which instant units are refunded (`Strategy.counted_at`), and which shadows were not charged, is
known only when the store has answered, and the record is written in the step that decides them. So
they are in the id too, and the id ends with a seal: a message authentication code of the whole, by
a secret that only the record holds. An id that was altered in any place is refused.

`Charging` is the part of the service that reserves and settles by policy and key.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from ..core._charges import Charge, Part, Settlement
from ..core._clock import Clock
from ..core._decision import Decision
from ..core._errors import ConfigInvalidError, QueueFullError
from ..core._reserving import Answer, areserved
from ..core._steps import PoolRenewals, Step
from ..core._store import Store
from ..core._validation import MAX_SPAN_MS, reject, require_cost, require_int, require_key
from ..core._verdict import Verdict
from ..leasing import TwoTierLimiter
from ._charge_records import (
    MAX_OPEN,
    RecordState,
    closing,
    life_of,
    new_secret,
    opening,
    reading,
    records_beside,
)
from ._deciding import joined
from ._entries import Entry
from ._judging import Judge, Judgement
from ._registry import PolicyTable
from ._several import Attributes, Costs, Request

__all__ = [
    "ChargeTerms",
    "ChargedUnits",
    "Charges",
    "Charging",
    "Reservation",
    "SealedId",
    "charge_id",
    "read_charge_id",
]


_MAX_ID = 1 << 17
_NOT_AN_ID = "this is not a charge id; pass the charge_id that reserve returned, unchanged"

_UNCHARGED = "x"
"""In the place of an offset."""
_EARLIER = "e"
"""Before an offset, as its sign."""


class ChargedUnits(NamedTuple):
    """What was charged to one limit. `limit` is empty for a policy with a single limit; `form` is
    that of its counts, and `figures` are the values by which it was charged and is settled
    (`Strategy.figure_values`)."""

    limit: str
    key: str | None
    units: int
    form: str
    figures: tuple[Any, ...]


class ChargeTerms(NamedTuple):
    """The content of a charge id. `nonce` tells charges with the same content apart. An offset is
    how much later than the charge the instant is by which a limit is refunded, None for a shadow
    that would have denied, and so was not charged."""

    policy: str
    plan: str | None
    held: tuple[ChargedUnits, ...]
    nonce: str
    offsets_ms: tuple[int | None, ...] = ()

    @classmethod
    def new(cls, policy: str, plan: str | None, held: Sequence[ChargedUnits]) -> ChargeTerms:
        return cls(policy, plan, tuple(held), secrets.token_hex(12))

    @property
    def slot_id(self) -> str:
        """The id under which its slots are held. It begins with a letter, so that it never looks
        like a number."""
        return f"s{self.nonce}"

    @property
    def body(self) -> str:
        """Everything except the offsets, as text."""
        told = [self.policy, self.plan, [list(each) for each in self.held], self.nonce]
        packed = json.dumps(told, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(packed).decode().rstrip("=")


class SealedId(NamedTuple):
    """A charge id that a client has sent: `text` describes the charge, and `seal` authenticates
    it."""

    text: str
    seal: str

    @classmethod
    def of(cls, charge_id: object) -> SealedId:
        """Raises `config_invalid` if it cannot be a charge id."""
        if not isinstance(charge_id, str) or len(charge_id) > _MAX_ID or not charge_id.isascii():
            reject(_NOT_AN_ID)
        text, _, seal = charge_id.rpartition(".")
        return cls(text, seal)

    def require(self, secret: str) -> None:
        """Raise `config_invalid` if it was not sealed by this secret."""
        if not hmac.compare_digest(self.seal, _seal(self.text, secret)):
            reject(_NOT_AN_ID)


def _seal(text: str, secret: str) -> str:
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()[:32]


def charge_id(terms: ChargeTerms) -> str:
    """The id, without its seal."""
    offsets = "-".join(map(_offset_text, terms.offsets_ms))
    return f"{terms.body}.{offsets}" if offsets.strip("0-") else terms.body


def _offset_text(offset: int | None) -> str:
    if offset is None:
        return _UNCHARGED
    return f"{_EARLIER}{-offset}" if offset < 0 else str(offset)


def read_charge_id(text: object) -> ChargeTerms:
    """The content of a charge id without its seal. Raises `config_invalid` if it is not one."""
    if not isinstance(text, str) or not text or len(text) > _MAX_ID or not text.isascii():
        reject(_NOT_AN_ID)
    body, _, offsets = text.partition(".")
    try:
        packed = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4))
        policy, plan, held, nonce = json.loads(packed)
        terms = ChargeTerms(
            policy,
            plan,
            tuple(ChargedUnits(*each) for each in held),
            nonce,
            tuple(map(_offset, offsets.split("-"))) if offsets else (0,) * len(held),
        )
    except (ValueError, TypeError, RecursionError, binascii.Error):
        reject(_NOT_AN_ID)
    if terms.body != body or not _is_sound(terms):
        reject(_NOT_AN_ID)
    return terms


def _offset(told: str) -> int | None:
    if told == _UNCHARGED:
        return None
    return -int(told[1:]) if told.startswith(_EARLIER) else int(told)


def _is_sound(terms: ChargeTerms) -> bool:
    told = [text for each in terms.held for text in (each.limit, each.form)]
    return (
        all(isinstance(text, str) for text in (terms.policy, terms.nonce, *told))
        and (terms.plan is None or isinstance(terms.plan, str))
        and all(type(each.units) is int and each.units >= 0 for each in terms.held)
        and all(each.key is None or isinstance(each.key, str) for each in terms.held)
        and all(isinstance(each.figures, list) for each in terms.held)
        and len(terms.offsets_ms) == len(terms.held)
        and all(map(_is_offset, terms.offsets_ms, terms.held))
    )


def _is_offset(offset: int | None, held: ChargedUnits) -> bool:
    # The only limit of a policy is no shadow.
    return bool(held.limit) if offset is None else abs(offset) <= MAX_SPAN_MS


class Charges:
    """Reserves and settles charges in one store, under one prefix. `records` is where their records
    are: in that store, or in a table of this process beside one that is there too."""

    def __init__(self, store: Store, records: Store, now: Callable[[], int], prefix: str) -> None:
        self._store = store
        self._records = records
        self._now = now
        self._prefix = prefix

    async def reserve(
        self, terms: ChargeTerms, parts: Sequence[Part], max_wait_ms: int, answer: Answer
    ) -> tuple[Charge, str]:
        """Charge the cost of the parts, all or nothing, and write the record. The id is empty after
        a denial. Raises `queue_full` if a key has too many open charges."""
        secret = new_secret()
        record, counts = self._record(terms), self._counts(terms)
        opened = opening(record, counts, life_of(parts), secret)
        is_apart = self._records is not self._store
        if is_apart:
            _require_admitted(terms, opened, await self._records.aapply_all(opened, self._now()))
        charge: Charge | None = None
        try:
            charge = await areserved(
                self._store,
                self._now,
                parts,
                max_wait_ms,
                answer,
                slot_id=terms.slot_id,
                also=() if is_apart else opened,
                told_also=partial(_require_admitted, terms, opened),
            )
        finally:
            if is_apart and (charge is None or not charge.allowed):
                await self._records.aapply_all(closing(record, counts, self._now()), self._now())
        if not charge.allowed:
            return charge, ""
        text = charge_id(terms._replace(offsets_ms=_offsets_of(charge, parts)))
        return charge, f"{text}.{_seal(text, secret)}"

    async def settle(
        self,
        sealed: SealedId,
        terms: ChargeTerms,
        parts: Sequence[Part],
        actual: int | Mapping[str, int] | None,
    ) -> Settlement:
        """Replace the reserved cost by the actual one, or refund all of it for None. Not settled if
        there is nothing to settle."""
        record = await self._find(sealed, terms)
        if record is None:
            return Settlement(False)
        charge = self._charge(terms, parts, record.at)
        steps = charge.refunds() if actual is None else charge.settlement(actual)
        # Whether the record is still there is decided in the step that removes it.
        closed = closing(self._record(terms), self._counts(terms), record.at)
        if self._records is self._store:
            first, *told = await self._store.aapply_all([*closed, *steps], self._now())
            told = told[len(closed) - 1 :]
        else:
            first, *told = await self._records.aapply_all(closed, self._now())
            told = await self._store.aapply_all(steps, self._now()) if first and steps else []
        if not first:
            return Settlement(False)
        return Settlement(True, charge.uncharged_by(steps, told))

    async def renew(self, sealed: SealedId, terms: ChargeTerms, parts: Sequence[Part]) -> bool:
        """Hold its slots for another ttl. False if they have expired or were given back."""
        record = await self._find(sealed, terms)
        if record is None:
            return False
        pools = PoolRenewals(self._charge(terms, parts, record.at).held())
        if not pools.steps:
            reject("this charge holds no slots, so there is nothing to renew")
        told = await self._store.aapply_all(pools.steps, self._now())
        return all(each.allowed for each in pools.answers(told))

    async def _find(self, sealed: SealedId, terms: ChargeTerms) -> RecordState | None:
        """The record of a charge; None if it was settled, has expired, or was never made."""
        record = await self._records.aapply(self._record(terms), reading, self._now(), 1)
        if record is not None:
            sealed.require(record.secret)
        return record

    def _charge(self, terms: ChargeTerms, parts: Sequence[Part], at: int) -> Charge:
        """The charge as it was made, without limits that the policy no longer has."""
        charged = [offset is not None for offset in terms.offsets_ms]
        told = tuple([Decision(each, 1, 0, at, 0 if each else 1) for each in charged])
        names = tuple([part.name for part in parts])
        shadows = tuple([not each for each in charged])
        answer = told[0] if names == ("",) else Verdict(names, told, shadows)
        pairs = zip(terms.offsets_ms, parts, strict=True)
        counted_at = tuple(
            [at + (offset or 0) * part.strategy.books_ahead for offset, part in pairs]
        )
        delays = (0,) * len(parts)
        return Charge(
            self._store,
            self._now,
            parts,
            answer,
            (at,),
            delays,
            terms.slot_id,
            counted_at=counted_at,
        )

    def _record(self, terms: ChargeTerms) -> str:
        return joined(self._prefix, terms.policy, "charge", terms.nonce)

    def _counts(self, terms: ChargeTerms) -> list[str]:
        """The keys under which open charges are counted: one for each limit with a key."""
        lead = joined(self._prefix, terms.policy, "open")
        return [f"{lead}:{held.limit}:{held.key}" for held in terms.held if held.key is not None]


def _require_admitted(terms: ChargeTerms, opened: Sequence[Step], told: Sequence[Any]) -> None:
    """Raise `queue_full` if a step that opens the charge has denied."""
    if not all(step.transform.admits(each) for step, each in zip(opened, told, strict=True)):
        raise QueueFullError(
            f"a key of this request has {MAX_OPEN:,} open charges of policy {terms.policy!r}: "
            "settle or cancel charges when their work is done, or use check if the cost is known"
        )


def _offsets_of(charge: Charge, parts: Sequence[Part]) -> tuple[int | None, ...]:
    """The offset of each part; None for what a shadow did not take."""
    decisions = (charge.decision,) if charge.verdict is None else charge.verdict.decisions
    each = zip(parts, charge.counted_at, charge.instants, decisions, strict=True)
    return tuple(
        [
            (counted_at - at) * part.strategy.books_ahead if told.allowed else None
            for part, counted_at, at, told in each
        ]
    )


class Reservation(NamedTuple):
    """The result of `reserve`: the decision, or the judgement of several limits; the id of the
    charge, empty if nothing was reserved; when it was decided, and from when on the units may be
    used; and how long slots last without being renewed, 0 if the charge has none."""

    answer: Decision | Judgement
    charge_id: str
    charged_at: int
    starts_at: int
    ttl_ms: int

    @classmethod
    def of(
        cls, answer: Decision | Judgement, charge: Charge, charge_id: str, parts: Sequence[Part]
    ) -> Reservation:
        """The reservation of a charge that the store has decided."""
        ttls = [part.strategy.ttl_ms for part in parts if part.strategy.is_held and part.cost]
        at = charge.charged_at, charge.starts_at
        return cls(answer, charge_id, *at, min(ttls, default=0))

    @classmethod
    def unwritten(cls, answer: Decision | Judgement, now: int) -> Reservation:
        """A reservation without a charge: no limit was asked, or the store did not answer."""
        return cls(answer, "", now, now, 0)

    @property
    def allowed(self) -> bool:
        answer = self.answer
        return answer.allowed if isinstance(answer, Decision) else answer.verdict.allowed


class Charging:
    """The part of a service that makes and settles charges, and pauses and resets keys."""

    store: Store
    clock: Clock
    _table: PolicyTable

    async def reserve(
        self,
        policy: str,
        key: str | None = None,
        attributes: Attributes | None = None,
        cost: int = 1,
        max_wait_ms: int = 0,
        costs: Costs | None = None,
    ) -> Reservation:
        """Spend the cost as a check does, by a key or by attributes, under a charge id by which any
        node that shares the store can settle it, once. With `max_wait_ms`, units may be booked
        ahead."""
        entry = self._table[policy]
        if entry.judge is None:
            if attributes is not None or costs is not None:
                entry.limits("reserve")
            return await self._reserve_one(entry, require_key(key), cost, max_wait_ms)
        told = _with_key(key, attributes)
        request = entry.judge.limits.resolve(told, require_cost(cost), costs)
        plan = entry.judge.limits.plan_of(told)
        return await self._reserve_several(entry, entry.judge, request, plan, max_wait_ms)

    async def _reserve_one(
        self, entry: Entry, key: str, cost: int, max_wait_ms: int
    ) -> Reservation:
        limiter = entry.rate("reserve")
        if isinstance(limiter, TwoTierLimiter):
            raise entry.lacks("reserve")
        parts, wait, answer = limiter._terms(key, require_cost(cost), max_wait_ms)
        held = ChargedUnits("", key, cost, entry.form(""), limiter.strategy.figure_values)
        terms = ChargeTerms.new(entry.spec.name, None, [held])
        try:
            charge, charge_id = await self._charges(entry).reserve(terms, parts, wait, answer)
        except QueueFullError:
            raise
        except Exception as error:
            decision = entry.guard.decision(error, (key,), cost)
            entry.tally.count(decision.allowed)
            return Reservation.unwritten(decision, self.clock.now())
        entry.tally.count(charge.allowed)
        return Reservation.of(charge.decision, charge, charge_id, parts)

    async def _reserve_several(
        self, entry: Entry, judge: Judge, request: Request, plan: str | None, max_wait_ms: int
    ) -> Reservation:
        if request.limits is None:
            return Reservation.unwritten(judge.counted(request, judge.nothing()), self.clock.now())
        parts, wait, answer = request.limits._terms(request.keys, request.cost, max_wait_ms)
        keys = request.keys
        held = [
            ChargedUnits(
                part.name,
                keys.get(part.name),
                part.cost,
                entry.form(part.name),
                part.strategy.figure_values,
            )
            for part in parts
        ]
        terms = ChargeTerms.new(entry.spec.name, plan, held)
        try:
            charge, charge_id = await self._charges(entry).reserve(terms, parts, wait, answer)
        except QueueFullError:
            raise
        except Exception as error:
            verdict = judge.in_place_of(error, request)
            return Reservation.unwritten(judge.counted(request, verdict), self.clock.now())
        assert charge.verdict is not None
        judgement = judge.counted(request, charge.verdict)
        return Reservation.of(judgement, charge, charge_id, parts)

    async def settle(self, charge_id: str, actual: int | Mapping[str, int]) -> bool:
        """Replace the reserved cost by the actual one. True if this call settled it, False if there
        is nothing to settle: the charge was settled before, here or elsewhere, it was made too long
        ago, or never. An outage is raised, whatever the fail mode."""
        return (await self.settlement(charge_id, actual)).settled

    async def settlement(self, charge_id: str, actual: int | Mapping[str, int]) -> Settlement:
        """The same, with what could not be charged."""
        used = actual.values() if isinstance(actual, Mapping) else [actual]
        for units in used:
            require_int("actual", units, 0)
        return await self._settle(charge_id, actual)

    async def cancel(self, charge_id: str) -> bool:
        """Refund everything that was reserved. True if this call cancelled it."""
        return (await self._settle(charge_id, None)).settled

    async def renew(self, charge_id: str) -> bool:
        """Hold the slots of a charge for another ttl. False if they have expired."""
        if charge_id == "":
            return False
        sealed = SealedId.of(charge_id)
        terms = read_charge_id(sealed.text)
        entry = self._table[terms.policy]
        return await self._charges(entry).renew(sealed, *_matched(entry, terms))

    async def _settle(self, charge_id: str, actual: int | Mapping[str, int] | None) -> Settlement:
        # A denied caller has an empty id, and so has one that a fail mode admitted.
        if charge_id == "":
            return Settlement(False)
        sealed = SealedId.of(charge_id)
        terms = read_charge_id(sealed.text)
        entry = self._table[terms.policy]
        terms, parts = _matched(entry, terms)
        if isinstance(actual, Mapping):
            # Whoever settles need not know that a limit has changed since.
            gone = {held.limit for held in terms.held} - {part.name for part in parts}
            actual = {name: units for name, units in actual.items() if name not in gone}
        try:
            return await self._charges(entry).settle(sealed, terms, parts, actual)
        finally:
            for held in terms.held:
                if entry.limiter is not None and held.key is not None:
                    entry.limiter.refunded(held.key)

    def _charges(self, entry: Entry) -> Charges:
        records = records_beside(self.store, self.clock)
        return Charges(self.store, records, self.clock.now, entry.prefix)

    async def pause(
        self,
        policy: str,
        until_ms: int,
        key: str | None = None,
        attributes: Attributes | None = None,
        limits: Sequence[str] | None = None,
    ) -> None:
        """Admit nothing for a key before an instant, on every node. With several limits, `limits`
        names those to pause; by default, all that `attributes` has keys for."""
        entry = self._table[policy]
        if entry.judge is None:
            await entry.rate("pause").apause(_only(entry, key, attributes, limits), until_ms)
            return
        told = _with_key(key, attributes)
        chosen, keys = entry.judge.limits.named(told, limits)
        if limits is None:
            # Slots cannot be paused.
            keys = {name: k for name, k in keys.items() if not chosen.limits[name].strategy.is_held}
        await chosen.apause(keys, until_ms)

    async def reset(
        self,
        policy: str,
        key: str | None = None,
        attributes: Attributes | None = None,
        limits: Sequence[str] | None = None,
    ) -> None:
        """Forget what a key has spent. With several limits, `limits` names those to reset; by
        default, all that `attributes` has keys for."""
        entry = self._table[policy]
        if entry.judge is None:
            limiter = entry.budget if entry.limiter is None else entry.limiter
            if limiter is None:
                raise entry.lacks("reset")
            await limiter.areset(_only(entry, key, attributes, limits))
            return
        chosen, keys = entry.judge.limits.named(_with_key(key, attributes), limits)
        await chosen.areset(keys)


def _matched(entry: Entry, terms: ChargeTerms) -> tuple[ChargeTerms, list[Part]]:
    """The terms of a charge and its parts, without limits that the policy no longer has, or that
    count differently now."""
    try:
        pairs = [
            (offset, part)
            for held, offset in zip(terms.held, terms.offsets_ms, strict=True)
            if held.form == entry.form(held.limit)
            and (part := entry.part(held.limit, held.key, held.units, held.figures))
        ]
    except (ConfigInvalidError, ValueError, TypeError):
        reject(_NOT_AN_ID)
    offsets = tuple([offset for offset, _ in pairs])
    return terms._replace(offsets_ms=offsets), [part for _, part in pairs]


def _with_key(key: str | None, attributes: Attributes | None) -> Attributes:
    """The attributes, with the key as the attribute `key`."""
    told = dict(attributes or {})
    return told if key is None else told | {"key": key}


def _only(
    entry: Entry,
    key: str | None,
    attributes: Attributes | None,
    limits: Sequence[str] | None,
) -> str:
    """The key, for a policy with a single limit."""
    if attributes is not None or limits is not None:
        reject(
            f"policy {entry.policy.name!r} has a single limit: pass its key, and neither "
            "attributes nor limits"
        )
    return require_key(key)
