# The order in which a full table evicts keys: the twin of stores/memory/_eviction.py, whose essay
# gives the reasons. Besides its entry, a record has a place here: its neighbours of the same rank,
# and the bytes that it was counted as. Rank and use are one byte of the entry itself, which every
# check reads anyway.

cdef enum:
    IDLE = 0
    SPENT = 1
    DENIED = 2
    RANKS = 3
    NEARLY = 8
    SHARE = 4
    CHANCES = 32

ctypedef struct RankedPlace:
    uint32_t older
    uint32_t newer
    uint32_t bytes


cdef inline int rank_of(KernelOutcome* outcome) noexcept:
    if not outcome.allowed:
        return DENIED
    return SPENT if outcome.remaining * NEARLY < outcome.limit else IDLE


cdef inline uint8_t heat_of(int rank) noexcept:
    """The byte of an entry: its rank, and in the lowest bit whether it was used since."""
    return <uint8_t> (rank << 1)


@cython.final
cdef class Order:
    """The records of a table with bounds, by rank. A bound below 0 is none."""

    cdef RankedPlace* places
    cdef uint32_t[3] oldest
    cdef uint32_t[3] newest
    cdef uint32_t[3] size
    cdef uint32_t count
    cdef int64_t bytes
    cdef int64_t max_keys
    cdef int64_t max_bytes

    def __cinit__(self, int64_t max_keys, int64_t max_bytes):
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        memset(self.oldest, 0xFF, sizeof(self.oldest))
        memset(self.newest, 0xFF, sizeof(self.newest))

    def __dealloc__(self):
        PyMem_Free(self.places)

    cdef int reserve(self, uint64_t room) except -1:
        """Have places for that many entries."""
        cdef RankedPlace* places = <RankedPlace*> PyMem_Realloc(
            self.places, room * sizeof(RankedPlace)
        )
        if places == NULL:
            raise MemoryError()
        self.places = places
        return 0

    cdef inline bint is_full(self, int64_t more) noexcept:
        return (0 <= self.max_keys <= self.count) or self.is_over(more)

    cdef inline bint has_room(self, int64_t keys, int64_t more) noexcept:
        """Whether so many keys, and as many bytes, fit without an eviction."""
        return not (0 <= self.max_keys < self.count + keys) and not self.is_over(more)

    cdef inline bint is_over(self, int64_t more) noexcept:
        return self.max_bytes >= 0 and self.bytes + more > self.max_bytes

    cdef inline bint is_too_large(self, int64_t size) noexcept:
        return 0 <= self.max_bytes < size

    cdef void add(self, Record* entries, uint32_t position, int rank, int64_t size) noexcept:
        self.places[position].bytes = 0
        self.resize(position, size)
        self.count += 1
        self._append(entries, position, rank)

    cdef void remove(self, Record* entries, uint32_t position) noexcept:
        self.bytes -= self.places[position].bytes
        self.count -= 1
        self._unlink(position, entries[position].heat >> 1)

    cdef inline void use(self, Record* entries, uint32_t position, int rank) noexcept:
        cdef int before = entries[position].heat >> 1
        if before == rank:
            entries[position].heat |= 1
            return
        self._unlink(position, before)
        self._append(entries, position, rank)

    cdef inline void resize(self, uint32_t position, int64_t size) noexcept:
        cdef uint32_t fits = <uint32_t> min(size, <int64_t> 0xFFFFFFFF)
        self.bytes += <int64_t> fits - self.places[position].bytes
        self.places[position].bytes = fits

    cdef uint32_t victim(self, Record* entries) noexcept:
        """The next record to evict. There must be one."""
        cdef int rank = self._fullest()
        cdef int chance
        cdef uint32_t position
        for chance in range(CHANCES):
            position = self.oldest[rank]
            if not entries[position].heat & 1:
                return position
            self._unlink(position, rank)
            self._append(entries, position, rank)
        return self.oldest[rank]

    cdef int _fullest(self) noexcept:
        """The lowest rank that has more than its share."""
        if <uint64_t> self.size[IDLE] * SHARE > self.count:
            return IDLE
        if <uint64_t> self.size[SPENT] * SHARE > self.count:
            return SPENT
        return DENIED

    cdef void _append(self, Record* entries, uint32_t position, int rank) noexcept:
        cdef uint32_t newest = self.newest[rank]
        self.places[position].older = newest
        self.places[position].newer = NIL
        if newest == NIL:
            self.oldest[rank] = position
        else:
            self.places[newest].newer = position
        self.newest[rank] = position
        self.size[rank] += 1
        entries[position].heat = heat_of(rank)

    cdef void _unlink(self, uint32_t position, int rank) noexcept:
        cdef RankedPlace* place = &self.places[position]
        if place.older == NIL:
            self.oldest[rank] = place.newer
        else:
            self.places[place.older].newer = place.newer
        if place.newer == NIL:
            self.newest[rank] = place.older
        else:
            self.places[place.newer].older = place.older
        self.size[rank] -= 1

    cdef void relink(self, Record* entries) noexcept:
        """Set the neighbours of all places to their next positions: `next` of their entries."""
        cdef int rank
        cdef uint32_t position, newer
        cdef RankedPlace* place
        for rank in range(RANKS):
            position = self.oldest[rank]
            if position == NIL:
                continue
            self.oldest[rank] = entries[position].next
            self.newest[rank] = entries[self.newest[rank]].next
            while position != NIL:
                place = &self.places[position]
                newer = place.newer
                if newer != NIL:
                    place.newer = entries[newer].next
                if place.older != NIL:
                    place.older = entries[place.older].next
                position = newer
