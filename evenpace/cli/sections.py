"""Groups of commands, which are imported when they are used, and help texts in sections."""

import functools
import importlib
import importlib.util
from collections.abc import Collection, Mapping
from typing import Any

import click

from idl.errors import EvenpaceError

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

_ALL = f"{__name__}.all"  # in a context's `meta`: its help is to have all options


class LongCommand(click.Command):
    """Command with more options than fit on a screen: `--help` shows a few, `--help-all` all.

    Args:
        common: The parameters' names of the options that most people set, in the order of the help.
    """

    sections: Mapping[str, Collection[str]] = {}  # options by section, as `_OPTIONS` has them

    def __init__(self, *arguments: Any, common: Collection[str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._common = common
        self._help_all = click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show this message with all options and exit.",
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return all parameters; `--help-all` is one wherever `--help` is."""
        params = super().get_params(ctx)
        return [*params, self._help_all] if self.get_help_option_names(ctx) else params

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or all by section; what no section has comes last."""
        options = [param for param in self.get_params(ctx) if isinstance(param, click.Option)]
        records = {option.name: record for option in options if (record := option.get_help_record(ctx))}
        if _ALL in ctx.meta:
            for title, names in self.sections.items():
                if rows := [records.pop(name) for name in names if name in records]:
                    with formatter.section(title):
                        formatter.write_dl(rows)
        else:
            own = {param.name for param in self.params}
            helps = {name: record for name, record in records.items() if name not in own}
            records = {name: records[name] for name in self._common} | helps
        with formatter.section("Options"):
            formatter.write_dl([*records.values()])


class ServiceCommand(LongCommand):
    """Command of a part of a cluster, whose options are in sections."""

    sections = _OPTIONS


def _show_all(ctx: click.Context, option: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


class LazyGroup(click.Group):
    """Command group that imports a command when it is used.

    Args:
        modules: By the commands' names, MODULE:VARIABLE.
    """

    def __init__(self, *arguments: Any, modules: Mapping[str, str], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._modules = modules

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands that are there: those of the lab need a checkout."""
        return [name for name, module in self._modules.items() if not module.startswith("lab.") or _has_lab()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command (EvenpaceError: it is one of the lab, which is not there)."""
        if cmd_name not in self._modules:
            return None
        module, _, variable = self._modules[cmd_name].partition(":")
        if module.startswith("lab.") and not _has_lab():
            raise EvenpaceError(
                f"`evenpace {cmd_name}` is not in the package: it needs a checkout of evenpace's repository, "
                f"and `pip install -e '.[all]'` in it"
            )
        command: click.Command = getattr(importlib.import_module(module), variable)
        return command


class SectionedGroup(LazyGroup):
    """Command group whose commands are in sections.

    Args:
        sections: By the sections' titles, their commands, as `LazyGroup` has them.
    """

    def __init__(self, *arguments: Any, sections: Mapping[str, Mapping[str, str]], **options: Any) -> None:
        modules = {name: module for section in sections.values() for name, module in section.items()}
        super().__init__(*arguments, modules=modules, **options)
        self._sections = sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, each with the first sentence of its help."""
        names = self.list_commands(ctx)
        width = formatter.width - 6 - max(map(len, names))
        for title, section in self._sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in section if name in names]
            rows = [(name, command.get_short_help_str(width)) for name, command in commands if command]
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)


@functools.cache
def _has_lab() -> bool:
    """Return whether the lab is there; another package may have its name."""
    try:
        return importlib.util.find_spec("lab.commands") is not None
    except ModuleNotFoundError:
        return False
