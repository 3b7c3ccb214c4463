"""What training is estimated to cost, by which jobs are ordered and given time."""

_GRADIENT = {
    "digits_mlp": 4e-7,
    "digits_cnn": 2e-6,
    "mnist_cnn": 19e-6,
    "cifar_cnn": 9e-4,
    "wrn_16_4": 1e-4,  # of an accelerator, without which nobody trains hundreds of it
}


def gradient_seconds(model: str) -> float:
    """Seconds of one core per clipped gradient of a record, as measured.

    A model that is not known counts as the largest of the papers' own, the cifar_cnn.
    """
    return _GRADIENT.get(model, _GRADIENT["cifar_cnn"])
