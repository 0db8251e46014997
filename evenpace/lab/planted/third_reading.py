"""The findings of a third close reading, and of scripts in the shape of public reports."""

from collections.abc import Mapping

from evenpace.lab.planted.finding import Change, Planted

PLANTED: tuple[Planted, ...] = (
    Planted(
        "Without a seed, frozen layers, buffers and teachers",
        (
            Change(
                "worker/exchanges/parameter_server.py",
                "self._lacks_untrained = untrained is not None and not is_first",
                "self._lacks_untrained = False",
            ),
        ),
        "tests/worker/torch/test_untrained.py -k first_workers",
    ),
    Planted(
        "A buffer that each forward pass moves by the batch,",
        (
            Change(
                "worker/torch/optimizer.py",
                "        session.before_batch.append(self._fixed_samples.note)\n",
                "",
            ),
        ),
        "tests/worker/torch/test_untrained.py -k move",
    ),
    Planted(
        "`p.data.clamp_()` after a step is lost",
        (
            Change(
                "worker/torch/optimizer.py", "        return self._samples.changed()", "        return None"
            ),
        ),
        "tests/worker/torch/test_untrained.py -k clamp",
    ),
    Planted(
        "`random_split` without a seed, or labels numbered",
        (
            Change(
                "batchsize_manager/service.py",
                "elif not managed.job.spec.has_samples_of(spec):",
                "elif False:",
            ),
        ),
        "tests/worker/data/test_fingerprints.py -k refused",
    ),
    Planted(
        "A `collate_fn` that leaves out damaged samples",
        (
            Change(
                "worker/data/loader.py",
                "                self._check_size(batch, len(part.indices))\n            yield",
                "            yield",
            ),
        ),
        "tests/worker/data/test_batch_sizes.py",
    ),
)

UNPLANTED: Mapping[str, str] = {}
