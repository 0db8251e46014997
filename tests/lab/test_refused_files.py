"""Files that are not in the form that a part of the lab reads: the error names file, line and value."""

import re
from functools import partial

import pytest

from idl.errors import InvalidRequestError
from lab.bench import spot_market
from lab.bench.step_times import read_step_times
from lab.experiments.batch_sizes import read_points
from lab.experiments.contention_schedule import read_schedule
from lab.simulations.capacity_files import read_capacity
from lab.simulations.workload_files import read_workload
from lab.traces import read_trace, read_usage

TRACE = "worker,iteration,speed,cpu,memory\n"
USAGE = "vm,step,cpu_percent,mem_percent\n"
SCHEDULE = "worker,start,end,cpu,memory\n"
STEPS = "model,gpu,batch_size,step_time_s\n"
SPOT = "time_s,event,node\n"
POINTS = "benchmark,round,batch_size,runs,mean_to_target,median_to_target,std\n"
ARRIVALS = "name,time,application,num_replicas,batch_size\n"
capacity_of = partial(read_capacity, nodes=("gpu-0", "gpu-1"))


@pytest.mark.parametrize(
    ("read", "text", "said"),
    [
        (
            read_trace,
            "",
            ", line 1: no column 'worker'; the columns are worker,iteration,speed,cpu,memory[,expected]",
        ),
        (read_trace, TRACE.replace("\n", ",expeted\n"), ", line 1: column 'expeted' is unknown or twice"),
        (read_trace, TRACE + "w,0,1,0,0\nw,1,1,0\n", ", line 3: 'w,1,1,0' has 4 values; there are 5 columns"),
        (read_trace, TRACE + "w,-1,1,0,0\n", ", line 2: iteration '-1': must be a whole number from 0"),
        (
            read_trace,
            TRACE + "w,4,1,0,0\nw,4,1,0,0\n",
            ", line 3: iteration '4': 'w' has a row for it already",
        ),
        (
            read_usage,
            USAGE + "a,0,50,50\na,2,50,50\n",
            ", line 3: step '2': the next step of machine 'a' must be 1",
        ),
        (read_schedule, SCHEDULE + "-1,0,1,1,0", ", line 2: worker -1: must be at least 0"),
        (read_schedule, SCHEDULE + "0,0,1,1.5,0", ", line 2: cpu 1.5: must be from 0 to 1"),
        (read_schedule, "a,b\n1,2\n", "no column 'worker'; the columns are worker,start,end,cpu,memory"),
        (
            read_step_times,
            STEPS + "m,a,1,1\nm,a,2,nan\n",
            "line 3: batch_size '2' must be a whole number from 1, step_time_s 'nan' ",
        ),
        (
            spot_market.read_trace,
            SPOT + "0,join,a\nsoon,loss,a\n",
            "line 3: time_s 'soon': must be a number, at least 0",
        ),
        (spot_market.read_trace, SPOT + "0,join,a\n", "must have events after its begin"),
        (read_points, POINTS, "there are no rows"),
        (
            read_points,
            POINTS + 2 * "a,1,8,5,3,3,0\n",
            ", line 3: batch_size '8': the benchmark has this size",
        ),
        (read_workload, ARRIVALS, ": there is no row"),
        (
            read_workload,
            ARRIVALS.replace("\n", ",priority\n") + "a,1,made,1,4,0\n",
            ", line 2: priority '0': must be a number above 0",
        ),
        (capacity_of, "time_s,nodes\n0,0\n", ": no node is ever there"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path, read, text, said):
    """The error begins with the file, and says what is allowed."""
    path = tmp_path / "file.csv"
    path.write_text(text)
    error = InvalidRequestError if read is spot_market.read_trace else ValueError
    with pytest.raises(error, match=re.escape(said)) as caught:
        read(path)
    assert str(path) in str(caught.value)
