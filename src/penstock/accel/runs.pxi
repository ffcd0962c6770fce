# Runs: ascending (at, count) pairs in one block of memory.
#
# Both sliding windows keep such a list: (tick, count) or (stamp, count). It grows at its end and is
# pruned at its head, and knows its total, so that the common request costs O(1) however long it is.

ctypedef struct Pair:
    int64_t at
    int64_t count

ctypedef struct Runs:
    int64_t total
    uint32_t head
    uint32_t length
    uint32_t capacity
    Pair pairs[1]


cdef size_t runs_bytes(uint32_t capacity) noexcept:
    return sizeof(Runs) + (capacity - 1) * sizeof(Pair)


cdef Runs* runs_new() except NULL:
    cdef Runs* runs = <Runs*> PyMem_Malloc(runs_bytes(2))
    if runs == NULL:
        raise MemoryError()
    runs.total = 0
    runs.head = 0
    runs.length = 0
    runs.capacity = 2
    return runs


cdef inline Pair* runs_at(Runs* runs, uint32_t position) noexcept:
    return &runs.pairs[runs.head + position]


cdef Runs* runs_resize(Runs* runs, uint32_t capacity) except NULL:
    """Move to a block of `capacity` pairs, the live ones at its front."""
    if runs.head:
        memmove(&runs.pairs[0], runs_at(runs, 0), runs.length * sizeof(Pair))
        runs.head = 0
    cdef Runs* moved = <Runs*> PyMem_Realloc(runs, runs_bytes(capacity))
    if moved == NULL:
        raise MemoryError()
    moved.capacity = capacity
    return moved


cdef uint32_t runs_capacity(Runs* runs, uint32_t drop) noexcept:
    """How many pairs to have room for so that one more fits once the first `drop` are gone; a list
    that has shrunk gives memory back."""
    cdef uint32_t head = runs.head + drop
    cdef uint32_t length = runs.length - drop
    if runs.capacity > 64 and length * 8 < runs.capacity:
        return runs.capacity // 4
    if head + length < runs.capacity or head * 2 >= runs.capacity:
        return runs.capacity
    return runs.capacity * 2


cdef Runs* runs_reserve(Runs* runs) except NULL:
    """Make sure that one more pair fits."""
    cdef uint32_t capacity = runs_capacity(runs, 0)
    if capacity == runs.capacity and runs.head + runs.length < capacity:
        return runs
    return runs_resize(runs, capacity)


cdef inline void runs_drop(Runs* runs, uint32_t pairs) noexcept:
    """Forget the first `pairs`."""
    cdef uint32_t position
    for position in range(pairs):
        runs.total -= runs_at(runs, position).count
    runs.head += pairs
    runs.length -= pairs


cdef inline void runs_add(Runs* runs, int64_t at, int64_t count) noexcept:
    """Add to the newest pair or, if `at` is later, append one; `runs_reserve` came before."""
    cdef Pair* newest
    runs.total += count
    if runs.length:
        newest = runs_at(runs, runs.length - 1)
        if newest.at >= at:
            newest.count += count
            return
    newest = runs_at(runs, runs.length)
    newest.at = at
    newest.count = count
    runs.length += 1


cdef tuple runs_export(Runs* runs):
    """The state as the oracle writes it. Making tuples may run the collector, whose finalizers may
    come back and move the runs: they are read from a copy."""
    cdef uint32_t length = runs.length
    cdef uint32_t position
    cdef Pair* pairs = <Pair*> PyMem_Malloc((length + 1) * sizeof(Pair))
    if pairs == NULL:
        raise MemoryError()
    memcpy(pairs, runs_at(runs, 0), length * sizeof(Pair))
    try:
        return tuple([(pairs[position].at, pairs[position].count) for position in range(length)])
    finally:
        PyMem_Free(pairs)
