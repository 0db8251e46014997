"""The findings of a third close reading, and of scripts in the shape of public reports."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Planted

PLANTED: tuple[Planted, ...] = ()

UNPLANTED: Mapping[str, str] = {}
