"""What each native kernel computes, in a few lines of numpy or plain Python.

Nothing here is fast, and nothing here imports contig: a test compares two independent answers.

    records     pack and unpack: columns to records and back; rows by seq
    trees       pytrees: leaves with paths, random ones, values that carry their place
    flags       done, terminated and truncated completed from one another
    sumtree     weights drawn in proportion
    permute     the keyed permutation
    rng         xoshiro256**
    marks       the flags that slices get
"""
