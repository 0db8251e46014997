"""A job's processes on a Ray cluster: placed, watched, moved, started again. Users import `evenpace.ray`."""
