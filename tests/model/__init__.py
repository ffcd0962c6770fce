"""A brute-force model of the whole package, and random scenarios that compare the two.

Each feature has tests of its own. This package tests what happens where features meet: charges that
are cancelled after a reset, pauses under another plan, shadows beside bookings, leases on a key
that is paused, clocks that go back in the middle of it. It has these parts, each in a module:

| module | contents |
|---|---|
| `figures` | the figures of a limit, as plain data |
| `scenarios` | a scenario: limits, a way to ask them, a store, a sequence of calls |
| `drawing` | random scenarios from a seed, hostile callers included |
| `stores` | the stores that scenarios run on |
| `worlds` | the real API, asked by the calls of a scenario: `rate_limit`, `Limits`, `two_tier` |
| `services`, `http_world` | the same for the core of the service, and for HTTP |
| `running` | runs a scenario in its world, which makes a transcript |
| `models` | one key of one limit, written from the contract: naive and exact |
| `reference` | follows the transcript of a run with the models, and compares every answer |
| `laws`, `leases` | what the contract bounds and does not fix, as laws over a transcript |
| `comparing` | laws that compare two runs: with and without shadows, on two stores |
| `shrinking` | smaller scenarios that break the same law |
| `trying` | all of the above, for one scenario |
| `mutants` | deliberate faults, which the tests expect to be found |

The models import nothing of the package but the tuples that decisions and forecasts are, so they
cannot repeat its mistakes. Where the contract fixes an answer, the reference compares it. Where it
gives a bound, a law checks the transcript: for instance that no span of time has more units that
were not given back than the bound of refunds, or that nothing is admitted before a pause ends.

Peeks write nothing. So a world peeks before and after every call, at the same instant, under every
plan, and at the instants that a forecast names. With these, most laws compare two neighbouring
answers and need no model.

A failure prints its scenario, shrunk, and how to replay it:

    WORLD=service STORE=valkey SEED=17 python -m tests.model

With COUNT, the same command tries many seeds, and explains each law that breaks once.
"""
