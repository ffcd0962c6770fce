# The counts of a service for every check: as `deciding` of `service/_deciding.py`, and `Durations`
# of `service/_metrics.py`.

@cython.final
cdef class CountedCheck:
    """The check of a limiter, counted in `tally`. If it fails, `failed(error, keys, cost)` makes
    the decision, or raises."""

    def __init__(self, Gate gate not None, failed, tally):
        self.gate = gate
        self.failed = failed
        self.tally = tally

    def check(self, key, cost=1):
        return self.decide(key, cost)

    cdef Decision decide(self, object key, object cost):
        cdef Decision decision
        try:
            decision = (<Gate> self.gate)._decide(key, cost)
        except Exception as error:
            decision = self.failed(error, (key,), cost)
        if decision.allowed:
            self.tally.allowed += 1
        else:
            self.tally.denied += 1
        return decision


@cython.final
cdef class Durations:
    """Counts of durations by their upper bounds, in seconds, of which there are at most 15."""

    def __init__(self, bounds_s):
        cdef Py_ssize_t place
        self.bounds = len(bounds_s)
        if self.bounds > MOST_BOUNDS:
            raise ValueError("there are too many bounds")
        for place in range(self.bounds):
            self.bounds_s[place] = bounds_s[place]

    @property
    def counts(self):
        return tuple([self.counted[place] for place in range(self.bounds + 1)])

    def observe(self, double seconds):
        self.count(seconds)

    cdef void count(self, double seconds) noexcept:
        cdef Py_ssize_t place = 0
        while place < self.bounds and self.bounds_s[place] < seconds:
            place += 1
        self.counted[place] += 1
        self.sum_s += seconds
