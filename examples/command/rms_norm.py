# /// e2e
# op: rms_norm
# entry: rms_norm
# device: cpu
# dtypes: [float32]
# ///
"""RMSNorm for NumPy's arrays: one pass for the squares, one multiplication over the rows."""

import numpy as np


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    """Scale each row to unit root-mean-square, then by `weight`.

    Shapes:
        x (S, H), weight (H,) -> (S, H).
    """
    scale = np.float32(1) / np.sqrt(np.einsum("sh,sh->s", x, x) / np.float32(x.shape[-1]) + np.float32(eps))
    out = x * scale[:, None]
    out *= weight
    return out
