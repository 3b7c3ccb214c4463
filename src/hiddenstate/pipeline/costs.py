"""Estimated costs of jobs, by which they are ordered and given time.

Seconds of one core, as measured at laptop scale on an x86-64 with AVX-512.
``benchmarks/forecast.py`` compares them with what the jobs of a run took.
"""

STARTING = {"start": 3.5, "train": 3.5, "simulate": 1.0, "bound": 1.0}
"""Seconds of a job beside its work, mostly to import its libraries."""
DRAWING = {"estimate": 19.0, "figures": 6.0, "restore": 2.0, "claims": 3.0}
"""What a family's jobs that no cell has take, on average of the families."""

_MODELS = {
    # clipped gradient of a record, parameters
    "digits_mlp": (4e-7, 1210),
    "digits_cnn": (1e-6, 3690),
    "digits_resnet": (2.1e-6, 3938),
    "mnist_cnn": (2.2e-5, 25_386),
    "mnist_linear": (1e-6, 7850),
    "cifar_cnn": (8.4e-4, 550_570),
    "resnet18": (0.05, 11_173_962),
    "last layer": (1.2e-7, 2570),  # of 256 features
    "wrn_16_4": (1e-4, 2_748_890),  # of an accelerator: hundreds take too long on a CPU
}
_STEP, _PARAMETER = 4e-5, 1.8e-8
"""What a step takes, and its noise and update for each parameter."""

BACK = 22
"""How much longer a record's clipped gradient takes that is differentiated again, as measured."""


def gradient_seconds(model: str) -> float:
    """Seconds per clipped gradient of a record.

    A model that is not known counts as the largest of the papers' own, the cifar_cnn.
    """
    return _MODELS.get(model, _MODELS["cifar_cnn"])[0]


def step_seconds(model: str, records: float) -> float:
    """Seconds that a step of DP-SGD with so many records takes a model."""
    gradient, parameters = _MODELS.get(model, _MODELS["cifar_cnn"])
    return _STEP + parameters * _PARAMETER + records * gradient
