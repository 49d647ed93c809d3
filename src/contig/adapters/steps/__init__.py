"""Steps of several envs on a tape, added and sampled as stable-baselines3's buffers do it.

The parts of `contig.adapters.sb3` and `contig.adapters.cleanrl` that need neither library.
"""
