"""Whether an installed contig works: import it, store rows, draw slices. Needs no extra.

python -I tools/smoke.py      (-I: this directory is not on the path)
"""

import sys
import time

begun = time.perf_counter()
import contig  # noqa: E402 (its time is taken)

spent = time.perf_counter() - begun

from contig import *  # noqa: E402, F403 (that this works is what is looked at)

assert "site-packages" in contig.__file__, f"{contig.__file__} is not an installed package"
for library in ("torch", "jax", "gymnasium", "ray"):
    assert library not in sys.modules, f"importing contig imported {library}"

buffer = ReplayBuffer(LazyTensorStorage(100), SliceSampler(slice_len=4), batch_size=8, seed=0)  # noqa: F405
for t in range(50):
    buffer.add({"x": float(t), "next": {"reward": 1.0, "done": t % 10 == 9}})
batch = buffer.sample()
assert batch["x"].shape == (8,)
assert batch["is_init"].sum() == 2
assert len(buffer.storage.episodes()) == 5
version = sys.version.split()[0]
print(f"contig {contig.__version__} on Python {version}: imported in {spent * 1000:.0f} ms")
