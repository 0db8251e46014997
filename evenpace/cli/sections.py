"""Help texts in sections: of a group its commands, of a command its options."""

from collections.abc import Collection, Mapping
from typing import Any

import click

_OPTIONS: Mapping[str, Collection[str]] = {
    "The job": ("listen", "manager", "ps", "job", "name", "workers", "state"),
    "How batches are split": (
        *("policy", "predictor", "tolerance", "step_size", "profiles"),
        *("min_batch_size", "max_batch_size", "granularity", "at_once", "device"),
    ),
    "Predictors that learn": ("first_fit", "refit_every", "models", "reuse"),
    "How large the batch is": ("sizer", "batch_size", "promise", "similarity", "scale_batch"),
    "How workers wait for each other": (
        *("sync", "staleness", "replicas_to_aggregate", "exact", "lookahead", "release", "host"),
        *("deterministic",),
    ),
    "When a part is silent, slow or gone": (
        *("heartbeat", "silence", "absence", "report_timeout", "keep_job", "end_on_nan"),
        *("checkpoint_every", "keep", "ledger"),
    ),
    "Bytes on the wire": ("push_dtype",),
    "CPUs and memory": ("cpu_share", "limit_kind", "cpu", "threads", "memory_mib", "whole_steps"),
    "What is kept of jobs": ("keep_runs", "keep_days", "keep_mib"),
    "Page, metrics and traces": ("http", "http_name", "metrics", "metrics_workers", "traces", "trace_every"),
    "Certificates and tokens": ("folder", "ca", "certificate", "key", "token_key", "token_file", "insecure"),
    "Limits": (
        *("max_jobs", "max_members", "max_connections", "max_address_connections", "max_strangers"),
        *("max_calls_per_second", "max_unfinished_bytes", "max_unsent_bytes"),
    ),
}
"""Options of manager, shard and worker by section, in the order of the help; by their parameters' names."""


class ServiceCommand(click.Command):
    """Command of a part of a cluster, whose many options are in sections."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by section; what no section has comes last."""
        records = {
            param.name: record for param in self.get_params(ctx) if (record := param.get_help_record(ctx))
        }
        for title, names in _OPTIONS.items():
            if rows := [records.pop(name) for name in names if name in records]:
                with formatter.section(title):
                    formatter.write_dl(rows)
        with formatter.section("Options"):
            formatter.write_dl([*records.values()])


class SectionedGroup(click.Group):
    """Command group whose commands are in sections."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._sections: dict[str, list[click.Command]] = {}

    def add_section(self, title: str, *commands: click.Command) -> None:
        """Add commands under a title."""
        self._sections[title] = [*commands]
        for command in commands:
            self.add_command(command)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands' names, section by section."""
        return [command.name or "" for commands in self._sections.values() for command in commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, each with the first sentence of its help."""
        width = formatter.width - 6 - max(map(len, self.list_commands(ctx)))
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl([(one.name or "", one.get_short_help_str(width)) for one in commands])
