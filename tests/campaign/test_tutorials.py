"""Trainings as Opacus's tutorials write them: six with one fault each, and six that are right.

Each claims noise multiplier 1, sampling rate 0.1, 30 steps and clipping norm 1, and is run as the
script that it is.
"""

import json
import textwrap

import pytest

from hiddenstate import cli

pytest.importorskip("opacus")

pytestmark = pytest.mark.filterwarnings("ignore")  # of Opacus, as users see them
CLAIM = ["--noise-multiplier=1", "--sampling-rate=0.1", "--steps=30", "--clipping-norm=1"]

START = """
    import torch
    from opacus import PrivacyEngine
    from opacus.validators import ModuleValidator
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(SEED)
    train_dataset = TensorDataset(torch.randn(200, 3, 8, 8), torch.randint(10, (200,)))
    train_loader = DataLoader(train_dataset, batch_size=20)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    criterion = nn.CrossEntropyLoss()
"""
PRIVATE = """
    privacy_engine = PrivacyEngine()
    model, optimizer, train_loader = privacy_engine.make_private(
        module=model, optimizer=optimizer, data_loader=train_loader, noise_multiplier=1.0,
        max_grad_norm=1.0)
"""
LOOP = """
    model.train()
    for epoch in range(3):
        for images, target in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), target)
            loss.backward()
            optimizer.step()
    print(f"epsilon {privacy_engine.get_epsilon(1e-5):.2f}")
"""
TOKENS = """
    train_dataset = TensorDataset(torch.randint(50, (200, 6)), torch.randint(10, (200,)))
    train_loader = DataLoader(train_dataset, batch_size=20)
"""
RIGHT = {
    "image classifier": START + PRIVATE + LOOP,
    "batch norm is fixed by the validator": START
    + """
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                          nn.Linear(288, 10))
    model = ModuleValidator.fix(model)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.005)
"""
    + PRIVATE
    + LOOP,
    "target epsilon": START
    + """
    privacy_engine = PrivacyEngine(accountant="rdp")
    model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=train_loader, epochs=3, target_epsilon=4.848,
        target_delta=1e-5, max_grad_norm=1.0)
"""
    + LOOP,
    "virtual steps": START
    + "\n    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)\n"
    + PRIVATE
    + """
    from opacus.utils.batch_memory_manager import BatchMemoryManager
    for epoch in range(3):
        with BatchMemoryManager(data_loader=train_loader, max_physical_batch_size=8,
                                optimizer=optimizer) as memory_safe_data_loader:
            for images, target in memory_safe_data_loader:
                optimizer.zero_grad()
                criterion(model(images), target).backward()
                optimizer.step()
""",
    "text classifier": START
    + TOKENS
    + """
    class SampleNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(50, 16)
            self.fc1, self.fc2 = nn.Linear(16, 16), nn.Linear(16, 10)

        def forward(self, x):
            x = self.emb(x).transpose(-2, -1)
            x = nn.functional.avg_pool1d(x, x.shape[-1]).squeeze(-1)
            return self.fc2(nn.functional.relu(self.fc1(x)))

    model = SampleNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
"""
    + PRIVATE
    + LOOP,
    "character LSTM with frozen words": START
    + TOKENS
    + """
    from opacus.layers import DPLSTM

    class CharNNClassifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.lstm = nn.Embedding(50, 8), DPLSTM(8, 12, batch_first=True)
            self.out_layer = nn.Linear(12, 10)

        def forward(self, x):
            return self.out_layer(self.lstm(self.embedding(x))[0][:, -1])

    model = CharNNClassifier()
    model.embedding.weight.requires_grad = False
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
"""
    + PRIVATE
    + LOOP,
}
WHOLE = START + PRIVATE + LOOP
CLIPPING = """
    def clip_and_accumulate():
        for p in optimizer.params:
            norms = p.grad_sample.flatten(1).norm(dim=1).clamp(min=1e-6)
            p.summed_grad = torch.einsum("i,i...", (1 / norms).clamp(max=1.0), p.grad_sample)

    optimizer.clip_and_accumulate = clip_and_accumulate
    model.train()
"""
"""Every tensor is clipped to the norm that is meant for all of them."""

FAULTY = {
    "sampler": WHOLE.replace(
        "max_grad_norm=1.0)", "max_grad_norm=1.0, poisson_sampling=False)"
    ).replace("batch_size=20", "batch_size=20, shuffle=True"),
    "sampling rate": WHOLE.replace("batch_size=20", "batch_size=40").replace(
        "range(3)", "range(6)"
    ),
    "steps": WHOLE.replace("range(3)", "range(5)"),
    "noise multiplier": WHOLE.replace(
        "model.train()", "optimizer.noise_multiplier = optimizer.noise_multiplier / 2"
    ),
    "clipping": WHOLE.replace("model.train()", CLIPPING.strip()),
    "mixed records": START
    + """
    class BatchStandardised(nn.Module):
        def forward(self, x):
            return (x - x.mean(dim=0)) / (x.std(dim=0, unbiased=False) + 1e-3)

    model = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), BatchStandardised(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
"""
    + PRIVATE
    + LOOP,
}


def _checked(script, seed, tmp_path, capsys):
    """Status and answer of the command on this script."""
    path = tmp_path / "train.py"
    path.write_text(textwrap.dedent(script).replace("SEED", str(seed)))
    # A noise multiplier that Opacus looks for is near 1; the accountant is told which.
    claim = CLAIM[1:] if "target_epsilon" in script else CLAIM
    status = cli.main(["check-training", str(path), *claim, "--json"])
    told = capsys.readouterr()
    return status, json.loads(told.out) if told.out else told.err


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_tutorial_is_not_accused(name, seed, tmp_path, capsys):
    status, told = _checked(RIGHT[name], seed, tmp_path, capsys)
    assert status == 0 and told["steps"] == 30, told


@pytest.mark.whole
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FAULTY)
def test_a_faulty_tutorial_is_named(name, seed, tmp_path, capsys):
    status, told = _checked(FAULTY[name], seed, tmp_path, capsys)
    assert status == 1 and name in [finding["fault"] for finding in told["findings"]], told
