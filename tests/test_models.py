import pytest
import torch

from hiddenstate import models
from hiddenstate.errors import InputError

# Counted by hand from the layers: (inputs x kernel area + 1) x outputs, two a normalised channel.
COUNTS = {
    "mnist_cnn": (25 + 1) * 16 + (16 * 16 + 1) * 32 + (512 + 1) * 32 + (32 + 1) * 10,
    "mnist_linear": (784 + 1) * 10,
    "cifar_cnn": (27 + 1) * 32
    + (288 + 1) * 32
    + (288 + 1) * 64
    + (576 + 1) * 64
    + (576 + 1) * 128
    + (1152 + 1) * 128
    + (2048 + 1) * 128
    + (128 + 1) * 10,
    "digits_cnn": (9 + 1) * 16 + (144 + 1) * 16 + (64 + 1) * 16 + (16 + 1) * 10,
    "digits_mlp": (64 + 1) * 16 + (16 + 1) * 10,
    "digits_resnet": (9 * 8 + 2 * 8) + (72 * 16 + 144 * 16 + 8 * 16 + 3 * 2 * 16) + (16 + 1) * 10,
    "fcnn": 68,
    "resnet18": 11_173_962,
    "wrn_16_4": 2_748_890,
}
SHAPES = {"mnist_cnn": (1, 28, 28), "digits_cnn": (1, 8, 8), "digits_mlp": (1, 8, 8), "fcnn": (8,)}
SHAPES["digits_resnet"], SHAPES["mnist_linear"] = SHAPES["digits_cnn"], SHAPES["mnist_cnn"]


@pytest.mark.parametrize("name", models.MODELS)
def test_parameter_counts_are_the_papers(name):
    assert models.parameter_count(models.build(name)) == COUNTS[name]


def test_published_counts():
    assert COUNTS["cifar_cnn"] == 550_570
    assert COUNTS["mnist_cnn"] == 25_386
    assert models.parameter_count(models.logistic_regression(784, 10)) == 7_850


@pytest.mark.parametrize("name", models.MODELS)
def test_models_map_records_to_logits(name):
    model = models.build(name)
    with torch.no_grad():
        outputs = model(torch.rand(2, *SHAPES.get(name, (3, 32, 32))))
    assert outputs.shape == (2, 2 if name == "fcnn" else 10)
    assert outputs.isfinite().all()


@pytest.mark.parametrize("name", ["resnet18", "wrn_16_4"])
def test_records_do_not_mix(name):
    model = models.build(name).double()
    x = torch.rand(3, 3, 16, 16, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[1:2], model(x[1:2]))


def test_unknown_models_and_depths_are_refused():
    with pytest.raises(InputError, match="lenet"):
        models.build("lenet")
    with pytest.raises(InputError, match="depth"):
        models.wide_resnet(depth=17)
