"""Writes digits.bin beside this file: for each sample its 64 pixels, then its class, a byte each.

Needs scikit-learn, which ships the data set:  python3 -m pip install scikit-learn && python3 digits.py
"""

import pathlib

import numpy
from sklearn.datasets import load_digits

digits = load_digits()
samples = numpy.column_stack([digits.images.reshape(-1, 64), digits.target]).astype(numpy.uint8)
assert samples.shape == (1797, 65) and samples[:, :64].max() == 16
pathlib.Path(__file__).with_name("digits.bin").write_bytes(samples.tobytes())
