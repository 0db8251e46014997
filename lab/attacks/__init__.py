"""Attacks on live services while an honest job trains on them, which must come to no harm.

`attack` starts the services, the `honest_job` and the attackers, and reports the harm done. `attackers` send
the inputs that `inputs` makes, `lurkers` send little, and `long_answers` has calls whose answers are not
read.
"""
