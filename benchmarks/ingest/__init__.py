"""How fast experience gets from actor processes to a learner, on one machine.

`python -m benchmarks.ingest` measures, in turn, a bare socket, echo (`id-echo`) and contig (TCP and
shared memory), and what ingest costs the learner's own Python:

    client process ─┐
    client process ─┼─> receiver process: counts what its consumer is handed   (receiver.py)
    client process ─┘

One measurement is one receiver process, which starts its client processes (client.py) and tells
them when to begin. What a method's two ends do is in raw_side.py, echo_side.py and contig_side.py;
what is sent in sizes.py; the goals in cases.py.
"""
