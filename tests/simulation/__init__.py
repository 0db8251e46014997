"""The cluster in a bottle: manager, shards and sessions in one process, on one seeded virtual clock.

The services, their state files and the workers' sessions are the product's own code, unchanged. Simulated are
what they stand on: clock, threads, locks, network and event loop. A seed decides all that is left to chance,
so that a run that fails can be had again, as often as it takes to understand it:

    python -m tests.simulation 234 --log
"""
