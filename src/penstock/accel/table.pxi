# The table: keys to states in two flat arrays.
#
# `entries` holds one record per key, and `index` is an open-addressing hash table of positions in
# it: linear probing, with 32 bits of the hash beside each position. A slot's home is taken from the
# same 32 bits, so that moving slots never touches a key, and a probe hardly ever a foreign one.
# Compared with a dict of objects this saves an allocation and a cache miss per key.
# Beside its two words of state a record carries its links in the timing wheel (see
# stores/memory/_eviction.py, whose twin this is) and its rank in the order of eviction (order.pxi).
#
# The rules of expiry, reclaiming, the horizon and the bounds are those of stores/memory/_table.py;
# its essay gives the reasons.
#
# Dropping a custom state may run Python code (a finalizer), which may come back here. So whatever
# is dropped leaves the structures first and is released last, once what takes its place is written:
# until then its entry is on the list `leaving`. No pointer into `entries` is used across a release.
# The same goes for making a tuple, which may run the collector and with it any finalizer.

cdef enum:
    LEVEL_BITS = 8
    LEVEL_SLOTS = 256
    LEVELS = 4
    PENDING = 1024          # one slot beyond the wheel, for what is being moved
    RECLAIM_FLOOR = 1024
    LIGHT_BYTES = 1 << 20
    WEIGH_EVERY_MS = 1000
    LEAST_ENTRIES = 8
    MOST_AT_ONCE = 8
    # An entry, its place in the order and its share of the index, each as they grow by steps.
    RECORD_BYTES = 100

cdef tuple LOOKING = ("peek", "forecast", "look", "try")
ctypedef struct Writing:
    Sought sought
    Record fresh
    Record before
    int64_t expires
    int64_t expires_before
    int64_t weight
    uint32_t version
    int rank

cdef extern from "Python.h":
    tuple PyTuple_New(Py_ssize_t size)
    void PyTuple_SET_ITEM(tuple made, Py_ssize_t place, object item)

cdef int64_t REACH_MS = <int64_t> 1 << (LEVEL_BITS * LEVELS)


cdef inline uint64_t slot_of(const Name* name, uint32_t position) noexcept:
    return (<uint64_t> name.mark << 32) | (position + 1)


cdef inline int64_t least_size(uint32_t length) noexcept:
    """What a key of that length takes whatever its state."""
    return RECORD_BYTES + block_bytes(name_bytes(length))


cdef inline int64_t state_bytes(Record* entry) noexcept:
    """What a state takes beside its record; that of an OBJECT has to be weighed."""
    if entry.kind < SLIDING_WINDOW:
        return 0
    return block_bytes(runs_bytes((<Runs*> entry.b.p).capacity))


cdef inline int known_rank(int kind, int rank, int otherwise) noexcept:
    """A rank below 0 is none. Credits are no restriction, so they have none either."""
    return otherwise if rank < 0 or kind == CREDITS else rank


@cython.final
cdef class Table:
    """States by key, in machine words."""

    cdef Record* entries
    cdef uint32_t room          # entries allocated
    cdef uint32_t top           # entries ever used: those beyond are untouched memory
    cdef uint32_t free          # head of the free ones below `top`
    cdef uint32_t leaving       # head of those whose states are yet to be released
    cdef uint32_t count
    cdef uint64_t* index
    cdef uint64_t mask
    cdef uint32_t[1025] heads
    cdef int64_t wheel_now
    cdef int64_t seen
    cdef int64_t horizon
    cdef int64_t weigh_at
    cdef bint bounded
    cdef bint evict
    cdef Order order            # of a table with bounds
    cdef uint32_t clock
    cdef bint holding           # while several keys are written: nothing is released
    cdef readonly int64_t evictions
    cdef readonly int64_t refusals
    cdef Py_ssize_t longest
    cdef object digest_of
    cdef object wrong_kind
    cdef readonly object require_ttl
    cdef object lock

    def __cinit__(
        self,
        int64_t max_keys,
        int64_t max_bytes,
        bint evict,
        Py_ssize_t longest,
        digest_of,
        wrong_kind,
        require_ttl,
    ):
        self.bounded = max_keys >= 0 or max_bytes >= 0
        self.evict = evict
        self.longest = longest
        self.digest_of = digest_of
        self.wrong_kind = wrong_kind
        self.require_ttl = require_ttl
        self.lock = threading.RLock()
        self.free = self.leaving = NIL
        memset(self.heads, 0xFF, sizeof(self.heads))
        self.order = Order(max_keys, max_bytes)
        if self.bounded:
            self.order.reserve(LEAST_ENTRIES)
        self.entries = <Record*> PyMem_Malloc(LEAST_ENTRIES * sizeof(Record))
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
                if self.entries[position].name != NULL:
                    PyMem_Free(self.entries[position].name)
                    self._release(self.entries[position])
        PyMem_Free(self.entries)
        PyMem_Free(self.index)

    # The public face, the same as that of the interpreted table.

    def apply(self, str key not None, transform, int64_t now, int64_t cost):
        kernel = kernel_of(transform)
        if kernel and transform.role == "check":
            return self.check(<Kernel> kernel, key, now, cost, transform)
        with self.lock:
            return self._apply(key, transform, <Kernel> kernel if kernel else None, now, cost)

    def discard(self, str key not None):
        cdef Sought sought
        cdef uint32_t position
        held = self._seek(key, &sought)
        position = self._find(&sought)
        if position != NIL:
            self._leave(position)
            self._let_go()

    def sweep(self, int64_t now):
        """Drop everything that is expired at `now`; returns how many."""
        if now > self.seen:
            self.seen = now
        return self._reclaim(self.seen)

    def renew_lock(self):
        """For the child of a fork: the thread that held the lock is not in it."""
        self.lock = threading.RLock()

    def __len__(self):
        self._reclaim(self.seen)
        return self.count

    @property
    def keys(self):
        """How many keys there are, those that have expired but not been dropped included."""
        return self.count

    @property
    def weight(self):
        """About how many bytes they take."""
        cdef uint32_t position
        cdef int64_t total = 0
        if self.bounded:
            return self.order.bytes
        for position in range(self.top):
            if self.entries[position].name != NULL:
                total += least_size(self.entries[position].name.length)
        return total + self._states_weight()

    # Several keys at once; `_apply_all` in stores/memory/_store.py says in which order.

    def read(self, str key not None, transform, int64_t now):
        """The state of a key, the instant to decide it at, until when it counts, and a mark that
        changes with every write."""
        cdef Sought sought
        cdef uint32_t position
        held = self._seek(key, &sought)
        self._advance(now)
        position = self._find_or_room(&sought)
        if position == NIL:
            return None, (now if now > self.horizon else self.horizon), 0, 0
        if now >= self.entries[position].expires:
            return None, now, 0, self.entries[position].version
        # Before the state is made, which may run anything.
        expires, version = self.entries[position].expires, self.entries[position].version
        state = self._export(key, position, transform.kind, kind_of(transform))
        return state, now, expires, version

    def is_shut(self, str key not None):
        """Whether a new key of that name would be refused."""
        cdef Sought sought
        held = self._seek(key, &sought)
        return self._find(&sought) == NIL and self._is_shut(&sought)

    def due_in(self):
        """How long until there may be room."""
        return self._next_due() - self.wheel_now

    def commit(self, list writes not None):
        """Write all of them, if nothing was written meanwhile: True. None, if something was; and
        where there is no room for one of them, its place, and nothing is written. Each is (key,
        transform, state, until when, mark, the state before, until when that counted, decision)."""
        cdef Py_ssize_t place
        cdef Py_ssize_t written = 0
        cdef Py_ssize_t count = len(writes)
        cdef uint32_t position
        cdef Writing* each
        cdef Writing* all_of_them = <Writing*> PyMem_Malloc((count + 1) * sizeof(Writing))
        # Whatever has to live until the end: the texts that are looked for, the states that go.
        held = []
        if all_of_them == NULL:
            raise MemoryError()
        memset(all_of_them, 0, (count + 1) * sizeof(Writing))
        try:
            # First everything that may run Python code.
            for place in range(count):
                held.append(self._prepare(writes[place], &all_of_them[place]))
            self._make_space(count)
            for place in range(count):
                each = &all_of_them[place]
                position = self._find(&each.sought)
                if each.version != (0 if position == NIL else self.entries[position].version):
                    return None
            # From here on nothing runs but what is in this file.
            self.holding = True
            while written < count:
                each = &all_of_them[written]
                if not self._replace(&each.sought, &each.fresh, each.expires, each.weight,
                                     each.rank):
                    break
                written += 1
            if written == count:
                return True
            for place in range(written):
                each = &all_of_them[place]
                self._replace(&each.sought, &each.before, each.expires_before, each.weight, -1)
            return written
        finally:
            self.holding = False
            for place in range(count):
                self._release(all_of_them[place].fresh)
                self._release(all_of_them[place].before)
            PyMem_Free(all_of_them)
            self._let_go()

    cdef object _prepare(self, tuple write, Writing* each):
        """Returns what has to live as long as it."""
        key, transform, state, until, version, before, until_before, decision = write
        held = self._seek(key, &each.sought)
        each.version = version
        each.expires, each.expires_before = until, until_before
        each.rank = rank_of_decision(decision)
        each.weight = getsizeof(state, 0) if self.bounded else 0
        kind = kind_of(transform)
        if state is not None:
            self._pack(&each.fresh, kind, transform.kind, state, &each.expires)
        if before is not None:
            self._pack(&each.before, kind, transform.kind, before, &each.expires_before)
        return held, state, before

    cdef bint _replace(
        self, const Sought* sought, Record* fresh, int64_t expires, int64_t weight, int rank
    ) except -1:
        """Put a state under a key, or take the key out where there is none. False: no room."""
        cdef uint32_t position = self._find(sought)
        cdef Record taken = fresh[0]
        fresh.kind = NOTHING
        if taken.kind != NOTHING:
            return self._put(sought, position, &taken, expires, weight, rank)
        if position != NIL:
            self._leave(position)
        return True

    cdef tuple check_all(
        self,
        list kernels,
        Sought* sought,
        Py_ssize_t count,
        int64_t now,
        int64_t units,
        const unsigned char* shadows,
        bint* allowed,
    ):
        """So many units of each key, all or nothing: the decisions. If the request is denied, the
        limits that would have admitted it show what is there, as a check of cost 0 does. None if
        the steps have to be decided in Python, which includes those of a table without room."""
        cdef KernelOutcome[MOST_AT_ONCE] outcomes
        cdef uint32_t[MOST_AT_ONCE] positions
        cdef int64_t[MOST_AT_ONCE] instants
        cdef bint[MOST_AT_ONCE] known
        cdef Word[MOST_AT_ONCE] a
        cdef Word[MOST_AT_ONCE] b
        cdef int64_t[MOST_AT_ONCE] expires
        cdef Py_ssize_t place, other
        cdef bint admitted = True
        cdef int64_t more = 0
        cdef Record* entry
        cdef Kernel kernel
        cdef Decision decision
        self._advance(now)
        for place in range(count):
            positions[place] = self._find(&sought[place])
            instants[place] = now
            known[place] = False
            a[place].i = b[place].i = expires[place] = 0
            kernel = <Kernel> kernels[place]
            if self.bounded:
                more += self._most_more(positions[place], &sought[place], kernel.kind)
            if positions[place] == NIL:
                instants[place] = at_least(now, self.horizon)
            else:
                entry = &self.entries[positions[place]]
                if now < entry.expires:
                    if entry.kind != kernel.kind:
                        return None
                    known[place] = True
                    a[place] = entry.a
                    b[place] = entry.b
                    expires[place] = entry.expires
            for other in range(place):
                if is_same(&sought[place], &sought[other]):
                    return None
            decide(
                kernel, known[place], a[place], b[place], expires[place], instants[place], units,
                &outcomes[place],
            )
            if not outcomes[place].allowed and not shadows[place]:
                admitted = False
        if self.bounded and not self.order.has_room(count, more):
            return None
        allowed[0] = admitted
        if admitted:
            self._make_space(count)
            for place in range(count):
                if outcomes[place].allowed:
                    self._commit(
                        &sought[place],
                        positions[place],
                        (<Kernel> kernels[place]).kind,
                        known[place],
                        instants[place] + outcomes[place].ttl,
                        units,
                        &outcomes[place],
                    )
        else:
            for place in range(count):
                if outcomes[place].allowed:
                    decide(
                        <Kernel> kernels[place], known[place], a[place], b[place], expires[place],
                        instants[place], 0, &outcomes[place],
                    )
                    outcomes[place].allowed = True
                    outcomes[place].retry = 0
        decisions = PyTuple_New(count)
        for place in range(count):
            decision = decision_of(&outcomes[place])
            Py_INCREF(decision)
            PyTuple_SET_ITEM(decisions, place, decision)
        return decisions

    cdef inline int64_t _most_more(
        self, uint32_t position, const Sought* sought, Kind kind
    ) noexcept:
        """The most bytes by which a record may grow, whatever is decided; lists at most double."""
        cdef int64_t fresh = block_bytes(runs_bytes(2))
        if position == NIL:
            return least_size(sought.length) + fresh
        if self.entries[position].kind != kind:
            return fresh
        return fresh + state_bytes(&self.entries[position])

    # Deciding.

    cdef inline int _advance(self, int64_t now) except -1:
        """The latest instant that was seen: what is due by it may go."""
        if now > self.seen:
            self.seen = now
            if self.count > RECLAIM_FLOOR:
                self._reclaim(now)
            elif now >= self.weigh_at:
                self._weigh(now)
        return 0

    cdef Decision check(self, Kernel kernel, str key, int64_t now, int64_t cost, transform):
        cdef Word a, b
        cdef KernelOutcome outcome
        cdef Record* entry
        cdef Sought sought
        cdef bint known = False
        cdef uint32_t position
        cdef int64_t expires = 0
        held = None
        if not seek_ascii(<PyObject*> key, self.longest, &sought):
            held = self._seek(key, &sought)
        a.i = b.i = 0
        self._advance(now)
        position = self._find_or_room(&sought)
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
        decide(kernel, known, a, b, expires, now, cost, &outcome)
        if outcome.allowed:
            if not self._commit(&sought, position, kernel.kind, known, now + outcome.ttl, cost,
                                &outcome):
                return self._refuse(transform, now)
        elif self.bounded and position != NIL:
            self._use(position, kernel.kind, rank_of(&outcome))
        return decision_of(&outcome)

    cdef bint _commit(
        self,
        const Sought* sought,
        uint32_t position,
        Kind kind,
        bint known,
        int64_t expires,
        int64_t cost,
        KernelOutcome* outcome,
    ) except -1:
        """Write what a kernel decided, unless there is no room for it."""
        cdef Record* entry
        cdef Record fresh
        cdef Runs* runs
        if known and kind < SLIDING_WINDOW:
            entry = &self.entries[position]
            entry.a = outcome.a
            entry.b = outcome.b
            self._touch(position, expires)
        elif known:
            if not self._grow_runs(position, outcome.drop):
                self._let_go()
                return False
            entry = &self.entries[position]
            runs = <Runs*> entry.b.p
            runs_drop(runs, outcome.drop)
            entry.b.p = runs = runs_reserve(runs)
            runs_add(runs, outcome.a.i, cost)
            self._touch(position, expires)
        else:
            fresh.kind = kind
            fresh.a = outcome.a
            fresh.b = outcome.b
            if kind >= SLIDING_WINDOW:
                runs = runs_new()
                runs_add(runs, outcome.a.i, cost)
                fresh.b.p = runs
            return self._put(sought, position, &fresh, expires, 0, rank_of(outcome))
        if self.bounded:
            self._use(position, kind, rank_of(outcome))
            self._let_go()
        return True

    cdef inline void _use(self, uint32_t position, int kind, int rank) noexcept:
        """A key was asked for."""
        rank = known_rank(kind, rank, self.entries[position].heat >> 1)
        self.order.use(self.entries, position, rank)

    cdef inline void _touch(self, uint32_t position, int64_t expires) noexcept:
        """A record was written: note it, and find it sooner if it is to go sooner."""
        cdef Record* entry = &self.entries[position]
        cdef bint sooner = expires < entry.expires
        self.clock += 1
        entry.version = self.clock
        entry.expires = expires
        if sooner:
            self._unlink(position)
            self._file(position)

    cdef bint _put(
        self,
        const Sought* sought,
        uint32_t position,
        Record* fresh,
        int64_t expires,
        int64_t weight,
        int rank,
    ) except -1:
        """Replace a record's state or, at NIL, add a record; False if there is no room for it. An
        OBJECT weighs `weight`. What goes is released at the very end: by then the table is whole."""
        cdef Record gone
        cdef Record* entry
        cdef Name* name = NULL
        cdef int64_t size = 0
        gone.kind = NOTHING
        try:
            if position == NIL:
                self._make_space(1)
                name = name_new(sought)
        except BaseException:
            self._release(fresh[0])
            raise
        if self.bounded:
            size = least_size(sought.length) + state_bytes(fresh) + weight
            if not (self._make_room(size) if position == NIL else self._resize(position, size)):
                PyMem_Free(name)
                self._release(fresh[0])
                self._let_go()
                return False
        if position == NIL:
            position = self._insert(name, expires)
            if self.bounded:
                self.order.add(self.entries, position, known_rank(fresh.kind, rank, IDLE), size)
        else:
            gone = self.entries[position]
            if self.bounded:
                self._use(position, fresh.kind, rank)
        entry = &self.entries[position]
        entry.kind = fresh.kind
        entry.a = fresh.a
        entry.b = fresh.b
        self._touch(position, expires)
        self._release(gone)
        self._let_go()
        return True

    cdef object _apply(self, str key, transform, Kernel kernel, int64_t now, int64_t cost):
        """Any transform that is Python code: run it, and commit if nobody wrote meanwhile."""
        cdef Sought sought
        cdef uint32_t position, version
        cdef Kind kind = kernel.kind if kernel is not None else OBJECT
        cdef int64_t at, expires
        cdef int64_t weight = 0
        cdef int rank = -1
        cdef Record fresh
        held = self._seek(key, &sought)
        while True:
            at = now
            self._advance(now)
            position = self._find_or_room(&sought)
            version = 0
            state = None
            if position == NIL:
                if now < self.horizon:
                    at = self.horizon
                looks = transform.role in LOOKING
                if looks and self._is_shut(&sought) and transform.needs_room(at, cost):
                    return self._refuse(transform, at)
            else:
                version = self.entries[position].version
                if now < self.entries[position].expires:
                    state = self._export(key, position, transform.kind, kind)
            outcome = transform.run(state, at, cost)
            result = outcome.result
            if self.bounded:
                rank = rank_in(transform, result)
            if not outcome.persist:
                if self.bounded:
                    position = self._find(&sought)
                    if position != NIL:
                        self._use(position, kind, rank)
                return result
            state = outcome.state
            # From here to the write nothing may run but what is in this file.
            if state is None:
                position = self._find(&sought)
                if version != (0 if position == NIL else self.entries[position].version):
                    continue
                if position != NIL:
                    self._leave(position)
                    self._let_go()
                return result
            expires = at + <int64_t> self.require_ttl(transform, outcome.ttl_ms)
            if self.bounded and kind == OBJECT:
                weight = getsizeof(state, 0)
                if self.order.is_over(least_size(sought.length) + weight):
                    self._reclaim(self.seen)
            self._pack(&fresh, kind, transform.kind, state, &expires)
            position = self._find(&sought)
            if version != (0 if position == NIL else self.entries[position].version):
                self._release(fresh)
                continue
            if not self._put(&sought, position, &fresh, expires, weight, rank):
                return self._refuse(transform, at)
            return result

    cdef object _refuse(self, transform, int64_t now):
        return transform.refuse(now, self._next_due() - self.wheel_now)

    cdef object _export(self, str key, uint32_t position, str wanted, Kind kind):
        """A state as Python sees it."""
        cdef Record* entry = &self.entries[position]
        cdef int64_t word
        if wanted and (
            entry.kind != kind or kind == OBJECT and <str> <PyObject*> entry.a.p != wanted
        ):
            raise self._clash(key, entry, wanted)
        # Read before any tuple is made.
        word = entry.b.i
        if entry.kind == GCRA:
            return entry.a.d, FIGURES_OF_PYTHON[word >> INSTANT_BITS], word & INSTANT_MASK
        if entry.kind == TOKEN_BUCKET:
            bucket = entry.a.d, word & INSTANT_MASK
            return bucket, FIGURES_OF_PYTHON[word >> INSTANT_BITS], word & INSTANT_MASK
        if entry.kind == FIXED_WINDOW:
            return entry.a.i, entry.b.i
        if entry.kind == CREDITS:
            return entry.a.i, entry.b.i, entry.expires
        if entry.kind == OBJECT:
            return <object> <PyObject*> entry.b.p
        return runs_export(<Runs*> entry.b.p)

    cdef int _pack(self, Record* fresh, Kind kind, str name, state, int64_t* expires) except -1:
        """What Python made, in the form that its kind has here. It may run Python code."""
        cdef Runs* runs
        fresh.kind = kind
        fresh.a.i = fresh.b.i = 0
        if kind == GCRA:
            fresh.a.d, figures, fresh.b.i = state
            fresh.b.i |= number_of_figures(figures) << INSTANT_BITS
        elif kind == TOKEN_BUCKET:
            bucket, figures, _ = state
            fresh.a.d, fresh.b.i = bucket
            fresh.b.i |= number_of_figures(figures) << INSTANT_BITS
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

    cdef object _clash(self, str key, Record* entry, str wanted):
        held = <str> <PyObject*> entry.a.p if entry.kind == OBJECT else KIND_NAMES[entry.kind]
        return self.wrong_kind(key, held, wanted)

    # Keys to positions.

    cdef object _seek(self, str key, Sought* sought):
        """What to look for; it points into the key, or into what is returned."""
        if seek_ascii(<PyObject*> key, self.longest, sought):
            return None
        return seek(key, self.longest, self.digest_of, sought)

    cdef inline uint32_t _find(self, const Sought* sought) noexcept:
        cdef uint64_t probe = sought.mark & self.mask
        cdef uint64_t found
        while True:
            found = self.index[probe]
            if found == 0:
                return NIL
            if found >> 32 == sought.mark and is_named(
                self.entries[<uint32_t> found - 1].name, sought
            ):
                return <uint32_t> found - 1
            probe = (probe + 1) & self.mask

    cdef inline uint32_t _find_or_room(self, const Sought* sought) except? 0xFFFFFFFF:
        """As `_find`; for a key that is not there, expired ones make way first. Those may have
        finalizers, so the key is looked for again."""
        cdef uint32_t position = self._find(sought)
        if position == NIL and self.bounded and self.order.is_full(least_size(sought.length)):
            self._reclaim(self.seen)
            position = self._find(sought)
        return position

    cdef inline bint _is_shut(self, const Sought* sought) noexcept:
        """Whether a new key has to be refused."""
        return self.bounded and not self.evict and self.order.is_full(least_size(sought.length))

    cdef inline void _point(self, uint64_t slot) noexcept:
        """Enter a mark and its position, which are not there yet."""
        cdef uint64_t probe = slot >> 32 & self.mask
        while self.index[probe]:
            probe = (probe + 1) & self.mask
        self.index[probe] = slot

    cdef void _unpoint(self, uint32_t position) noexcept:
        """Take a key out and close the gap, so that no probe ends early."""
        cdef uint64_t hole = self.entries[position].name.mark & self.mask
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

    cdef int _make_space(self, Py_ssize_t more) except -1:
        """Make sure that so many more records fit, so that adding them cannot fail half-way."""
        while self.top + more > self.room and (more > 1 or self.free == NIL):
            self._grow()
        while (<uint64_t> self.count + more) * 3 > (self.mask + 1) * 2:
            self._widen()
        return 0

    cdef uint32_t _insert(self, Name* name, int64_t expires) noexcept:
        """A new, empty record for a key that has none, in the space that was made for it."""
        cdef uint32_t position
        cdef Record* entry
        if self.free != NIL:
            position = self.free
            self.free = self.entries[position].next
        else:
            position = self.top
            self.top += 1
        entry = &self.entries[position]
        entry.name = name
        entry.kind = NOTHING
        entry.heat = 0
        entry.version = 0
        entry.expires = expires
        self.count += 1
        self._point(slot_of(name, position))
        self._file(position)
        return position

    cdef int _grow(self) except -1:
        # A quarter more once it is large: doubling would waste more than it saves.
        cdef uint64_t room = <uint64_t> self.room * 2
        if self.room > RECLAIM_FLOOR:
            room = self.room + self.room // 4
        if room >= NIL:
            raise MemoryError("too many keys for one MemoryStore")
        cdef Record* entries = <Record*> PyMem_Realloc(self.entries, room * sizeof(Record))
        if entries == NULL:
            raise MemoryError()
        self.entries = entries
        if self.bounded:
            self.order.reserve(room)
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
        cdef Record* entries
        if self.leaving != NIL:
            return 0
        while slots < <uint64_t> room * 2:
            slots *= 2
        self._clear_index(slots)
        PyMem_Free(before)
        memset(self.heads, 0xFF, sizeof(self.heads))
        # All leave the wheel, so their links may say meanwhile where they are going to be.
        for position in range(self.top):
            self.entries[position].next = kept
            kept += self.entries[position].name != NULL
        if self.bounded:
            self.order.relink(self.entries)
        for position in range(self.top):
            if self.entries[position].name == NULL:
                continue
            kept = self.entries[position].next
            self.entries[kept] = self.entries[position]
            if self.bounded:
                self.order.places[kept] = self.order.places[position]
            self._point(slot_of(self.entries[kept].name, kept))
            self._file(kept)
        self.top = self.count
        self.free = NIL
        entries = <Record*> PyMem_Realloc(self.entries, room * sizeof(Record))
        if entries != NULL:
            self.entries = entries
            self.room = room
            if self.bounded:
                self.order.reserve(room)
        return 0

    # Leaving.

    cdef void _leave(self, uint32_t position) noexcept:
        """Take a record out of every structure. A state that is Python's is released later, by
        `_let_go`, since that may run anything."""
        cdef Record* entry = &self.entries[position]
        self._unlink(position)
        self._unpoint(position)
        if self.bounded:
            self.order.remove(self.entries, position)
        self.count -= 1
        PyMem_Free(entry.name)
        entry.name = NULL
        if entry.kind == OBJECT:
            entry.next = self.leaving
            self.leaving = position
            return
        self._release(entry[0])
        entry.next = self.free
        self.free = position

    cdef inline void _let_go(self) noexcept:
        """Release the states of records that have left. The table must be whole."""
        cdef uint32_t position
        cdef Record gone
        if self.holding:
            return
        while self.leaving != NIL:
            position = self.leaving
            gone = self.entries[position]
            self.leaving = gone.next
            self.entries[position].kind = NOTHING
            self.entries[position].next = self.free
            self.free = position
            self._release(gone)

    cdef void _release(self, Record gone) noexcept:
        if gone.kind == OBJECT:
            Py_XDECREF(<PyObject*> gone.a.p)
            Py_XDECREF(<PyObject*> gone.b.p)
        elif gone.kind >= SLIDING_WINDOW:
            PyMem_Free(gone.b.p)

    # Bounds. None of this runs Python code.

    cdef bint _make_room(self, int64_t size) noexcept:
        """Evict until a new key of that size fits. False: it has to be refused."""
        if self.order.is_full(size):
            self._collect(self.seen)
        if self.order.is_too_large(size) or (not self.evict and self.order.is_full(size)):
            self.refusals += 1
            return False
        while self.order.is_full(size):
            self._evict_one()
        return True

    cdef bint _resize(self, uint32_t position, int64_t size) noexcept:
        """Evict others until a record of that size fits. False: what it grew by has to be
        refused."""
        cdef int64_t held = self.order.places[position].bytes
        cdef int rank
        # A clock that went back may still see a record that is due.
        if self.order.is_over(size - held) and self.entries[position].expires > self.seen:
            self._collect(self.seen)
        if size <= held or not self.order.is_over(size - held):
            self.order.resize(position, size)
            return True
        if not self.evict or self.order.is_too_large(size):
            self.refusals += 1
            return False
        # Out of the order meanwhile, lest it makes room for itself.
        rank = self.entries[position].heat >> 1
        self.order.remove(self.entries, position)
        while self.order.is_over(size):
            self._evict_one()
        self.order.add(self.entries, position, rank, size)
        return True

    cdef bint _grow_runs(self, uint32_t position, uint32_t drop) noexcept:
        """Make room for what one more pair takes, once the first `drop` are gone."""
        cdef Runs* runs = <Runs*> self.entries[position].b.p
        cdef uint32_t capacity
        cdef int64_t more
        if not self.bounded:
            return True
        capacity = runs_capacity(runs, drop)
        if capacity == runs.capacity:
            return True
        more = block_bytes(runs_bytes(capacity)) - block_bytes(runs_bytes(runs.capacity))
        return self._resize(position, self.order.places[position].bytes + more)

    cdef void _evict_one(self) noexcept:
        self.evictions += 1
        self._leave(self.order.victim(self.entries))

    # The wheel.

    cdef inline void _push(self, uint32_t position, uint16_t slot) noexcept:
        cdef Record* entry = &self.entries[position]
        entry.slot = slot
        entry.prev = NIL
        entry.next = self.heads[slot]
        if entry.next != NIL:
            self.entries[entry.next].prev = position
        self.heads[slot] = position

    cdef inline void _unlink(self, uint32_t position) noexcept:
        cdef Record* entry = &self.entries[position]
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
        cdef int64_t dropped = self._collect(now)
        if dropped:
            self._let_go()
            if self.room > RECLAIM_FLOOR and self.count < self.room // 4:
                self._shrink()
        return dropped

    cdef int64_t _collect(self, int64_t now) noexcept:
        """The same without running Python code: whoever calls it lets go."""
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
            self.horizon = at_least(self.horizon, now)
        return dropped

    cdef int _weigh(self, int64_t now) except -1:
        """Drop what is due among few keys, if they are heavy."""
        self.weigh_at = now + WEIGH_EVERY_MS
        if self._states_weight() > LIGHT_BYTES:
            self._reclaim(now)
        return 0

    cdef int64_t _states_weight(self) except -1:
        """To weigh an object may run anything, so the table is looked at anew after each."""
        cdef uint32_t position = 0
        cdef int64_t weight = 0
        cdef Record* entry
        while position < self.top:
            entry = &self.entries[position]
            position += 1
            if entry.name == NULL:
                continue
            if entry.kind == OBJECT:
                state = <object> <PyObject*> entry.b.p
                weight += <int64_t> getsizeof(state, 0)
            else:
                weight += state_bytes(entry)
        return weight

    cdef int64_t _empty_slot(self, int slot, int64_t now) noexcept:
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
                self._leave(position)
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


cdef inline Decision decision_of(KernelOutcome* outcome):
    cdef Decision decision = Decision.__new__(Decision)
    decision.made = True
    decision.allowed = outcome.allowed
    decision.limit = outcome.limit
    decision.remaining = outcome.remaining
    decision.reset_at = outcome.reset_at
    decision.retry_after_ms = outcome.retry
    return decision


cdef inline object kernel_of(transform):
    """The kernel that stands for a transform's strategy, or False."""
    kernel = transform.kernel
    if kernel is None:
        arguments = transform.native
        kernel = transform.kernel = False if arguments is None else Kernel(arguments)
    return kernel


cdef Kind kind_of(transform) except? NOTHING:
    kernel = kernel_of(transform)
    return (<Kernel> kernel).kind if kernel else OBJECT


cdef int rank_in(transform, result) except? -2:
    """The rank of a key after a transform that told this; -1 if it says nothing about the key."""
    return rank_of_decision(transform.decision_in(result))


cdef int rank_of_decision(decision) except? -2:
    if type(decision) is not Decision:
        return -1
    if not (<Decision> decision).allowed:
        return DENIED
    return SPENT if (<Decision> decision).remaining * NEARLY < (<Decision> decision).limit else IDLE
