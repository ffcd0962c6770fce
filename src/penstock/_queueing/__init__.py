"""The queues of the whole package, for threads and tasks: one caller leads, the others wait.

Callers that share something (a file, a connection, a key) wait in a queue. The first one leads: it
does the work, often for everybody behind it, and leaves; the next in order of arrival takes over.

- queue: `Waiter`, a caller in a queue, which can be asked whether it still is; `Queue`; `Queues` by
  key; and `Mutex`, for a few lines that one thread runs at a time
- commit: `GroupCommit`, in which the leader takes the calls of all waiters into one batch
- tasks: the same for tasks of an event loop
- fork: background threads, and what a forked child has to drop or to keep

**Interrupts.** A signal handler may raise at any bytecode of the main thread, and a thread may get
an exception at any of its own: Ctrl-C, the timeouts of gunicorn and Celery, a debugger. So
`finally` is not enough: the exception may be raised inside it, or between an `acquire` and the
`try` after it. (On Python 3.14 that includes `with lock:`, which every second interrupt of a busy
loop left locked.) So nothing here depends on `finally`:

1. The state of a queue is a deque of waiters, and the first one leads. Every change is one
   operation of a C type (append, remove, popleft), which no interrupt can divide. There is no lock
   that could be left held.
2. A waiter can be asked whether it is still there: a thread by the frame that waits and leads, a
   task by itself and its loop. A frame that has ended, also by an exception, is recognized by
   `frame.clear()`, which fails only for running frames. That is exact and immediate: it does not
   depend on a traceback being dropped, and it works for greenlets, which a walk over the stacks of
   threads would miss. Waiters that have ended are removed by whoever looks next.
3. Wake-ups are hints. Waiters also look by themselves: after 20 ms, then at growing intervals.
4. A leader records what it takes before it takes it (`Batch`). The next leader finds that record,
   repairs the connection, puts back what was certainly not written, and answers the rest with an
   error that says so.

`finally` remains the fast path: all of this costs nothing unless a caller was interrupted.

**Forks.** A waiter belongs to the process that made it. In a forked child, the waiters of the
parent's threads count as gone.
"""

from __future__ import annotations

from .commit import Batch, CallQueue, GroupCommit, LateError, QueuedCall
from .queue import Mutex, Place, Queue, Queues, ThreadWaiter, Waiter

__all__ = [
    "Batch",
    "CallQueue",
    "GroupCommit",
    "LateError",
    "Mutex",
    "Place",
    "Queue",
    "QueuedCall",
    "Queues",
    "ThreadWaiter",
    "Waiter",
]
