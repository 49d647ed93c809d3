"""Child processes: started, talked to, watched, and what they failed with."""
