"""Trains when it is told to: `torch_speed.py transformer|small`, a line with seconds in, steps a second out."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def build(kind):
    torch.manual_seed(7)
    if kind == "small":  # bound by launches
        model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
        x, y = torch.randn(32, 64, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    else:  # bound by the GPU
        layer = nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True)
        model = nn.Sequential(nn.TransformerEncoder(layer, 6), nn.Flatten(), nn.Linear(1024 * 256, 10)).cuda()
        x, y = torch.randn(32, 256, 1024, device="cuda"), torch.randint(0, 10, (32,), device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=kind != "small"):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def main(kind):
    step = build(kind)
    for _ in range(20):
        step()
    torch.cuda.synchronize()
    print("ready", flush=True)
    for line in sys.stdin:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < float(line):
            for _ in range(5):
                step()
            torch.cuda.synchronize()
            steps += 5
        print(steps / (time.perf_counter() - start), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
