"""One leads, the others wait: the queues of the whole package, for threads and for tasks.

Callers who share something (a file, a connection, a key) wait in a queue. The first leads: it
does the work, often for everybody behind it, and leaves; the next in order of arrival takes over.

- queue: `Waiter`, who is in a queue and whether it still is; `Queue`, `Queues` by key, and `Mutex`
  for a few lines that one thread runs at a time
- commit: `GroupCommit`, where the leader takes the calls of all who wait into one batch
- tasks: the same for tasks of an event loop
- fork: a thread for what the caller must not do itself; what a forked child has to forget,
  registered once

**Interrupts.** A signal handler may raise at any bytecode of the main thread, and a thread may be
sent an exception at any of its own: Ctrl-C, the timeouts of gunicorn and Celery, a debugger. So
`finally` is not enough: the exception may strike inside of it, or between an `acquire` and the
`try` behind it. (On Python 3.14 that includes `with lock:`, which every second interrupt of a busy
loop left locked.) Here nothing rests on it:

1. The state of a queue is a deque of waiters, and the first one in it leads. Every change is one
   operation of a C type (append, remove, popleft), which no interrupt can divide. There is no lock
   that could be left held.
2. Whoever is in a queue can be asked whether it is still there: a thread by the frame that
   waits and leads, a task by itself and its loop. A frame that has ended, by an exception too, is
   known by `frame.clear()`, which refuses only frames that run. That is exact and prompt: it does
   not depend on a traceback being dropped, and it holds for greenlets, which no walk over the
   stacks of threads would find. Those who have ended are removed by whoever looks next.
3. Wake-ups are hints. Who waits also looks by itself: after 20 ms, then at growing intervals.
4. A leader writes down what it takes before it takes it (`Batch`). The next leader finds that
   before it begins, repairs the connection, puts back what was certainly not written, and answers
   the rest with an error that says so.

`finally` remains the fast path: all of this costs nothing unless somebody was interrupted there.

**Forks.** A waiter belongs to the process that made it. In a child, those of the parent's threads
are no longer there.
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
