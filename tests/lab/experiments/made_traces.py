"""Made measurements of models on nodes of four devices, for experiments with schedulers."""

from itertools import product

LOCALS = (4, 1024)


def write_model(folder, name, batches, noise, sample=0.001, across=0.05):
    """Write a model whose step is `sample` seconds a sample, and `across` more on several nodes.

    Args:
        batches: Samples of the smallest and the largest batch.
        noise: Noise scale of each epoch, in smallest batches.
        sample: Seconds of a sample.
        across: Seconds of synchronisation across nodes.
    """
    model = folder / name
    model.mkdir(parents=True)

    def row(place, nodes, local):
        sync = across if nodes > 1 else 0.001
        return f"{place},{local},{sample * local + sync},{sync}"

    shapes = [shape for nodes in range(1, 5) for shape in product(range(1, 5), repeat=nodes)]
    rows = [row("".join(map(str, shape)), len(shape), local) for shape in shapes for local in LOCALS]
    (model / "placements.csv").write_text(
        "\n".join(["placement,local_bsz,step_time,sync_time", *rows]) + "\n"
    )
    wide = [
        row(f"{nodes},{per * nodes}", nodes, local) for nodes in (8, 16) for per in (1, 4) for local in LOCALS
    ]
    (model / "scalability.csv").write_text(
        "\n".join(["num_nodes,num_replicas,local_bsz,step_time,sync_time", *wide]) + "\n"
    )
    for batch in batches:
        lines = ["progress,iteration,grad_sqr,grad_var"]
        lines += [f"{20 * k},{20 * k * batches[0] // batch},1.0,{scale}" for k, scale in enumerate(noise, 1)]
        (model / f"validation-{batch}.csv").write_text("\n".join(lines) + "\n")
