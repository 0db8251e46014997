"""Attacks on live services while an honest job trains on them, which must come to no harm.

`attack` starts the services, the `honest_job` and those who attack, and tells what came of it. `attackers`
send what `inputs` makes, `lurkers` send little, and `long_answers` has calls for those who do not read them.
"""
