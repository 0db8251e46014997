"""The findings of a third close reading, and of scripts in the shape of public reports."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED: tuple[Planted, ...] = (
    Planted(
        "`evenpace ps --state DIR` deletes folders of others",
        (
            Change(
                "ps/checkpoint_store.py",
                "if not all(_JOB_FILE.fullmatch(",
                "if False and not all(_JOB_FILE.fullmatch(",
            ),
            Change(
                "batchsize_manager/learning/saved_models.py", 'glob(f"*{_OWN_SUFFIX}")', 'glob(f"*{_SUFFIX}")'
            ),
        ),
        "tests/ps/test_ps_checkpoints.py tests/batchsize_manager/learning/test_saved_models.py "
        "-k 'of_others or last_jobs'",
    ),
)

UNPLANTED: Mapping[str, str] = {}
