# The table: keys to states in two flat arrays.
#
# `entries` holds one record per key, and `index` is an open-addressing hash table of positions in
# it: linear probing, with 32 bits of the hash beside each position. A slot's home is taken from the
# same 32 bits, so that moving slots never touches a key, and a probe hardly ever a foreign one.
# Compared with a dict of objects this saves an allocation and a cache miss per key.
# Beside its two words of state a record carries its links in the timing wheel (see
# stores/memory/wheel.py, whose twin this is) and the bit of the second-chance hand.
#
# The rules of expiry, reclaiming and the horizon are those of stores/memory/table.py; its essay
# gives the reasons.
#
# Dropping a custom state may run Python code (a finalizer), which may come back here. So whatever
# is dropped leaves the structures first and is released last, once what takes its place is written,
# and no pointer into `entries` is used across a release. The same goes for making a tuple, which
# may run the collector and with it any finalizer.

cdef uint32_t NIL = 0xFFFFFFFF
cdef enum:
    LEVEL_BITS = 8
    LEVEL_SLOTS = 256
    LEVELS = 4
    PENDING = 1024          # one slot beyond the wheel, for what is being moved
    RECLAIM_FLOOR = 1024
    LIGHT_BYTES = 1 << 20
    WEIGH_EVERY_MS = 1000
    LEAST_ENTRIES = 8

cdef tuple LOOKING = ("peek", "forecast")
cdef int64_t REACH_MS = <int64_t> 1 << (LEVEL_BITS * LEVELS)

ctypedef struct Entry:
    PyObject* key           # NULL: free, and `next` links the free ones
    int64_t expires
    Word a
    Word b
    uint32_t next
    uint32_t prev
    uint32_t version        # changes with every write
    uint16_t slot
    uint8_t kind
    uint8_t used

cdef extern from *:
    """
    static inline Py_hash_t penstock_hash(PyObject* text) {
        Py_hash_t hash = ((PyASCIIObject*) text)->hash;
        return hash != -1 ? hash : PyObject_Hash(text);
    }

    static inline int penstock_same(PyObject* a, PyObject* b) {
        Py_ssize_t length = PyUnicode_GET_LENGTH(a);
        int kind = PyUnicode_KIND(a);
        return a == b || (
            length == PyUnicode_GET_LENGTH(b) && kind == (int) PyUnicode_KIND(b)
            && memcmp(PyUnicode_DATA(a), PyUnicode_DATA(b), (size_t) length * kind) == 0
        );
    }

    static inline int penstock_plain_key(PyObject* key) {
        return PyUnicode_CheckExact(key) && PyUnicode_IS_ASCII(key)
            && PyUnicode_GET_LENGTH(key) > 0 && PyUnicode_GET_LENGTH(key) <= 4096;
    }
    """
    Py_hash_t hash_of "penstock_hash"(PyObject* text)
    bint same_text "penstock_same"(PyObject* a, PyObject* b)
    bint is_plain_key "penstock_plain_key"(PyObject* key)


cdef inline uint64_t slot_of(PyObject* key, uint32_t position) noexcept:
    return (<uint64_t> <uint32_t> hash_of(key) << 32) | (position + 1)


@cython.final
cdef class Table:
    """States by key, in machine words."""

    cdef Entry* entries
    cdef uint32_t room          # entries allocated
    cdef uint32_t top           # entries ever used: those beyond are untouched memory
    cdef uint32_t free          # head of the free ones below `top`
    cdef uint32_t count
    cdef uint64_t* index
    cdef uint64_t mask
    cdef uint32_t[1025] heads
    cdef int64_t wheel_now
    cdef int64_t seen
    cdef int64_t horizon
    cdef int64_t weigh_at
    cdef int64_t max_keys
    cdef bint evict
    cdef uint32_t hand
    cdef uint32_t clock
    cdef readonly int64_t evictions
    cdef readonly int64_t refusals
    cdef object wrong_kind
    cdef object require_ttl
    cdef object lock

    def __cinit__(self, int64_t max_keys, bint evict, wrong_kind, require_ttl):
        self.max_keys = max_keys
        self.evict = evict
        self.wrong_kind = wrong_kind
        self.require_ttl = require_ttl
        self.lock = threading.RLock()
        self.free = NIL
        memset(self.heads, 0xFF, sizeof(self.heads))
        self.entries = <Entry*> PyMem_Malloc(LEAST_ENTRIES * sizeof(Entry))
        self.index = <uint64_t*> PyMem_Malloc(2 * LEAST_ENTRIES * sizeof(uint64_t))
        if self.entries == NULL or self.index == NULL:
            raise MemoryError()
        self.room = LEAST_ENTRIES
        self.mask = 2 * LEAST_ENTRIES - 1
        memset(self.index, 0, 2 * LEAST_ENTRIES * sizeof(uint64_t))

    def __dealloc__(self):
        cdef uint32_t position
        if self.entries != NULL:
            for position in range(self.top):
                if self.entries[position].key != NULL:
                    self._release(self.entries[position])
        PyMem_Free(self.entries)
        PyMem_Free(self.index)

    # The public face, the same as that of the interpreted table.

    def apply(self, str key not None, transform, int64_t now, int64_t cost):
        kernel = transform.kernel
        if kernel is None:
            kernel = transform.kernel = _kernel_of(transform)
        if kernel and transform.role == "check":
            return self.check(<Kernel> kernel, key, now, cost, transform)
        with self.lock:
            return self._apply(key, transform, <Kernel> kernel if kernel else None, now, cost)

    def discard(self, str key not None):
        cdef uint32_t position = self._find(<PyObject*> key)
        if position != NIL:
            self._drop(position)

    def sweep(self, int64_t now):
        """Drop everything that is expired at `now`; returns how many."""
        if now > self.seen:
            self.seen = now
        return self._reclaim(self.seen)

    def renew_lock(self):
        """For the child of a fork, in which nobody holds the lock."""
        self.lock = threading.RLock()

    def __len__(self):
        self._reclaim(self.seen)
        return self.count

    # Deciding.

    cdef Decision check(self, Kernel kernel, str key, int64_t now, int64_t cost, transform):
        cdef Word a, b
        cdef Verdict verdict
        cdef Entry* entry
        cdef Decision decision
        cdef bint known = False
        cdef uint32_t position
        cdef int64_t expires = 0
        a.i = b.i = 0
        if now > self.seen:
            self.seen = now
            if self.count > RECLAIM_FLOOR:
                self._reclaim(now)
            elif now >= self.weigh_at:
                self._weigh(now)
        position = self._find_or_room(<PyObject*> key)
        if position == NIL:
            if now < self.horizon:
                now = self.horizon
        else:
            entry = &self.entries[position]
            if now < entry.expires:
                if entry.kind != kernel.kind:
                    raise self._clash(key, entry, KIND_NAMES[<int> kernel.kind])
                known = True
                a = entry.a
                b = entry.b
                expires = entry.expires
            entry.used = True
        decide(kernel, known, a, b, expires, now, cost, &verdict)
        if verdict.allowed:
            if position == NIL and self._is_shut():
                self.refusals += 1
                return self._refuse(transform, now)
            self._commit(key, position, kernel.kind, known, now + verdict.ttl, cost, &verdict)
        decision = Decision.__new__(Decision)
        decision.made = True
        decision.allowed = verdict.allowed
        decision.limit = verdict.limit
        decision.remaining = verdict.remaining
        decision.reset_at = verdict.reset_at
        decision.retry_after_ms = verdict.retry
        return decision

    cdef int _commit(
        self,
        str key,
        uint32_t position,
        Kind kind,
        bint known,
        int64_t expires,
        int64_t cost,
        Verdict* verdict,
    ) except -1:
        """Write what a kernel decided."""
        cdef Entry* entry
        cdef Entry fresh
        cdef Runs* runs
        if known and kind < SLIDING_WINDOW:
            entry = &self.entries[position]
            entry.a = verdict.a
            entry.b = verdict.b
            self._touch(position, expires)
        elif known:
            entry = &self.entries[position]
            runs = <Runs*> entry.b.p
            runs_drop(runs, verdict.drop)
            entry.b.p = runs = runs_reserve(runs)
            runs_add(runs, verdict.a.i, cost)
            self._touch(position, expires)
        else:
            if position == NIL:
                self._make_space()
            fresh.kind = kind
            fresh.a = verdict.a
            fresh.b = verdict.b
            if kind >= SLIDING_WINDOW:
                runs = runs_new()
                runs_add(runs, verdict.a.i, cost)
                fresh.b.p = runs
            self._put(key, position, &fresh, expires)
        return 0

    cdef inline void _touch(self, uint32_t position, int64_t expires) noexcept:
        """A record was written: note it, and find it sooner if it is to go sooner."""
        cdef Entry* entry = &self.entries[position]
        cdef bint sooner = expires < entry.expires
        self.clock += 1
        entry.version = self.clock
        entry.expires = expires
        if sooner:
            self._unlink(position)
            self._file(position)

    cdef void _put(self, str key, uint32_t position, Entry* fresh, int64_t expires) noexcept:
        """Replace a record's state or, at NIL, add a record, for which `_make_space` has room.
        What goes is released at the very end: by then the table is whole."""
        cdef Entry gone
        cdef Entry* entry
        gone.key = NULL
        gone.kind = NOTHING
        if position == NIL:
            if self.max_keys >= 0 and self.count >= self.max_keys:
                gone = self._evict_one()
            position = self._insert(key, expires)
        else:
            gone = self.entries[position]
            gone.key = NULL
        entry = &self.entries[position]
        entry.kind = fresh.kind
        entry.a = fresh.a
        entry.b = fresh.b
        self._touch(position, expires)
        self._release(gone)

    cdef object _apply(self, str key, transform, Kernel kernel, int64_t now, int64_t cost):
        """Any transform that is Python code: run it, and commit if nobody wrote meanwhile."""
        cdef uint32_t position, version
        cdef Kind kind = kernel.kind if kernel is not None else OBJECT
        cdef int64_t at, expires
        cdef Entry fresh
        while True:
            at = now
            if now > self.seen:
                self.seen = now
                if self.count > RECLAIM_FLOOR:
                    self._reclaim(now)
                elif now >= self.weigh_at:
                    self._weigh(now)
            position = self._find_or_room(<PyObject*> key)
            version = 0
            state = None
            if position == NIL:
                if now < self.horizon:
                    at = self.horizon
                looks = transform.role in LOOKING
                if looks and self._is_shut() and transform.needs_room(at, cost):
                    return self._refuse(transform, at)
            else:
                self.entries[position].used = True
                version = self.entries[position].version
                if now < self.entries[position].expires:
                    state = self._export(key, position, transform.kind, kind)
            outcome = transform.run(state, at, cost)
            if not outcome.persist:
                return outcome.result
            result = outcome.result
            state = outcome.state
            # From here to the write nothing may run but what is in this file.
            if state is None:
                position = self._find(<PyObject*> key)
                if version != (0 if position == NIL else self.entries[position].version):
                    continue
                if position != NIL:
                    self._drop(position)
                return result
            expires = at + <int64_t> self.require_ttl(transform, outcome.ttl_ms)
            self._pack(&fresh, kind, transform.kind, state, &expires)
            position = self._find(<PyObject*> key)
            if version != (0 if position == NIL else self.entries[position].version):
                self._release(fresh)
                continue
            if position == NIL and self._is_shut():
                self._release(fresh)
                self.refusals += 1
                return self._refuse(transform, at)
            if position == NIL:
                self._make_space()
            self._put(key, position, &fresh, expires)
            return result

    cdef object _refuse(self, transform, int64_t now):
        return transform.refuse(now, self._next_due() - self.wheel_now)

    cdef object _export(self, str key, uint32_t position, str wanted, Kind kind):
        """A state as Python sees it."""
        cdef Entry* entry = &self.entries[position]
        if wanted and (
            entry.kind != kind or kind == OBJECT and <str> <PyObject*> entry.a.p != wanted
        ):
            raise self._clash(key, entry, wanted)
        if entry.kind == GCRA:
            return entry.a.d
        if entry.kind == TOKEN_BUCKET:
            return entry.a.d, entry.b.i
        if entry.kind == FIXED_WINDOW:
            return entry.a.i, entry.b.i
        if entry.kind == CREDITS:
            return entry.a.i, entry.b.i, entry.expires
        if entry.kind == OBJECT:
            return <object> <PyObject*> entry.b.p
        return runs_export(<Runs*> entry.b.p)

    cdef int _pack(self, Entry* fresh, Kind kind, str name, state, int64_t* expires) except -1:
        """What Python made, in the form that its kind has here. It may run Python code."""
        cdef Runs* runs
        fresh.key = NULL
        fresh.kind = kind
        fresh.a.i = fresh.b.i = 0
        if kind == GCRA:
            fresh.a.d = state
        elif kind == TOKEN_BUCKET:
            fresh.a.d, fresh.b.i = state
        elif kind == FIXED_WINDOW:
            fresh.a.i, fresh.b.i = state
        elif kind == CREDITS:
            fresh.a.i, fresh.b.i, expires[0] = state
        elif kind == OBJECT:
            fresh.a.p = <void*> name
            fresh.b.p = <void*> state
            Py_INCREF(name)
            Py_INCREF(state)
        else:
            runs = runs_new()
            try:
                for at, count in state:
                    runs = runs_reserve(runs)
                    runs_add(runs, at, count)
            except BaseException:
                PyMem_Free(runs)
                raise
            fresh.b.p = runs
        return 0

    cdef object _clash(self, str key, Entry* entry, str wanted):
        held = <str> <PyObject*> entry.a.p if entry.kind == OBJECT else KIND_NAMES[entry.kind]
        return self.wrong_kind(key, held, wanted)

    # Keys to positions.

    cdef inline uint32_t _find(self, PyObject* key) noexcept:
        cdef uint64_t mark = <uint32_t> hash_of(key)
        cdef uint64_t probe = mark & self.mask
        cdef uint64_t found
        while True:
            found = self.index[probe]
            if found == 0:
                return NIL
            if found >> 32 == mark and same_text(
                self.entries[<uint32_t> found - 1].key, key
            ):
                return <uint32_t> found - 1
            probe = (probe + 1) & self.mask

    cdef inline uint32_t _find_or_room(self, PyObject* key) except? 0xFFFFFFFF:
        """As `_find`; for a key that is not there, expired ones make way first. Those may have
        finalizers, so the key is looked for again."""
        cdef uint32_t position = self._find(key)
        if position == NIL and self.max_keys >= 0 and self.count >= self.max_keys:
            self._reclaim(self.seen)
            position = self._find(key)
        return position

    cdef inline bint _is_shut(self) noexcept:
        """Whether a new key has to be refused."""
        return self.max_keys >= 0 and not self.evict and self.count >= self.max_keys

    cdef inline void _point(self, uint64_t slot) noexcept:
        """Enter a mark and its position, which are not there yet."""
        cdef uint64_t probe = slot >> 32 & self.mask
        while self.index[probe]:
            probe = (probe + 1) & self.mask
        self.index[probe] = slot

    cdef void _unpoint(self, uint32_t position) noexcept:
        """Take a key out and close the gap, so that no probe ends early."""
        cdef uint64_t hole = <uint32_t> hash_of(self.entries[position].key) & self.mask
        cdef uint64_t probe, home
        while <uint32_t> self.index[hole] != position + 1:
            hole = (hole + 1) & self.mask
        probe = hole
        while True:
            probe = (probe + 1) & self.mask
            if self.index[probe] == 0:
                break
            home = self.index[probe] >> 32 & self.mask
            if ((probe - home) & self.mask) >= ((probe - hole) & self.mask):
                self.index[hole] = self.index[probe]
                hole = probe
        self.index[hole] = 0

    cdef int _make_space(self) except -1:
        """Make sure that one more record fits, so that adding it cannot fail half-way."""
        if self.free == NIL and self.top == self.room:
            self._grow()
        if (<uint64_t> self.count + 1) * 3 > (self.mask + 1) * 2:
            self._widen()
        return 0

    cdef uint32_t _insert(self, str key, int64_t expires) noexcept:
        """A new, empty record for a key that has none, in the space that was made for it."""
        cdef uint32_t position
        cdef Entry* entry
        if self.free != NIL:
            position = self.free
            self.free = self.entries[position].next
        else:
            position = self.top
            self.top += 1
        entry = &self.entries[position]
        Py_INCREF(key)
        entry.key = <PyObject*> key
        entry.kind = NOTHING
        entry.used = False
        entry.version = 0
        entry.expires = expires
        self.count += 1
        self._point(slot_of(entry.key, position))
        self._file(position)
        return position

    cdef int _grow(self) except -1:
        # A quarter more once it is large: doubling would waste more than it saves.
        cdef uint64_t room = <uint64_t> self.room * 2
        if self.room > 65536:
            room = self.room + self.room // 4
        if room >= NIL:
            raise MemoryError("too many keys for one MemoryStore")
        cdef Entry* entries = <Entry*> PyMem_Realloc(self.entries, room * sizeof(Entry))
        if entries == NULL:
            raise MemoryError()
        self.entries = entries
        self.room = <uint32_t> room
        return 0

    cdef int _widen(self) except -1:
        """Double the index. Positions stay, so no record is touched."""
        cdef uint64_t* before = self.index
        cdef uint64_t slots = self.mask + 1
        cdef uint64_t probe
        self._clear_index(slots * 2)
        for probe in range(slots):
            if before[probe]:
                self._point(before[probe])
        PyMem_Free(before)
        return 0

    cdef int _clear_index(self, uint64_t slots) except -1:
        """A new, empty index; the old one is the caller's to free."""
        cdef uint64_t* index = <uint64_t*> PyMem_Malloc(slots * sizeof(uint64_t))
        if index == NULL:
            raise MemoryError()
        memset(index, 0, slots * sizeof(uint64_t))
        self.index = index
        self.mask = slots - 1
        return 0

    cdef int _shrink(self) except -1:
        """Give memory back once three quarters of it lie idle: pack the records, file them anew."""
        cdef uint64_t* before = self.index
        cdef uint64_t slots = 2 * LEAST_ENTRIES
        cdef uint32_t room = at_least(LEAST_ENTRIES, self.count + self.count // 4)
        cdef uint32_t position
        cdef uint32_t kept = 0
        cdef Entry* entries
        while slots < <uint64_t> room * 2:
            slots *= 2
        self._clear_index(slots)
        PyMem_Free(before)
        memset(self.heads, 0xFF, sizeof(self.heads))
        for position in range(self.top):
            if self.entries[position].key != NULL:
                self.entries[kept] = self.entries[position]
                self._point(slot_of(self.entries[kept].key, kept))
                self._file(kept)
                kept += 1
        self.top = kept
        self.free = NIL
        self.hand = 0
        entries = <Entry*> PyMem_Realloc(self.entries, room * sizeof(Entry))
        if entries != NULL:
            self.entries = entries
            self.room = room
        return 0

    # Leaving.

    cdef int _drop(self, uint32_t position) except -1:
        cdef Entry gone = self._detach(position)
        self._release(gone)
        return 0

    cdef Entry _detach(self, uint32_t position) noexcept:
        """Take a record out of every structure; what it holds is the caller's to release."""
        cdef Entry gone = self.entries[position]
        self._unlink(position)
        self._unpoint(position)
        self.entries[position].key = NULL
        self.entries[position].next = self.free
        self.free = position
        self.count -= 1
        return gone

    cdef void _release(self, Entry gone) noexcept:
        Py_XDECREF(gone.key)
        if gone.kind == OBJECT:
            Py_XDECREF(<PyObject*> gone.a.p)
            Py_XDECREF(<PyObject*> gone.b.p)
        elif gone.kind >= SLIDING_WINDOW:
            PyMem_Free(gone.b.p)

    cdef Entry _evict_one(self) noexcept:
        """Take out the key that was least recently needed."""
        cdef Entry* entry
        cdef uint32_t position
        while True:
            if self.hand >= self.top:
                self.hand = 0
            position = self.hand
            self.hand += 1
            entry = &self.entries[position]
            if entry.key == NULL:
                continue
            if not entry.used:
                break
            entry.used = False
        self.evictions += 1
        return self._detach(position)

    # The wheel.

    cdef inline void _push(self, uint32_t position, uint16_t slot) noexcept:
        cdef Entry* entry = &self.entries[position]
        entry.slot = slot
        entry.prev = NIL
        entry.next = self.heads[slot]
        if entry.next != NIL:
            self.entries[entry.next].prev = position
        self.heads[slot] = position

    cdef inline void _unlink(self, uint32_t position) noexcept:
        cdef Entry* entry = &self.entries[position]
        if entry.prev == NIL:
            self.heads[entry.slot] = entry.next
        else:
            self.entries[entry.prev].next = entry.next
        if entry.next != NIL:
            self.entries[entry.next].prev = entry.prev

    cdef void _file(self, uint32_t position) noexcept:
        """Put a record where time will find it."""
        cdef int64_t at = self.entries[position].expires
        cdef int64_t ahead
        cdef int level = 0
        if at < self.wheel_now + 1:
            at = self.wheel_now + 1
        elif at > self.wheel_now + REACH_MS - 1:
            at = self.wheel_now + REACH_MS - 1
        ahead = at - self.wheel_now
        while ahead >= LEVEL_SLOTS:
            ahead >>= LEVEL_BITS
            level += 1
        self._push(
            position,
            <uint16_t> (level * LEVEL_SLOTS + ((at >> (LEVEL_BITS * level)) & (LEVEL_SLOTS - 1))),
        )

    cdef int64_t _reclaim(self, int64_t now) except -1:
        """Move the wheel to `now` and drop what is due there."""
        cdef int64_t before = self.wheel_now
        cdef int64_t first, last, place
        cdef int64_t dropped = 0
        cdef int level
        if now <= before:
            return 0
        self.wheel_now = now
        for level in range(LEVELS - 1, -1, -1):
            first = (before >> (LEVEL_BITS * level)) + 1
            last = now >> (LEVEL_BITS * level)
            if last > first + LEVEL_SLOTS - 1:
                last = first + LEVEL_SLOTS - 1
            for place in range(first, last + 1):
                dropped += self._empty_slot(level * LEVEL_SLOTS + (place & (LEVEL_SLOTS - 1)), now)
        if dropped:
            # A finalizer may have come back here at a later instant.
            self.horizon = at_least(self.horizon, now)
            if self.room > RECLAIM_FLOOR and self.count < self.room // 4:
                self._shrink()
        return dropped

    cdef int _weigh(self, int64_t now) except -1:
        """Drop what is due among few keys, if they are heavy. To weigh an object may run anything,
        so the table is looked at anew after each."""
        cdef uint32_t position = 0
        cdef int64_t weight = 0
        cdef Entry* entry
        self.weigh_at = now + WEIGH_EVERY_MS
        while position < self.top:
            entry = &self.entries[position]
            position += 1
            if entry.key == NULL:
                continue
            if entry.kind == OBJECT:
                state = <object> <PyObject*> entry.b.p
                weight += <int64_t> getsizeof(state, 0)
            elif entry.kind >= SLIDING_WINDOW:
                weight += <int64_t> runs_bytes((<Runs*> entry.b.p).capacity)
        if weight > LIGHT_BYTES:
            self._reclaim(now)
        return 0

    cdef int64_t _empty_slot(self, int slot, int64_t now) except -1:
        cdef uint32_t position
        cdef int64_t dropped = 0
        # A record may be filed again under the very slot it was found in: set all aside first.
        while self.heads[slot] != NIL:
            position = self.heads[slot]
            self._unlink(position)
            self._push(position, PENDING)
        while self.heads[PENDING] != NIL:
            position = self.heads[PENDING]
            if self.entries[position].expires <= now:
                self._drop(position)
                dropped += 1
            else:
                self._unlink(position)
                self._file(position)
        return dropped

    cdef int64_t _next_due(self) noexcept:
        """No key is due before this instant."""
        cdef int64_t soonest = self.wheel_now + REACH_MS
        cdef int64_t base, place
        cdef int level
        for level in range(LEVELS):
            base = self.wheel_now >> (LEVEL_BITS * level)
            for place in range(base + 1, base + LEVEL_SLOTS + 1):
                if self.heads[level * LEVEL_SLOTS + (place & (LEVEL_SLOTS - 1))] != NIL:
                    soonest = min(soonest, place << (LEVEL_BITS * level))
                    break
        return soonest


cdef object _kernel_of(transform):
    """The kernel that stands for a transform's strategy, or False."""
    rider = transform.native
    return False if rider is None else Kernel(rider)
