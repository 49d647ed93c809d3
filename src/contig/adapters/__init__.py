"""Drop-ins for other libraries' buffers, each a package of its own with an extra of its name.

Nothing is imported here: `contig.adapters.sb3` needs stable-baselines3, and so on.
"""
