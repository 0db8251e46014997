"""The DataPartitionManager's metrics."""

from functools import partial

from batchsize_manager.partitions.service import DataPartitionService
from evenpace.metrics.catalogue import Families
from evenpace.metrics.server import PartCollector, service_collector
from rpc.server import Server


def partitions_collector(service: DataPartitionService, server: Server) -> PartCollector:
    """Return a collector of a DataPartitionManager's metrics."""
    return service_collector("partitions", server, partial(_fill, service))


def _fill(service: DataPartitionService, families: Families) -> None:
    jobs = service.jobs
    families.set("partition_jobs", len(jobs))
    for job, partitions in jobs.items():
        parts = partitions.parts
        families.set("partition_members", len(parts), job)
        families.set("partition_samples", sum(part.samples for part in parts.values()), job)
        families.set("partition_generation", partitions.generation, job)
        families.set("partition_moves", len(partitions.moves), job)
        families.set("partition_gap_traversals", partitions.gap, job)
