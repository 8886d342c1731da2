"""The MNIST example of PyTorch with chosen batches: two changed lines, marked `# adamcb`.

`diff examples/mnist_plain.py examples/mnist.py` shows them.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import adamcb
from adamcb.lab.tasks.datasets import load_dataset


class Net(nn.Module):
    """Two convolutions, two dense layers, dropout between."""

    def __init__(self, image_size):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, 1)
        self.conv2 = nn.Conv2d(32, 64, 3, 1)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * ((image_size - 4) // 2) ** 2, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x):
        """Return the log-probability of each class."""
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = F.relu(self.fc1(x))
        x = self.dropout2(x)
        return F.log_softmax(self.fc2(x), dim=1)


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = loader.weigh(F.nll_loss(output, target, reduction="none"))  # adamcb
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            progress = f"{100.0 * batch_idx / len(loader):.0f} %, lr {optimizer.param_groups[0]['lr']:.2g}"
            print(f"Train epoch: {epoch} [{progress}]  loss: {loss.item():.6f}")
            if args.dry_run:
                break


def test(model, device, test_loader):
    model.eval()
    test_loss, correct, total = 0.0, 0, len(test_loader.dataset)
    with torch.no_grad():
        for data, target in test_loader:
            data, target = data.to(device), target.to(device)
            output = model(data)
            test_loss += F.nll_loss(output, target, reduction="sum").item()
            correct += (output.argmax(dim=1) == target).sum().item()
    print(f"\nTest set: average loss: {test_loss / total:.4f}, accuracy: {correct}/{total} ({correct / total:.1%})\n")


def main():
    parser = argparse.ArgumentParser(description="MNIST")
    parser.add_argument("--dataset", default="mnist", choices=("mnist", "fashion-mnist", "digits"))
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7, help="learning rate step")
    parser.add_argument("--dry-run", action="store_true", help="one batch an epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=100)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    available = torch.accelerator.is_available()
    device = torch.accelerator.current_accelerator() if available else torch.device("cpu")

    images = load_dataset(args.dataset)
    test_loader = DataLoader(images.test, batch_size=args.test_batch_size)

    model = Net(images.image_shape[1]).to(device)
    loader = adamcb.AdaptiveLoader(model, images.train, batch_size=args.batch_size)  # adamcb
    optimizer = torch.optim.Adadelta(model.parameters(), lr=args.lr)

    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in range(1, args.epochs + 1):
        train(args, model, device, loader, optimizer, epoch)
        test(model, device, test_loader)
        scheduler.step()

    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")
    return model


if __name__ == "__main__":
    main()
