"""The 1,797 digits of 8×8 pixels that come with scikit-learn, in the format of MNIST; needs no file.

As in MNIST, a digit fills 20×20 pixels (bilinear, no sharper than 8×8 can be) in the middle of 28×28 black ones.
"""

import hashlib

import numpy as np
import torch

from fastcaps.data.dataset import stratified
from fastcaps.data.idx import Arrays
from fastcaps.data.registry import NamedSet

# Seed of the division into training and test images, which is always the same.
_SEED = 0


def load(entry: NamedSet) -> tuple[Arrays, Arrays, dict[str, str]]:
    """Return training and test images ``(n 1 h w)`` with labels ``(n)``, and the hash of the source."""
    from fastcaps._extras import require

    require("digits", "sklearn")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = torch.from_numpy(bunch.images).double()[:, None] * (255 / 16)  # (n, 1, 8, 8)
    middle = torch.nn.functional.interpolate(small, (20, 20), mode="bilinear", align_corners=False)
    images = torch.nn.functional.pad(middle.round_(), (4, 4, 4, 4)).byte().numpy()  # (n, 1, 28, 28)
    labels = bunch.target.astype(np.int64)
    train, test = stratified(labels, entry.test, _SEED)
    source = {"scikit-learn load_digits": hashlib.sha256(np.ascontiguousarray(bunch.images).tobytes()).hexdigest()}
    return (images[train], labels[train]), (images[test], labels[test]), source
