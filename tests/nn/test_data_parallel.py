"""Two processes with DistributedDataParallel give the result of one process on all samples."""

import sys

import pytest
from numpy.testing import assert_allclose

from extras import require

torch = require("torch")

from lucidae.nn import NestedDropout, PrefixLoss, RotationAugmented

ROWS, WIDTH, LATENTS, STEPS = 8, 6, 4, 3


class Bottleneck(torch.nn.Module):
    """A linear autoencoder with nested dropout, whose forward pass returns its loss."""

    def __init__(self, draw="sample"):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = torch.nn.Linear(WIDTH, LATENTS, dtype=torch.float64)
        self.dropout = NestedDropout(LATENTS, "uniform", draw=draw).double()
        self.decoder = torch.nn.Linear(LATENTS, WIDTH, dtype=torch.float64)

    def forward(self, x, **settings):
        decoded = self.decoder(self.dropout(self.encoder(x), **settings))
        return (x - decoded).square().sum(1).mean()


class Embedding(torch.nn.Module):
    """A network whose embeddings are trained with a random prefix in every step."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.encoder = torch.nn.Linear(WIDTH, LATENTS, dtype=torch.float64)
        self.loss = PrefixLoss(lambda z: z.square().sum(1).mean(), LATENTS, prior="uniform")

    def forward(self, x):
        return self.loss(self.encoder(x))


def rows():
    torch.manual_seed(1)
    return torch.randn(STEPS, ROWS, WIDTH, dtype=torch.float64) + 1


def rotation(model, centered):
    sgd = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return RotationAugmented(sgd, model.encoder, model.decoder, tied=False, centered=centered)


def train_rotation(model, parts, centered):
    """Make steps on a part of each batch, with all latents."""
    network = getattr(model, "module", model)
    optimizer = rotation(network, centered)
    for part in parts:
        optimizer.zero_grad()
        model(part, prefix=LATENTS).backward()
        optimizer.step()
    return weights(network)


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def train_plain(model, parts, seed):
    """Make gradient steps; the lengths of the prefixes are drawn with a seed of each process."""
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for part in parts:
        optimizer.zero_grad()
        model(part).backward()
        optimizer.step()
    return weights(getattr(model, "module", model))


def one_process(rank, folder, results):
    """Train on the half of each batch that belongs to this process."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2
    )
    parallel = torch.nn.parallel.DistributedDataParallel
    half = rows()[:, rank * ROWS // 2 : (rank + 1) * ROWS // 2]
    found = {
        "rotation": train_rotation(parallel(Bottleneck()), half, False),
        "centered": train_rotation(parallel(Bottleneck()), half, True),
        "sample": train_plain(parallel(Bottleneck()), half, seed=rank),
        "batch": train_plain(parallel(Bottleneck("batch")), half, seed=7),
        "prefix": train_plain(parallel(Embedding()), half, seed=rank),
    }
    torch.save(found, f"{results}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the weights of both processes after each training."""
    if sys.platform == "win32":
        pytest.skip("the processes meet in a file, which needs a POSIX system")
    folder = tmp_path_factory.mktemp("processes")
    # Both processes are forked from one that has imported everything.
    preloaded = torch.multiprocessing.get_context("forkserver")
    preloaded.set_forkserver_preload([__name__, "torch._dynamo"])
    torch.multiprocessing.start_processes(
        one_process, (str(folder), str(folder)), nprocs=2, start_method="forkserver"
    )
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


def assert_equal_to_one_process(trained, name, expected):
    for found in trained:
        for one, other in zip(found[name], expected, strict=True):
            assert_allclose(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "centered"), [("rotation", False), ("centered", True)])
def test_rotations_use_the_codes_of_all_processes(trained, name, centered):
    expected = train_rotation(Bottleneck(), rows(), centered)
    assert_equal_to_one_process(trained, name, expected)


def test_one_length_for_all_processes_with_equal_seeds(trained):
    assert_equal_to_one_process(trained, "batch", train_plain(Bottleneck("batch"), rows(), seed=7))


def test_lengths_per_sample_are_those_of_the_two_generators(trained):
    """One process that draws the lengths of each half with the generator of that half."""
    model = Bottleneck()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    states = [torch.Generator().manual_seed(rank).get_state() for rank in range(2)]
    for batch in rows():
        optimizer.zero_grad()
        for rank, half in enumerate(batch.split(ROWS // 2)):
            torch.set_rng_state(states[rank])
            (model(half) / 2).backward()
            states[rank] = torch.get_rng_state()
        optimizer.step()
    assert_equal_to_one_process(trained, "sample", weights(model))


def test_all_processes_evaluate_the_same_prefix(trained):
    assert_equal_to_one_process(trained, "prefix", train_plain(Embedding(), rows(), seed=0))


def test_a_training_without_processes_is_refused_if_one_is_asked_for():
    model = Bottleneck()
    sgd = torch.optim.SGD(model.parameters(), lr=0.05)
    with pytest.raises(ValueError, match="distributed='always'"):
        RotationAugmented(sgd, model.encoder, model.decoder, distributed="always")
    optimizer = RotationAugmented(sgd, model.encoder, model.decoder, distributed=True)
    model(rows()[0]).backward()
    with pytest.raises(RuntimeError, match="init_process_group"):
        optimizer.step()
