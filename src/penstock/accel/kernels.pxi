# The five transitions, operation for operation as the oracles in `strategies/` do them. The tests
# compare every field over random timelines; read the essays there for the why.
#
# A kernel decides from the words of a state and leaves what is to be written in the outcome. It
# never changes a state itself: a denial must leave everything as it was.

cdef enum Kind:
    NOTHING
    OBJECT
    GCRA
    TOKEN_BUCKET
    FIXED_WINDOW
    CREDITS
    SLIDING_WINDOW
    SLIDING_WINDOW_LOG

cdef tuple KIND_NAMES = (
    "",
    "",
    "gcra",
    "token_bucket",
    "fixed_window",
    "credits",
    "sliding_window",
    "sliding_window_log",
)

cdef extern from *:
    """
    typedef union { double d; int64_t i; void* p; } PenstockWord;
    """
    ctypedef union Word "PenstockWord":
        double d
        int64_t i
        void* p

ctypedef struct KernelOutcome:
    bint allowed
    int64_t limit
    int64_t remaining
    int64_t reset_at
    int64_t retry
    # What to write if allowed: two words, or for runs the pairs to drop, and where to add.
    Word a
    Word b
    uint32_t drop
    int64_t ttl


# The figures of states, by numbers: see core/_figures.py. A record has its number in the second
# word, above the 48 bits of an instant: that of the write, or for a token bucket the one up to which
# it is credited. Programs have few figures; states of any beyond these have the number 0, and are
# read as if they were of the reader's own figures.
cdef enum:
    MOST_FIGURES = 1 << 15
    INSTANT_BITS = 48

cdef int64_t INSTANT_MASK = (<int64_t> 1 << INSTANT_BITS) - 1

ctypedef struct Figures:
    double first
    double second

cdef Figures[MOST_FIGURES] FIGURES
cdef list FIGURES_OF_PYTHON = [None]
cdef dict FIGURES_NUMBERS = {}


cdef int64_t number_of_figures(figures) except -1:
    """The number of a pair of figures, or of None."""
    cdef int64_t number
    if figures is None:
        return 0
    found = FIGURES_NUMBERS.get(figures)
    if found is not None:
        return found
    number = len(FIGURES_OF_PYTHON)
    if number == MOST_FIGURES:
        return 0
    FIGURES[number].first, FIGURES[number].second = figures
    FIGURES_OF_PYTHON.append(figures)
    FIGURES_NUMBERS[figures] = number
    return number


cdef inline int64_t at_least(int64_t low, int64_t value) noexcept:
    return value if value > low else low


cdef inline int64_t saturated(double value) noexcept:
    return MAX_SAFE if value >= MAX_SAFE_D else <int64_t> value


@cython.final
cdef class Kernel:
    """A strategy's native accelerator, unpacked: which transition, and its parameters."""

    cdef Kind kind
    cdef double d0
    cdef double d1
    cdef int64_t i0
    cdef int64_t i1
    cdef int64_t i2
    cdef int64_t figures

    def __init__(self, tuple declared not None):
        name = declared[0]
        if name == "gcra":
            self.kind = GCRA
            self.d0, self.d1, self.i0 = declared[1], declared[2], declared[3]
            self.figures = number_of_figures((self.d0, self.d1) if declared[4] else None)
        elif name == "token_bucket":
            self.kind = TOKEN_BUCKET
            self.d0, self.d1, self.i0 = declared[1], declared[2], declared[3]
            self.figures = number_of_figures((self.d0, self.d1) if declared[4] else None)
            self.i1 = <int64_t> self.d0
        elif name == "fixed_window":
            self.kind = FIXED_WINDOW
            self.i0, self.i1, self.i2 = declared[1], declared[2], declared[3]
        elif name == "credits":
            self.kind = CREDITS
            self.i0 = declared[1]
        elif name == "sliding_window":
            self.kind = SLIDING_WINDOW
            self.i0, self.i1, self.i2 = declared[1], declared[2], declared[3]
            self.d0 = <double> self.i1 / <double> self.i2
        elif name == "sliding_window_log":
            self.kind = SLIDING_WINDOW_LOG
            self.i0, self.i1 = declared[1], declared[2]
        else:
            raise ValueError(f"no native kernel named {name!r}")


cdef inline void decide(
    Kernel kernel,
    bint known,
    Word a,
    Word b,
    int64_t expires,
    int64_t now,
    int64_t cost,
    KernelOutcome* outcome,
) noexcept:
    if kernel.kind == GCRA:
        if known and b.i >> INSTANT_BITS != kernel.figures and b.i >> INSTANT_BITS:
            a.d = adopted_gcra(kernel, a.d, b.i, now)
        decide_gcra(kernel, known, a, now, cost, outcome)
    elif kernel.kind == TOKEN_BUCKET:
        if known and b.i >> INSTANT_BITS != kernel.figures and b.i >> INSTANT_BITS:
            adopt_token_bucket(kernel, &a, &b, now)
        b.i &= INSTANT_MASK
        decide_token_bucket(kernel, known, a, b, now, cost, outcome)
    elif kernel.kind == FIXED_WINDOW:
        decide_fixed_window(kernel, known, a, b, now, cost, outcome)
    elif kernel.kind == CREDITS:
        decide_credits(kernel, known, a, b, expires, now, cost, outcome)
    elif kernel.kind == SLIDING_WINDOW:
        decide_sliding_window(kernel, <Runs*> b.p if known else NULL, now, cost, outcome)
    else:
        decide_sliding_window_log(kernel, <Runs*> b.p if known else NULL, now, cost, outcome)


cdef inline double middle(double one, double other, double third) noexcept:
    cdef double low = one if one < other else other
    cdef double high = other if one < other else one
    if third < low:
        return low
    return high if third > high else third


cdef double adopted_gcra(Kernel kernel, double tat, int64_t word, int64_t now) noexcept:
    cdef const Figures* figures = &FIGURES[word >> INSTANT_BITS]
    cdef double interval = figures.first
    cdef double tau = figures.second
    cdef double at = <double> (word & INSTANT_MASK)
    cdef double owed, used, kept
    if tat <= now:
        return tat
    if tat * 2048.0 - floor(tat * 2048.0) == 0.5:
        return tat - (tau - interval) + (kernel.d1 - kernel.d0)
    owed = tat - at - tau
    if owed < 0.0:
        owed = 0.0
    used = tat - at - owed
    kept = middle(used * kernel.d0 / interval, used * kernel.d1 / tau, used)
    if owed > 0.0 and kept < kernel.d1 - kernel.d0:
        kept = kernel.d1 - kernel.d0
    if kept == used:
        return tat
    kept = at + owed + ceil(kept * NUDGE * 2048.0) / 2048.0
    return kept if kept < MAX_STORED_D else MAX_STORED_D


cdef void adopt_token_bucket(Kernel kernel, Word* a, Word* b, int64_t now) noexcept:
    cdef const Figures* figures = &FIGURES[b.i >> INSTANT_BITS]
    cdef double capacity = figures.first
    cdef double rate = figures.second
    cdef double tokens = a.d
    cdef int64_t at = b.i & INSTANT_MASK
    cdef bint is_paused = at > now and tokens < 1.0
    cdef double used, kept, lowest
    b.i = at
    if now > at and tokens + <double> (now - at) * rate >= capacity:
        a.d = kernel.d0
        return
    used = tokens if tokens > 0.0 else 0.0
    used = capacity - (used if used < capacity else capacity)
    kept = middle(used * kernel.d1 / rate, used * kernel.d0 / capacity, used)
    if tokens < 0.0:
        kept = (kept if kept > kernel.d0 - 1.0 else kernel.d0 - 1.0) - tokens * kernel.d1 / rate
    tokens = kernel.d0 - kept * NUDGE
    lowest = kernel.d0 - 2.0 * MAX_SPAN_D * kernel.d1
    if lowest < -MAX_SAFE_D:
        lowest = -MAX_SAFE_D
    if tokens < lowest:
        tokens = lowest
    if is_paused and tokens > NEARLY_ONE:
        tokens = NEARLY_ONE
    a.d = tokens


cdef inline void decide_gcra(
    Kernel kernel, bint known, Word a, int64_t now, int64_t cost, KernelOutcome* outcome
) noexcept:
    cdef double interval = kernel.d0
    cdef double tau = kernel.d1
    cdef double tat = <double> now if not known or a.d < now else a.d
    cdef double fresh = tat + interval * cost
    cdef double allow_at = fresh - tau
    outcome.limit = kernel.i0
    if now < allow_at:
        outcome.allowed = False
        outcome.remaining = at_least(0, <int64_t> floor((tau - (tat - now)) / interval))
        outcome.reset_at = <int64_t> ceil(tat)
        outcome.retry = saturated(ceil(allow_at - now))
        return
    # The mark of a pause, which is over.
    if fresh * 2048.0 - floor(fresh * 2048.0) == 0.5:
        fresh = fresh + 1.0 / 4096.0
    outcome.allowed = True
    outcome.remaining = at_least(0, <int64_t> floor((tau - (fresh - now)) / interval))
    outcome.reset_at = <int64_t> ceil(fresh)
    outcome.retry = 0
    outcome.a.d = fresh
    outcome.b.i = now | kernel.figures << INSTANT_BITS
    outcome.ttl = at_least(1, <int64_t> ceil(fresh - now))


cdef inline void decide_token_bucket(
    Kernel kernel, bint known, Word a, Word b, int64_t now, int64_t cost, KernelOutcome* outcome
) noexcept:
    cdef double capacity = kernel.d0
    cdef double rate = kernel.d1
    cdef double tokens = capacity
    cdef int64_t at = now
    cdef double wait
    if known:
        tokens = a.d
        if now <= b.i:
            at = b.i
        else:
            tokens = tokens + <double> (now - b.i) * rate
        if tokens > capacity:
            tokens = capacity
    outcome.limit = kernel.i1
    if tokens >= cost:
        tokens -= cost
        outcome.allowed = True
        outcome.retry = 0
        outcome.a.d = tokens
        outcome.b.i = at | kernel.figures << INSTANT_BITS
        outcome.ttl = (at - now) + kernel.i0
    else:
        outcome.allowed = False
        wait = ceil((cost - tokens) / rate)
        outcome.retry = saturated(wait)
        outcome.retry = min(outcome.retry + (at - now), MAX_SAFE)
    outcome.remaining = at_least(0, <int64_t> floor(tokens))
    outcome.reset_at = at + <int64_t> ceil((capacity - tokens) / rate)


cdef inline void decide_fixed_window(
    Kernel kernel, bint known, Word a, Word b, int64_t now, int64_t cost, KernelOutcome* outcome
) noexcept:
    cdef int64_t limit = kernel.i0
    cdef int64_t window = kernel.i1
    cdef int64_t start = now // window * window if kernel.i2 else now
    cdef int64_t count = 0
    if known and (a.i >= start or (not kernel.i2 and now - a.i < window)):
        start = a.i
        count = b.i
    outcome.limit = limit
    outcome.reset_at = start + window
    if count + cost <= limit:
        outcome.allowed = True
        outcome.remaining = limit - count - cost
        outcome.retry = 0
        outcome.a.i = start
        outcome.b.i = count + cost
        outcome.ttl = outcome.reset_at - now
    else:
        outcome.allowed = False
        outcome.remaining = at_least(0, limit - count)
        outcome.retry = outcome.reset_at - now


cdef inline void decide_credits(
    Kernel kernel,
    bint known,
    Word a,
    Word b,
    int64_t expires,
    int64_t now,
    int64_t cost,
    KernelOutcome* outcome,
) noexcept:
    # The third word of this state, the end of the credits, is the record's own expiry.
    cdef int64_t held = a.i if known else 0
    outcome.limit = kernel.i0
    if held < cost:
        outcome.allowed = False
        outcome.remaining = held
        outcome.reset_at = now + 1
        outcome.retry = 1
        return
    outcome.allowed = True
    outcome.remaining = held - cost
    outcome.reset_at = b.i
    outcome.retry = 0
    outcome.a.i = held - cost
    outcome.b.i = b.i
    outcome.ttl = expires - now


cdef void decide_sliding_window(
    Kernel kernel, Runs* runs, int64_t now, int64_t cost, KernelOutcome* outcome
) noexcept:
    cdef double w = kernel.d0
    cdef int64_t limit = kernel.i0
    cdef int64_t tick = <int64_t> floor(now / w)
    cdef int64_t full = 0
    cdef int64_t oldest = 0
    cdef uint32_t drop = 0
    cdef double elapsed, weight, estimate, projected, excess
    if runs != NULL and runs.length and runs_at(runs, runs.length - 1).at > tick:
        tick = min(runs_at(runs, runs.length - 1).at, <int64_t> floor(MAX_INSTANT_D / w))
    elapsed = now - tick * w
    if elapsed < 0:
        elapsed = 0
    weight = (w - elapsed) / w
    if weight < 0:
        weight = 0
    elif weight > 1:
        weight = 1
    if runs != NULL:
        full = runs.total
        while drop < runs.length and runs_at(runs, drop).at < tick - kernel.i2:
            full -= runs_at(runs, drop).count
            drop += 1
        if drop < runs.length and runs_at(runs, drop).at == tick - kernel.i2:
            oldest = runs_at(runs, drop).count
            full -= oldest
    estimate = full + oldest * weight
    projected = estimate + cost
    outcome.limit = limit
    outcome.reset_at = <int64_t> ceil((tick + 1) * w + kernel.i1)
    if projected <= limit:
        outcome.allowed = True
        outcome.remaining = at_least(0, <int64_t> floor(limit - projected))
        outcome.retry = 0
        outcome.drop = drop
        outcome.a.i = tick
        outcome.ttl = outcome.reset_at
        while <int64_t> floor(outcome.ttl / w) - kernel.i2 <= tick:
            outcome.ttl += 1
        outcome.ttl -= now
        return
    excess = projected - limit
    outcome.allowed = False
    if oldest > 0 and excess <= oldest * weight:
        outcome.retry = at_least(1, <int64_t> ceil(excess * w / oldest))
    else:
        outcome.retry = at_least(1, <int64_t> ceil((tick + 1) * w - now))
    outcome.remaining = at_least(0, <int64_t> floor(limit - estimate))


cdef void decide_sliding_window_log(
    Kernel kernel, Runs* runs, int64_t now, int64_t cost, KernelOutcome* outcome
) noexcept:
    cdef int64_t limit = kernel.i0
    cdef int64_t window = kernel.i1
    cdef int64_t count = 0
    cdef int64_t oldest = now
    cdef int64_t newest = now
    cdef int64_t needed
    cdef uint32_t live = 0
    if runs != NULL:
        count = runs.total
        while live < runs.length and runs_at(runs, live).at <= now - window:
            count -= runs_at(runs, live).count
            live += 1
        if live < runs.length:
            oldest = runs_at(runs, live).at
            newest = at_least(now, runs_at(runs, runs.length - 1).at)
    outcome.limit = limit
    outcome.reset_at = oldest + window
    if count + cost <= limit:
        outcome.allowed = True
        outcome.remaining = limit - count - cost
        outcome.retry = 0
        outcome.drop = live
        outcome.a.i = newest
        outcome.ttl = newest - now + window
        return
    outcome.allowed = False
    outcome.remaining = at_least(0, limit - count)
    if count == 0:
        outcome.retry = window
        return
    needed = min(at_least(1, count + cost - limit), count)
    while needed > runs_at(runs, live).count:
        needed -= runs_at(runs, live).count
        live += 1
    outcome.retry = at_least(1, runs_at(runs, live).at + window - now)
