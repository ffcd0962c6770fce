"""HPACK: how HTTP/2 writes header fields (RFC 7541).

A block of fields is a run of instructions. Each names a field by its place in a table, or spells
it out, and may ask that what was spelled out be remembered. There are two tables behind one
numbering: 61 fields that the RFC lists, then those remembered on this connection, the newest
first. Whoever misses one block can read none after it, so a decoder reads every block to its end,
also those of requests that are refused.

What a peer can make grow is bounded. The table it writes into has the size that was announced to
it, and counts 32 bytes for each field beside its text. One byte may name a field of thousands, so
a list of fields is measured as it unfolds: beyond the bound nothing is kept, and the rest is only
followed, to four times the number of fields that a list may have. At most two changes of the
table's size are read, in front of the fields, since no encoder needs more (section 4.2).

Strings may be Huffman coded. The code is canonical: codes of one length are consecutive numbers,
in the order of their symbols, and each length begins where the one before ends. So a list of the
symbols by length is the whole code; thirty bits of input, compared with where each length begins,
tell the length and with it the symbol.

The encoder knows its answers beforehand. A `HeaderBlock` prepares every field in the three forms
it can take; at run time one is chosen. Fields marked as repeated enter the table on their first
use and are one byte from then on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = [
    "STATIC_TABLE",
    "Decoder",
    "Encoder",
    "HeaderBlock",
    "HpackError",
    "decode_huffman",
    "encode_huffman",
]

DEFAULT_TABLE_BYTES = 4_096
_FIELD_OVERHEAD = 32
_MAX_INTEGER = 2**31 - 1
_MAX_SIZE_UPDATES = 2
_FOLLOWED = 4

_STATIC = """
:authority|:method GET|:method POST|:path /|:path /index.html|:scheme http|:scheme https
:status 200|:status 204|:status 206|:status 304|:status 400|:status 404|:status 500|accept-charset
accept-encoding gzip, deflate|accept-language|accept-ranges|accept|access-control-allow-origin|age
allow|authorization|cache-control|content-disposition|content-encoding|content-language
content-length|content-location|content-range|content-type|cookie|date|etag|expect|expires|from
host|if-match|if-modified-since|if-none-match|if-range|if-unmodified-since|last-modified|link
location|max-forwards|proxy-authenticate|proxy-authorization|range|referer|refresh|retry-after
server|set-cookie|strict-transport-security|transfer-encoding|user-agent|vary|via|www-authenticate
"""


class HpackError(Exception):
    """A block that is no HPACK. The connection cannot go on: COMPRESSION_ERROR."""


def _static_table() -> tuple[tuple[bytes, bytes], ...]:
    words = _STATIC.strip().replace("\n", "|").encode().split(b"|")
    pairs = (word.partition(b" ") for word in words)
    return tuple((name, value) for name, _, value in pairs)


STATIC_TABLE = _static_table()
_FIRST_DYNAMIC = len(STATIC_TABLE) + 1
_STATIC_INDEX = {pair: index for index, pair in enumerate(STATIC_TABLE, 1)}
# The first of those that share a name.
_STATIC_NAME = {name: index for index, (name, _) in reversed([*enumerate(STATIC_TABLE, 1)])}


# --- Huffman ------------------------------------------------------------------------------------

_CODE_BITS = 30
_EOS = 256

_SYMBOLS_BY_LENGTH: dict[int, bytes] = {
    5: b"012aceiost",
    6: b" %-./3456789=A_bdfghlmnpru",
    7: b":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz",
    8: b"&*,;XZ",
    10: b'!"()?',
    11: b"'+|",
    12: b"#>",
    13: b"\x00$@[]~",
    14: b"^}",
    15: b"<`{",
    19: b"\\\xc3\xd0",
    20: b"\x80\x82\x83\xa2\xb8\xc2\xe0\xe2",
    21: b"\x99\xa1\xa7\xac\xb0\xb1\xb3\xd1\xd8\xd9\xe3\xe5\xe6",
    22: b"\x81\x84\x85\x86\x88\x92\x9a\x9c\xa0\xa3\xa4\xa9\xaa\xad\xb2\xb5\xb9\xba\xbb\xbd\xbe\xc4"
    b"\xc6\xe4\xe8\xe9",
    23: b"\x01\x87\x89\x8a\x8b\x8c\x8d\x8f\x93\x95\x96\x97\x98\x9b\x9d\x9e\xa5\xa6\xa8\xae\xaf\xb4"
    b"\xb6\xb7\xbc\xbf\xc5\xe7\xef",
    24: b"\t\x8e\x90\x91\x94\x9f\xab\xce\xd7\xe1\xec\xed",
    25: b"\xc7\xcf\xea\xeb",
    26: b"\xc0\xc1\xc8\xc9\xca\xcd\xd2\xd5\xda\xdb\xee\xf0\xf2\xf3\xff",
    27: b"\xcb\xcc\xd3\xd4\xd6\xdd\xde\xdf\xf1\xf4\xf5\xf6\xf7\xf8\xfa\xfb\xfc\xfd\xfe",
    28: b"\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x17\x18\x19\x1a\x1b"
    b"\x1c\x1d\x1e\x1f\x7f\xdc\xf9",
    # The fourth of this length, all ones, is the end of a string, which no string may contain.
    30: b"\n\r\x16",
}


class _Length(NamedTuple):
    """Codes of one length: the first of them, left-aligned, and their symbols in order."""

    bits: int
    first: int
    symbols: tuple[int, ...]


def _lengths() -> list[_Length]:
    found = []
    at = 0
    for bits, symbols in _SYMBOLS_BY_LENGTH.items():
        listed = (*symbols, _EOS) if bits == _CODE_BITS else tuple(symbols)
        found.append(_Length(bits, at, listed))
        at += len(listed) << (_CODE_BITS - bits)
    assert at == 1 << _CODE_BITS
    return found


_LENGTHS = _lengths()
_BEGINNINGS = [length.first for length in _LENGTHS]
_CODES = {
    symbol: ((length.first >> (_CODE_BITS - length.bits)) + number, length.bits)
    for length in _LENGTHS
    for number, symbol in enumerate(length.symbols)
}
_SYMBOL_BITS = [_CODES[symbol][1] for symbol in range(256)]


def encode_huffman(text: bytes) -> bytes:
    bits = count = 0
    for byte in text:
        code, length = _CODES[byte]
        bits = bits << length | code
        count += length
    padding = -count % 8
    return (bits << padding | (1 << padding) - 1).to_bytes((count + padding) // 8, "big")


def decode_huffman(data: bytes) -> bytes:
    out = bytearray()
    bits = count = at = 0
    while True:
        while count < _CODE_BITS and at < len(data):
            bits = bits << 8 | data[at]
            count += 8
            at += 1
        # Ones behind the end: they are what padding is made of.
        missing = max(0, _CODE_BITS - count)
        window = (bits << missing | (1 << missing) - 1) >> (count + missing - _CODE_BITS)
        length = _LENGTHS[bisect_right(_BEGINNINGS, window) - 1]
        symbol = length.symbols[(window - length.first) >> (_CODE_BITS - length.bits)]
        if length.bits > count or symbol == _EOS:
            break
        out.append(symbol)
        count -= length.bits
        bits &= (1 << count) - 1
    if count > 7 or bits != (1 << count) - 1:
        raise HpackError("a Huffman-coded string does not end with fewer than 8 ones")
    return bytes(out)


# --- Integers and strings -----------------------------------------------------------------------


def _encode_integer(value: int, prefix_bits: int, flags: int) -> bytes:
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes((flags | value,))
    out = bytearray((flags | limit,))
    value -= limit
    while value >= 128:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _encode_string(text: bytes) -> bytes:
    """Whichever form is shorter."""
    bits = sum(_SYMBOL_BITS[byte] for byte in text)
    if (bits + 7) // 8 < len(text):
        coded = encode_huffman(text)
        return _encode_integer(len(coded), 7, 0x80) + coded
    return _encode_integer(len(text), 7, 0) + text


class _Reader:
    """A block, and how far it has been read."""

    __slots__ = ("at", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def integer(self, prefix_bits: int) -> int:
        """The integer that begins in the low bits of the next byte."""
        data, limit = self.data, (1 << prefix_bits) - 1
        value = data[self.at] & limit
        self.at += 1
        if value < limit:
            return value
        shift = 0
        while self.at < len(data):
            byte = data[self.at]
            self.at += 1
            value += (byte & 127) << shift
            if value > _MAX_INTEGER or shift > 28:
                raise HpackError("an integer is too large")
            if byte < 128:
                return value
            shift += 7
        raise HpackError("a block ends within an integer")

    def string(self) -> bytes:
        if self.at >= len(self.data):
            raise HpackError("a block ends before a string")
        coded = self.data[self.at] & 0x80
        length = self.integer(7)
        end = self.at + length
        if end > len(self.data):
            raise HpackError("a block ends within a string")
        text = self.data[self.at : end]
        self.at = end
        return decode_huffman(text) if coded else text


# --- Decoding -----------------------------------------------------------------------------------


class Decoder:
    """Reads the blocks of one connection, in their order.

    `max_list_bytes` bounds a list, each field counted with 32 bytes on top of its text, and
    `max_fields` the number of its fields; `truncated` says whether the last list had more.
    """

    __slots__ = (
        "_limit",
        "_max_fields",
        "_max_list_bytes",
        "_size",
        "_table",
        "_table_bytes",
        "truncated",
    )

    def __init__(
        self,
        max_list_bytes: int = 16_384,
        max_fields: int = 128,
        table_bytes: int = DEFAULT_TABLE_BYTES,
    ) -> None:
        self._max_list_bytes = max_list_bytes
        self._max_fields = max_fields
        # What was announced, and what the encoder has chosen within it.
        self._limit = table_bytes
        self._table_bytes = table_bytes
        self._table: list[tuple[bytes, bytes]] = []
        self._size = 0
        self.truncated = False

    @property
    def table_size(self) -> int:
        """Bytes in the dynamic table, counted as the RFC counts them."""
        return self._size

    def decode(self, block: bytes) -> list[tuple[bytes, bytes]]:
        """The fields of a block, as many as the bounds allow."""
        reader = _Reader(block)
        self._read_size_updates(reader)
        fields: list[tuple[bytes, bytes]] = []
        room, most = self._max_list_bytes, self._max_fields
        left = most * _FOLLOWED
        while reader.at < len(block):
            if not left:
                raise HpackError("a block of too many fields")
            left -= 1
            pair = self._read_field(reader)
            room -= len(pair[0]) + len(pair[1]) + _FIELD_OVERHEAD
            if room >= 0 and len(fields) < most:
                fields.append(pair)
            else:
                room = -1
        self.truncated = room < 0
        return fields

    def _read_size_updates(self, reader: _Reader) -> None:
        updates = 0
        while reader.at < len(reader.data) and reader.data[reader.at] & 0xE0 == 0x20:
            size = reader.integer(5)
            updates += 1
            if size > self._limit:
                raise HpackError("a table that is larger than was announced")
            if updates > _MAX_SIZE_UPDATES:
                raise HpackError("more than two changes of the table's size in one block")
            self._table_bytes = size
            self._evict(size)

    def _read_field(self, reader: _Reader) -> tuple[bytes, bytes]:
        first = reader.data[reader.at]
        if first & 0x80:
            return self._entry(reader.integer(7))
        if first & 0x40:
            pair = self._read_literal(reader, 6)
            self._insert(pair)
            return pair
        if first & 0x20:
            raise HpackError("a change of the table's size behind a field")
        return self._read_literal(reader, 4)

    def _read_literal(self, reader: _Reader, prefix_bits: int) -> tuple[bytes, bytes]:
        index = reader.integer(prefix_bits)
        name = self._entry(index)[0] if index else reader.string()
        return name, reader.string()

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        if 0 < index < _FIRST_DYNAMIC:
            return STATIC_TABLE[index - 1]
        back = index - _FIRST_DYNAMIC + 1
        if not 0 < back <= len(self._table):
            raise HpackError("an index that is in neither table")
        return self._table[-back]

    def _insert(self, pair: tuple[bytes, bytes]) -> None:
        size = len(pair[0]) + len(pair[1]) + _FIELD_OVERHEAD
        # One that is larger than the table empties it, and that is all (section 4.4).
        self._evict(self._table_bytes - size)
        if size <= self._table_bytes:
            self._table.append(pair)
            self._size += size

    def _evict(self, room: int) -> None:
        gone = 0
        while self._size > room and gone < len(self._table):
            name, value = self._table[gone]
            self._size -= len(name) + len(value) + _FIELD_OVERHEAD
            gone += 1
        del self._table[:gone]


# --- Encoding -----------------------------------------------------------------------------------


class _Field:
    """A field in every form it may take: an index that never changes, else spelled out, with or
    without the request to remember it."""

    __slots__ = ("adding", "index", "pair", "plain", "repeated", "size")

    def __init__(self, name: bytes, value: bytes, repeated: bool) -> None:
        self.pair = name, value
        self.size = len(name) + len(value) + _FIELD_OVERHEAD
        self.repeated = repeated
        static = _STATIC_INDEX.get(self.pair)
        self.index = b"" if static is None else _encode_integer(static, 7, 0x80)
        named = _STATIC_NAME.get(name, 0)
        text = (b"" if named else _encode_string(name)) + _encode_string(value)
        self.adding = _encode_integer(named, 6, 0x40) + text
        self.plain = _encode_integer(named, 4, 0) + text


class HeaderBlock:
    """Fields that are prepared once and sent often. Names are in lower case.

    `repeated` fields are the same from answer to answer and worth a place in the peer's table;
    the others are spelled out each time.
    """

    __slots__ = ("compiled", "forms", "others", "repeated")

    def __init__(
        self,
        repeated: Iterable[tuple[bytes, bytes]] = (),
        others: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        self.repeated: tuple[tuple[bytes, bytes], ...] = tuple(repeated)
        self.others: tuple[tuple[bytes, bytes], ...] = tuple(others)
        self.forms: list[_Field] = [_Field(name, value, True) for name, value in self.repeated]
        self.forms += [_Field(name, value, False) for name, value in self.others]
        # Where the compiled twin keeps its own preparation.
        self.compiled: Any = None


class Encoder:
    """Writes the blocks of one connection, in their order."""

    __slots__ = ("_size", "_smallest", "_table", "_table_bytes", "_told")

    def __init__(self) -> None:
        self._table: list[_Field] = []
        self._size = 0
        self._table_bytes = DEFAULT_TABLE_BYTES
        # The size that the peer knows of, and the smallest one since it was told.
        self._told = DEFAULT_TABLE_BYTES
        self._smallest = DEFAULT_TABLE_BYTES

    def resize(self, table_bytes: int) -> None:
        """The peer's setting. More than the default is not used."""
        self._table_bytes = min(table_bytes, DEFAULT_TABLE_BYTES)
        self._smallest = min(self._smallest, self._table_bytes)
        self._evict(self._table_bytes)

    def encode(self, block: HeaderBlock) -> bytes:
        out = bytearray(self._size_updates())
        for field in block.forms:
            out += field.index or self._choose(field)
        return bytes(out)

    def _size_updates(self) -> bytes:
        sizes = []
        if self._smallest < min(self._told, self._table_bytes):
            sizes.append(self._smallest)
        if sizes or self._table_bytes != self._told:
            sizes.append(self._table_bytes)
        self._told = self._smallest = self._table_bytes
        return b"".join(_encode_integer(size, 5, 0x20) for size in sizes)

    def _choose(self, field: _Field) -> bytes:
        if not field.repeated or field.size > self._table_bytes:
            return field.plain
        for back, known in enumerate(reversed(self._table)):
            if known.pair == field.pair:
                return _encode_integer(_FIRST_DYNAMIC + back, 7, 0x80)
        self._evict(self._table_bytes - field.size)
        self._table.append(field)
        self._size += field.size
        return field.adding

    def _evict(self, room: int) -> None:
        gone = 0
        while self._size > room and gone < len(self._table):
            self._size -= self._table[gone].size
            gone += 1
        del self._table[:gone]
