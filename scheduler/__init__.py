"""Jobs on a cluster: what an engine, today Ray, needs to run their processes where a cluster has room."""
