"""What only DynamoDBStore has: its table, its limits, the words of its service."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, NoCredentialsError, NoRegionError

from penstock import ConfigInvalidError, StoreUnavailableError, UnsupportedError, gcra
from penstock.core._flow import drive
from penstock.core._transform import checking
from penstock.stores import open_store
from penstock.stores.cas import Conflict, ConnectionFailedError, Held, Read, Swap
from penstock.stores.dynamodb import DynamoDBStore
from penstock.stores.dynamodb._items import create, translated
from tests.stores import edge

NOW = 1_700_000_000_000
CHECK = checking(gcra(10, 3_600_000))
_LOOK = "describe_time_to_live"


def _items(table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = edge.running("dynamodb").call("Scan", {"TableName": table})[
        "Items"
    ]
    return found


def _client(**options: Any) -> Any:
    url = edge.running("dynamodb").url
    return boto3.client("dynamodb", region_name="us-east-1", endpoint_url=url, **options)


def test_creating_the_table_twice_is_creating_it_once() -> None:
    """sync and async, both names, and what was spent stays."""
    store: Any = edge.open_empty("dynamodb")
    store.apply("k", CHECK, NOW, 1)
    store.create_table()

    async def again() -> None:
        await store.acreate_table()
        await store.ainit()
        await store.aclose()

    asyncio.run(again())
    assert store.apply("k", CHECK, NOW, 1).remaining == 8
    store.close()


@pytest.mark.parametrize(
    "keys", [[("id", "HASH")], [("penstock_key", "HASH"), ("range", "RANGE")]], ids=str
)
def test_a_table_of_another_program_is_refused(keys: list[tuple[str, str]]) -> None:
    """It is told by its key, and left as it is."""
    url = edge.url_of("dynamodb")
    store: Any = open_store(url)
    edge.running("dynamodb").call(
        "CreateTable",
        {
            "TableName": store.table,
            "BillingMode": "PAY_PER_REQUEST",
            "AttributeDefinitions": [
                {"AttributeName": name, "AttributeType": "S"} for name, _ in keys
            ],
            "KeySchema": [{"AttributeName": name, "KeyType": kind} for name, kind in keys],
        },
    )
    with pytest.raises(ConfigInvalidError, match="belongs to something else"):
        store.create_table()
    with pytest.raises(ConfigInvalidError, match="penstock_key"):
        store.apply("k", CHECK, NOW, 1)
    store.close()


def _setting_up(*looks: dict[str, str]) -> list[str]:
    """The operations on a table of ours that is there already; `looks`: its TTL, look by look.

    Where there is a second look, the TTL was switched on between the first and our own switching.
    """
    in_use = ClientError({"Error": {"Code": "ResourceInUseException"}}, "CreateTable")
    already_on = ClientError({"Error": {"Code": "ValidationException"}}, "UpdateTimeToLive")
    table = {
        "TableStatus": "ACTIVE",
        "KeySchema": [{"AttributeName": "penstock_key", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "penstock_key", "AttributeType": "S"}],
    }
    asked: list[str] = []

    def serve(step: Any) -> Any:
        asked.append(step[0])
        if step[0] == "create_table":
            raise in_use
        if step[0] == "update_time_to_live" and len(looks) > 1:
            raise already_on
        return {"Table": table, "TimeToLiveDescription": looks[asked.count(_LOOK) - 1]}

    drive(create("limits"), serve)
    return asked


@pytest.mark.parametrize("status", ["ENABLED", "ENABLING"])
def test_a_table_whose_ttl_is_on_another_attribute_is_refused(status: str) -> None:
    """Nothing of ours would ever be reclaimed there, and whose TTL it is, is not for us to say."""
    looks = ["create_table", "describe_table", "describe_time_to_live"]
    ours = {"TimeToLiveStatus": status, "AttributeName": "reclaim_at"}
    assert _setting_up(ours) == looks
    assert _setting_up({"TimeToLiveStatus": "DISABLED"}) == [*looks, "update_time_to_live"]
    with pytest.raises(ConfigInvalidError, match=r"'limits' is on 'expires', and ours on 'reclaim"):
        _setting_up({"TimeToLiveStatus": status, "AttributeName": "expires"})


def test_a_ttl_that_another_process_switched_on_in_the_meantime_is_ours_too() -> None:
    """Refused for a race is looked at again; refused for anything else stays an error."""
    off = {"TimeToLiveStatus": "DISABLED"}
    ours = {"TimeToLiveStatus": "ENABLING", "AttributeName": "reclaim_at"}
    assert _setting_up(off, ours)[-3:] == [_LOOK, "update_time_to_live", _LOOK]
    with pytest.raises(ConfigInvalidError, match="and ours on 'reclaim"):
        _setting_up(off, {**ours, "AttributeName": "expires"})
    with pytest.raises(ClientError, match="ValidationException"):
        _setting_up(off, off)


def test_many_that_create_the_table_at_once_all_have_it() -> None:
    """On a server that has a TTL; each of them on a connection of its own."""
    for _ in range(3):
        url = edge.url_of("dynamodb-local")
        with ThreadPoolExecutor(8) as callers:
            for store in [callers.submit(edge.opened, url) for _ in range(8)]:
                store.result(timeout=60).close()


def test_a_missing_table_names_the_fix() -> None:
    """Not an outage: a mistake, and the text says what to call."""
    store = open_store(edge.url_of("dynamodb"))
    with pytest.raises(ConfigInvalidError, match=r"create_table\(\)"):
        store.apply("k", CHECK, NOW, 1)
    store.close()


def test_an_item_says_what_it_is_and_when_it_may_go() -> None:
    """The record of every store, a version, and a TTL in epoch seconds that is late enough."""
    store: Any = edge.open_empty("dynamodb")
    store.apply("k", CHECK, NOW, 1)
    now_s = int(time.time())
    store.apply("ahead", CHECK, (now_s + 86_400) * 1000, 1)
    store.close()
    items = {item["penstock_key"]["S"]: item for item in _items(store.table)}
    record = items["k"]["record"]["S"]
    assert json.loads(record) == {
        "v": 1,
        "strategy": "gcra",
        "expires_at": 1_700_000_360_000,
        # The state, the figures that it was written with, T and tau, and the instant of that.
        "state": [1_700_000_360_000.0, [360_000.0, 3_600_000.0], 1_700_000_000_000],
    }
    ttl_s = 360
    # A clock of 2023 and a clock a day ahead: counted from now, and from then.
    assert now_s + 2 * ttl_s <= int(items["k"]["reclaim_at"]["N"]) <= now_s + 2 * ttl_s + 5
    ahead = int(items["ahead"]["reclaim_at"]["N"])
    assert now_s + 86_400 + 2 * ttl_s <= ahead <= now_s + 86_400 + 2 * ttl_s + 5


def test_a_long_key_is_stored_under_its_hash() -> None:
    """2,047 bytes go in as they are, more become a name of 2,048."""
    store: Any = edge.open_empty("dynamodb")
    for length in (2047, 2048, 4096):
        assert store.apply("k" * length, CHECK, NOW, 1).remaining == 9
        assert store.apply("k" * length, CHECK, NOW, 1).remaining == 8
    store.close()
    names = {item["penstock_key"]["S"] for item in _items(store.table)}
    assert {len(name) for name in names} == {2047, 2048}
    assert len(names) == 3


def test_an_item_of_another_program_is_not_overwritten() -> None:
    """Somebody else wrote into the table: refused, not read as absent."""
    store: Any = edge.open_empty("dynamodb")
    item = {"penstock_key": {"S": "k"}, "note": {"S": "mine"}}
    edge.running("dynamodb").call("PutItem", {"TableName": store.table, "Item": item})
    with pytest.raises(ConfigInvalidError, match="was not written by this store"):
        store.apply("k", CHECK, NOW, 1)
    assert _items(store.table) == [item]
    store.close()


def test_a_client_of_ones_own_serves_its_mode() -> None:
    """Retries of the client do no harm, and the client stays open."""
    client = _client()
    store = DynamoDBStore(open_empty_table(), client=client)
    assert store.apply("k", CHECK, NOW, 1).remaining == 9
    with pytest.raises(UnsupportedError, match="async_client"):
        asyncio.run(store.aapply("k", CHECK, NOW, 1))
    store.close()
    assert store.apply("k", CHECK, NOW, 1).remaining == 8
    client.close()
    with pytest.raises(UnsupportedError, match="client="):
        DynamoDBStore("table", async_client=object()).apply("k", CHECK, NOW, 1)


def open_empty_table() -> str:
    store: Any = edge.open_empty("dynamodb")
    store.close()
    name: str = store.table
    return name


def _said(code: str, status: int = 400, **more: Any) -> ClientError:
    reply = {
        "Error": {"Code": code, "Message": "m"},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError({**reply, **more}, "PutItem")  # type: ignore[arg-type]


def test_what_the_service_says_is_told_apart() -> None:
    """Busy is asked again, broken is looked into, forbidden and wrong are errors at once."""
    swap = Swap("k", None, "v", "r", 1)
    assert translated(_said("ConditionalCheckFailedException"), swap, "t") == Conflict()
    item = {"record": {"S": "r"}, "version": {"S": "v"}}
    known = translated(_said("ConditionalCheckFailedException", Item=item), swap, "t")
    assert known == Conflict(Held("r", "v"), known=True)
    busy = translated(_said("ProvisionedThroughputExceededException"), swap, "t")
    assert (busy.may_have_run, busy.again) == (False, True)
    broken = translated(_said("InternalServerError", 500), swap, "t")
    assert (broken.may_have_run, broken.again) == (True, True)
    forbidden = translated(_said("AccessDeniedException"), swap, "t")
    assert (forbidden.may_have_run, forbidden.again) == (False, False)
    assert isinstance(translated(_said("ValidationException"), swap, "t"), ConfigInvalidError)
    for error in (NoCredentialsError(), NoRegionError()):
        assert "for boto3" in str(translated(error, Read("k"), "t"))
    mistake = ZeroDivisionError()
    assert translated(mistake, swap, "t") is mistake
    assert not isinstance(mistake, ConnectionFailedError)


def test_a_region_that_is_missing_is_said_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A typed error that names the fix, not botocore's."""
    for variable in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    store = open_store("dynamodb://table")
    with pytest.raises(StoreUnavailableError, match="set the region"):
        store.apply("k", CHECK, NOW, 1)
    with pytest.raises(StoreUnavailableError, match="set the region"):
        asyncio.run(store.aapply("k", CHECK, NOW, 1))
