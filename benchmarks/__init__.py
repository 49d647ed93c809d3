"""Speed measurements of contig and of the buffers people use today, in one run on one machine.

`python -m benchmarks.run` measures everything and prints a table. Each library is measured in a
process of its own (`python -m benchmarks.contig_cases`, `python -m benchmarks.peer_torchrl`, ...),
the peers with the interpreter of their own virtual environment, so that no library's imports,
threads or allocator settings are felt by another. See README.md in this directory.
"""
