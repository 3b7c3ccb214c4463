"""The papers' models, as plain torch modules.

Where a paper leaves a detail open, the docstring says what was chosen. None uses batch
normalisation, which would mix the records of a batch and leave no per-sample gradient to clip.
"""

from collections.abc import Callable

from torch import Tensor, nn

from hiddenstate.errors import InputError


def parameter_count(model: nn.Module) -> int:
    """Number of trainable parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def mnist_cnn(classes: int = 10) -> nn.Module:
    """Shallow CNN for 1 x 28 x 28 images: 25,386 parameters for 10 classes.

    Source: Annamalai and De Cristofaro 2024, Table 2. The table gives neither stride nor padding
    of the convolutions: stride 1 and no padding here.
    """
    # 512 features: sides of 28 become 24, 12, 9 and 4, in 32 channels.
    return _two_convolutions(nn.Conv2d(1, 16, 5), nn.Conv2d(16, 32, 4), 512, 32, classes)


def _two_convolutions(
    first: nn.Module, second: nn.Module, features: int, hidden: int, classes: int
) -> nn.Module:
    return nn.Sequential(
        *(first, nn.Tanh(), nn.MaxPool2d(2)),
        *(second, nn.Tanh(), nn.MaxPool2d(2)),
        nn.Flatten(),
        *(nn.Linear(features, hidden), nn.Tanh(), nn.Linear(hidden, classes)),
    )


def cifar_cnn(classes: int = 10) -> nn.Module:
    """Shallow CNN for 3 x 32 x 32 images: 550,570 parameters for 10 classes.

    Source: Annamalai and De Cristofaro 2024, Table 3.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width in (32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.Tanh()]
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        channels = width
    # 2048 features: sides of 32 are halved three times, in 128 channels.
    layers += [nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, classes)]
    return nn.Sequential(*layers)


def digits_cnn(classes: int = 10) -> nn.Module:
    """Small CNN for 1 x 8 x 8 images: 3,690 parameters for 10 classes (ours, for ``digits``)."""
    first, second = (nn.Conv2d(channels, 16, 3, padding=1) for channels in (1, 16))
    # 64 features: sides of 8 are halved twice, in 16 channels.
    return _two_convolutions(first, second, 64, 16, classes)


def digits_mlp(classes: int = 10) -> nn.Module:
    """One hidden layer for 1 x 8 x 8 images: 1,210 parameters for 10 classes (ours)."""
    return nn.Sequential(nn.Flatten(), *fcnn(64, 16, classes))


def digits_resnet(classes: int = 10) -> nn.Module:
    """Small residual network for 1 x 8 x 8 images with group norm: 3,938 parameters for 10 classes.

    Ours, for ``digits``: a stem and one block of ``resnet18`` with few channels.
    """
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, 2, padding=1, bias=False),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        ResidualBlock(8, 16, 2, groups=2, first="conv"),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, classes),
    )


def logistic_regression(features: int, classes: int) -> nn.Module:
    """Multinomial logistic regression on flattened records.

    With three classes or more a clipped gradient step of its loss expands, convex as it is: the
    constant that bounds it is ``accounting.cyclic_operator.logistic``.
    """
    return nn.Sequential(nn.Flatten(), nn.Linear(features, classes))


def mnist_linear(classes: int = 10) -> nn.Module:
    """Linear layer on 1 x 28 x 28 images: 7,850 parameters for 10 classes (ours)."""
    return logistic_regression(784, classes)


def fcnn(features: int = 8, hidden: int = 6, classes: int = 2) -> nn.Module:
    """Fully connected network with one hidden ReLU layer: 68 parameters as for Housing.

    Source: Cebere, Bellet and Papernot 2025 give the 68 parameters; 8-6-2 is our reconstruction.
    """
    return nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, classes))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut, normalised by groups before or after them."""

    def __init__(self, inputs: int, outputs: int, stride: int, *, groups: int, first: str):
        super().__init__()
        self.pre_activation = first == "norm"
        self.norm1 = nn.GroupNorm(groups, inputs if self.pre_activation else outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            project = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = (
                project
                if self.pre_activation
                else nn.Sequential(project, nn.GroupNorm(groups, outputs))
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output; shape (records, channels, height, width)."""
        if self.pre_activation:
            active = self.norm1(x).relu()
            past = x if self.shortcut is None else self.shortcut(active)
            return past + self.conv2(self.norm2(self.conv1(active)).relu())
        past = x if self.shortcut is None else self.shortcut(x)
        return (past + self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))).relu()


def resnet18(classes: int = 10, channels: int = 3) -> nn.Module:
    """ResNet-18 for small images with group norm: 11,173,962 parameters for 10 classes.

    Source: He et al. 2016 with the 3x3 stem usual for 32 x 32 images; group norm of 32 groups
    (Wu and He 2018) in batch norm's place.
    """
    blocks: list[nn.Module] = []
    width = 64
    for stage, outputs in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage > 0 and block == 0 else 1
            blocks.append(ResidualBlock(width, outputs, stride, groups=32, first="conv"))
            width = outputs
    return nn.Sequential(
        nn.Conv2d(channels, 64, 3, padding=1, bias=False),
        nn.GroupNorm(32, 64),
        nn.ReLU(),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def wide_resnet(
    depth: int = 16, factor: int = 4, classes: int = 10, channels: int = 3
) -> nn.Module:
    """Wide ResNet with group norm; WRN-16-4 has 2,748,890 parameters for 10 classes.

    Source: Zagoruyko and Komodakis 2016; group norm of 16 groups as in De et al. 2022, but
    without their weight standardisation.
    """
    if depth < 10 or (depth - 4) % 6:
        raise InputError(f"depth: got {depth}; expected 6 n + 4 for some n of at least 1")
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False)]
    width = 16
    for stage, outputs in enumerate((16 * factor, 32 * factor, 64 * factor)):
        for block in range((depth - 4) // 6):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(ResidualBlock(width, outputs, stride, groups=16, first="norm"))
            width = outputs
    return nn.Sequential(
        *layers,
        nn.GroupNorm(16, width),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, classes),
    )


MODELS: dict[str, Callable[..., nn.Module]] = {
    "mnist_cnn": mnist_cnn,
    "mnist_linear": mnist_linear,
    "cifar_cnn": cifar_cnn,
    "digits_cnn": digits_cnn,
    "digits_mlp": digits_mlp,
    "digits_resnet": digits_resnet,
    "fcnn": fcnn,
    "resnet18": resnet18,
    "wrn_16_4": wide_resnet,
}
"""The models by the names that grids use."""


def build(name: str, classes: int | None = None) -> nn.Module:
    """The model called ``name``, with torch's default initial parameters and its own classes."""
    if name not in MODELS:
        raise InputError(f"model: got {name!r}; expected one of {', '.join(MODELS)}")
    return MODELS[name]() if classes is None else MODELS[name](classes=classes)
