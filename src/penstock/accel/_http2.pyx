# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: initializedcheck=False, binding=False, nonecheck=False
# cython: embedsignature=True, embedsignature.format=clinic
"""HTTP/2 in machine code: the same bytes in, the same events and bytes out.

It imports nothing of the package. `service/http2/` holds the interpreted modules that these parts
follow, and the essays; tests hold each pair together by random and mutated input:

- fields: text, names, routes, the grammar of requests;
- hpack:  the two tables, Huffman, prepared blocks of fields;
- http2:  frames, streams, flow control, bounds.

What differs is who makes objects. A request is one object, whatever it has of fields and frames;
its texts stay bytes in one piece of memory and become Python strings when they are asked for. A
compiled server cimports `_http2.pxd`, replaces `Http2Connection.emit`, and answers from within.

All state belongs to a connection, apart from the list of fields that is being decoded: there is one
in the process, which is safe under the interpreter lock, as nothing is called while it is in use.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from cpython.unicode cimport PyUnicode_DecodeLatin1
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy, memmove, memset, strlen

include "fields.pxi"
include "hpack.pxi"
include "http2.pxi"
